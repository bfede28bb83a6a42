// SPDX-License-Identifier: Apache-2.0
#include "daemon/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lamina::daemon {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A connection of its own; everything that comes until the other end closes.
class RawClient {
 public:
  explicit RawClient(const std::string& address) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  ~RawClient() { close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  std::string Ask(const std::string& request) {
    EXPECT_EQ(send(socket_, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    std::string out;
    char buffer[4096];
    for (ssize_t n; (n = recv(socket_, buffer, sizeof(buffer), 0)) > 0;) {
      out.append(buffer, static_cast<size_t>(n));
    }
    return out;
  }

 private:
  const int socket_;
};

std::unique_ptr<HttpServer> StartPages(std::string health) {
  auto server = HttpServer::Start("127.0.0.1:0",
                                  DaemonPages([] { return std::string("lamina_x 1\n"); },
                                              [health = std::move(health)] { return health; }));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

std::string Get(const HttpServer& server, const std::string& path) {
  return RawClient(server.address())
      .Ask(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
}

TEST(HttpServerTest, TakesIpv6InBrackets) {
  const auto server = HttpServer::Start("[::1]:0", [](absl::string_view) { return HttpAnswer(); });

  // A host without IPv6 refuses the address, which it has understood.
  if (server.ok()) {
    EXPECT_THAT((*server)->address(), StartsWith("[::1]:"));
  } else {
    EXPECT_THAT(std::string(server.status().message()), StartsWith("could not listen on [::1]:0"));
  }
}

TEST(HttpServerTest, AllAddressesAreThoseOfBothFamilies) {
  const auto answer = [](absl::string_view) { return HttpAnswer{.body = "here\n"}; };
  if (!HttpServer::Start("[::1]:0", answer).ok()) {
    GTEST_SKIP() << "a host without IPv6";
  }
  for (const char* listen : {"0.0.0.0:0", "[::]:0"}) {
    const auto server = HttpServer::Start(listen, answer);
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_THAT(Get(**server, "/"), HasSubstr("here")) << listen;
    int port = 0;
    const std::string address = (*server)->address();
    ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    const int six = socket(AF_INET6, SOCK_STREAM, 0);
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(static_cast<uint16_t>(port));
    to.sin6_addr = in6addr_loopback;
    EXPECT_EQ(connect(six, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0) << listen;
    close(six);
  }
}

TEST(HttpServerTest, ListensAtAllAddressesOfAName) {
  const auto answer = [](absl::string_view) { return HttpAnswer{.body = "here\n"}; };
  const bool has_v6 = HttpServer::Start("[::1]:0", answer).ok();
  const auto server = HttpServer::Start("localhost:0", answer);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string port = (*server)->address().substr((*server)->address().rfind(':') + 1);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  ASSERT_EQ(getaddrinfo("localhost", port.c_str(), &hints, &found), 0);

  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_family == AF_INET || has_v6) {
      const int one = socket(at->ai_family, SOCK_STREAM, 0);
      EXPECT_EQ(connect(one, at->ai_addr, at->ai_addrlen), 0) << "family " << at->ai_family;
      close(one);
    }
  }
  freeaddrinfo(found);
}

TEST(HttpServerTest, SaysThatAPortIsInUseAndWhatToDo) {
  const auto first = StartPages("");
  const auto second =
      HttpServer::Start(first->address(), [](absl::string_view) { return HttpAnswer(); });

  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr(first->address()), HasSubstr("choose another http")));
}

TEST(HttpServerTest, ServesMetricsAndHealth) {
  const auto server = StartPages("");

  EXPECT_THAT(Get(*server, "/metrics"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(*server, "/metrics?a=b"), EndsWith("\r\n\r\nlamina_x 1\n"));
  EXPECT_THAT(Get(*server, "/metrics"), HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(Get(*server, "/health"), EndsWith("ok\n"));
}

TEST(HttpServerTest, SaysWhyItIsNotWell) {
  const auto server = StartPages("waiting for m1");

  EXPECT_THAT(Get(*server, "/health"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Get(*server, "/health"), EndsWith("waiting for m1\n"));
}

TEST(HttpServerTest, RefusesOtherPathsAndMethods) {
  const auto server = StartPages("");

  EXPECT_THAT(Get(*server, "/nope"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(RawClient(server->address())
                  .Ask("DELETE /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
}

TEST(HttpServerTest, KeepsAConnectionForSeveralRequests) {
  const auto server = StartPages("");
  const std::string once = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string last = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

  const std::string answers = RawClient(server->address()).Ask(once + last);

  EXPECT_THAT(answers, HasSubstr("ok\n"));
  EXPECT_THAT(answers, EndsWith("lamina_x 1\n"));
}

TEST(HttpServerTest, ClosesAConnectionWithATooLongHeaderOrABody) {
  const auto server = StartPages("");

  EXPECT_EQ(RawClient(server->address())
                .Ask(absl::StrCat("GET /metrics HTTP/1.1\r\nX: ",
                                  std::string(2 * kHttpHeaderBytesMax, 'x'))),
            "");
  EXPECT_EQ(RawClient(server->address())
                .Ask("GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n123456789"),
            "");
}

TEST(HttpServerTest, AcceptsAgainWhenThereAreDescriptorsAgain) {
  const auto server = StartPages("");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {.rlim_cur = 256, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<int> taken;
  for (int copy; (copy = dup(STDERR_FILENO)) >= 0;) {
    taken.push_back(copy);
  }
  ASSERT_EQ(errno, EMFILE);
  close(taken.back());  // For the client's end, and none for the server's.
  taken.pop_back();
  RawClient client(server->address());

  for (const int copy : taken) {
    close(copy);
  }
  EXPECT_THAT(client.Ask("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
              EndsWith("ok\n"));
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(HttpServerTest, SaysWhenItCannotListen) {
  const auto server = StartPages("");
  const HttpServer::Handler handler = [](absl::string_view) { return HttpAnswer(); };

  EXPECT_EQ(HttpServer::Start(server->address(), handler).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(HttpServer::Start("127.0.0.1", handler).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HttpServer::Start("127.0.0.1:99999", handler).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::daemon
