// SPDX-License-Identifier: Apache-2.0
//
// A connection over a stream that the test feeds, byte by byte where that matters.
#include "gateway/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "gateway/deferred_handler.h"

namespace lamina::gateway {
namespace {

using boost::system::error_code;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What the client sends, and what it has got. Shared with the connection's stream.
struct Wire {
  std::string to_server;
  size_t read_max = 65536;
  bool client_closed = false;
  bool takes = true;  // The client reads.
  std::string to_client;
  bool server_closed = false;
  bool writes_shut = false;
  ByteStream::Done pending_read;
  ByteStream::Done pending_write;
  absl::string_view offered;  // What waits for a client that does not read.
  absl::Span<char> into;
};

class WireStream : public ByteStream {
 public:
  WireStream(boost::asio::io_context& io, std::shared_ptr<Wire> wire)
      : io_(io), wire_(std::move(wire)) {}

  static void Pump(boost::asio::io_context& io, const std::shared_ptr<Wire>& wire) {
    if (!wire->pending_read) {
      return;
    }
    if (wire->server_closed) {
      Finish(io, std::exchange(wire->pending_read, nullptr), boost::asio::error::operation_aborted,
             0);
    } else if (!wire->to_server.empty()) {
      const size_t n = std::min({wire->into.size(), wire->read_max, wire->to_server.size()});
      std::copy_n(wire->to_server.begin(), n, wire->into.begin());
      wire->to_server.erase(0, n);
      Finish(io, std::exchange(wire->pending_read, nullptr), error_code(), n);
    } else if (wire->client_closed) {
      Finish(io, std::exchange(wire->pending_read, nullptr), boost::asio::error::eof, 0);
    }
  }

  // The client reads on.
  static void Take(boost::asio::io_context& io, const std::shared_ptr<Wire>& wire) {
    wire->takes = true;
    wire->to_client.append(wire->offered.data(), wire->offered.size());
    Finish(io, std::exchange(wire->pending_write, nullptr), error_code(), wire->offered.size());
  }

  void Handshake(Done done) override { Finish(io_, std::move(done), error_code(), 0); }
  void ReadSome(absl::Span<char> into, Done done) override {
    wire_->into = into;
    wire_->pending_read = std::move(done);
    Pump(io_, wire_);
  }
  void WriteSome(absl::string_view bytes, Done done) override {
    if (!wire_->takes) {
      wire_->offered = bytes;
      wire_->pending_write = std::move(done);
      return;
    }
    wire_->to_client.append(bytes.data(), bytes.size());
    Finish(io_, std::move(done), error_code(), bytes.size());
  }
  void ShutDownWrites() override { wire_->writes_shut = true; }
  void Close() override {
    wire_->server_closed = true;
    Pump(io_, wire_);
    if (wire_->pending_write) {
      Finish(io_, std::exchange(wire_->pending_write, nullptr),
             boost::asio::error::operation_aborted, 0);
    }
  }

 private:
  static void Finish(boost::asio::io_context& io, Done done, error_code error, size_t bytes) {
    boost::asio::post(io, [done = std::move(done), error, bytes] { done(error, bytes); });
  }
  boost::asio::io_context& io_;
  std::shared_ptr<Wire> wire_;
};

// Echoes bodies; "/stream" hands the writer to the test.
class EchoRouter : public RequestRouter {
 public:
  class Handler : public RequestHandler {
   public:
    void OnDrained() override { ++drained; }
    void OnSilence() override { ++silences; }
    void OnGone() override { gone = true; }
    int drained = 0;
    int silences = 0;
    bool gone = false;
  };

  std::optional<HttpResponse> Refuse(const HttpRequest& head) override {
    if (head.path == "/refused") {
      return HttpResponse{.status = 404, .body = "no"};
    }
    return std::nullopt;
  }
  HttpResponse ErrorOf(const std::string& path, const absl::Status& status) const override {
    HttpResponse response = ErrorResponse(status);
    response.headers.emplace_back("x-error-of", path);
    return response;
  }
  std::vector<std::pair<std::string, std::string>> HeadersFor(HttpRequest&) override {
    return {{"x-mine", "yes"}};
  }
  std::shared_ptr<RequestHandler> Handle(HttpRequest request, ResponseWriter& w) override {
    ++requests;
    if (request.path == "/stream") {
      writer = &w;
      handler = std::make_shared<Handler>();
      return handler;
    }
    w.Respond({.content_type = "text/plain",
               .body = absl::StrCat(request.method, " ", request.path, "?", request.query, " ",
                                    request.body)});
    return nullptr;
  }

  std::string RouteOf(const std::string& path) const override { return path; }
  GatewayMetrics& metrics() override { return counted; }

  GatewayMetrics counted;
  int requests = 0;
  ResponseWriter* writer = nullptr;
  std::shared_ptr<Handler> handler;
};

class ConnectionTest : public testing::Test {
 protected:
  void Open() {
    wire_ = std::make_shared<Wire>();
    connection_ =
        std::make_shared<Connection>(io_, std::make_unique<WireStream>(io_, wire_), settings_,
                                     router_, [this](const auto&) { closed_ = true; });
    connection_->Start();
    Run();
  }
  void Run() {
    io_.restart();
    io_.run();
  }
  void Send(const std::string& bytes) {
    wire_->to_server += bytes;
    WireStream::Pump(io_, wire_);
    Run();
  }
  void HangUp() {
    wire_->client_closed = true;
    WireStream::Pump(io_, wire_);
    Run();
  }
  void Pass(std::chrono::milliseconds time) {
    connection_->Tick(std::chrono::steady_clock::now() + time);
    Run();
  }
  static std::string Post(const std::string& path, const std::string& body) {
    return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: h\r\nContent-Length: ", body.size(),
                        "\r\n\r\n", body);
  }

  boost::asio::io_context io_;
  Connection::Settings settings_{.body_bytes_max = 1000};
  EchoRouter router_;
  std::shared_ptr<Wire> wire_;
  std::shared_ptr<Connection> connection_;
  bool closed_ = false;
};

TEST_F(ConnectionTest, AnswersAndReadsTheNext) {
  Open();
  Send(Post("/a?q=1", "hello"));
  EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(wire_->to_client, HasSubstr("x-mine: yes\r\n"));
  EXPECT_THAT(wire_->to_client, EndsWith("\r\n\r\nPOST /a?q=1 hello"));
  Send("GET /b HTTP/1.1\r\n\r\n");
  EXPECT_THAT(wire_->to_client, EndsWith("GET /b? "));
  EXPECT_FALSE(closed_);
  HangUp();
  EXPECT_TRUE(closed_);
}

TEST_F(ConnectionTest, ATargetMayHaveItsAuthority) {
  Open();
  for (const auto& [target, answer] :
       {std::pair("http://h:8000/a?q=1", "\r\n\r\nGET /a?q=1 "),
        std::pair("HTTPS://h/a/http://x", "\r\n\r\nGET /a/http://x? "),
        std::pair("http://h", "\r\n\r\nGET /? "), std::pair("http://h?q", "\r\n\r\nGET /?q "),
        std::pair("/http://h/a", "\r\n\r\nGET /http://h/a? ")}) {
    Send(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: h\r\n\r\n"));
    EXPECT_THAT(wire_->to_client, EndsWith(answer)) << target;
  }
}

TEST_F(ConnectionTest, CutsDoNotMatter) {
  Open();
  wire_->read_max = 1;
  Send(Post("/a", "hello") +
       "POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
       "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_THAT(wire_->to_client, HasSubstr("POST /a? hello"));
  EXPECT_THAT(wire_->to_client, EndsWith("POST /c? abcde"));
  EXPECT_EQ(router_.requests, 2);
}

// The body of none of them is taken for the next request.
TEST_F(ConnectionTest, UnclearFramingIsRefused) {
  for (const std::string fields :
       {"Transfer-Encoding: xchunked", "Transfer-Encoding: identity", "Transfer-Encoding: gzip",
        "Transfer-Encoding: chunked, identity", "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding:", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: identity\r\nContent-Length: 3",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Content-Length: 3\r\nTransfer-Encoding: chunked", "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: -1", "Content-Length: 3, 4", "Content-Length: 0x3"}) {
    SCOPED_TRACE(fields);
    const int before = router_.requests;
    Open();
    Send(absl::StrCat("POST /a HTTP/1.1\r\n", fields, "\r\n\r\n"));
    Send("GET /smuggled HTTP/1.1\r\n\r\n");
    EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 400 "));
    EXPECT_THAT(wire_->to_client, HasSubstr("Connection: close\r\n"));
    EXPECT_EQ(router_.requests, before);
  }
}

TEST_F(ConnectionTest, ChunkedIsReadInAnyCaseAndNotInOlderHttp) {
  Open();
  Send("POST /a HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
  EXPECT_THAT(wire_->to_client, EndsWith("POST /a? x"));
  Open();
  Send("POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
  EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 400 "));
}

TEST_F(ConnectionTest, OlderHttpIsClosedBehindItsAnswer) {
  Open();
  Send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_THAT(wire_->to_client, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(wire_->to_client, EndsWith("GET /a? "));
  EXPECT_TRUE(closed_);
}

TEST_F(ConnectionTest, StreamsAreChunkedAndEnd) {
  Open();
  Send(Post("/stream", ""));
  router_.writer->StartStream({{"x-lamina-lossy", "a-word"}});
  router_.writer->Write("data: x\n\n");
  Run();
  EXPECT_THAT(wire_->to_client, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(wire_->to_client, HasSubstr("x-lamina-lossy: a-word\r\n"));
  EXPECT_THAT(wire_->to_client, EndsWith("\r\n\r\n9\r\ndata: x\n\n\r\n"));
  EXPECT_EQ(router_.handler->drained, 1);
  router_.writer->EndStream();
  Run();
  EXPECT_THAT(wire_->to_client, EndsWith("0\r\n\r\n"));
  EXPECT_FALSE(closed_);
}

TEST_F(ConnectionTest, AClientThatGoesIsNoticedWhileItIsAnswered) {
  Open();
  Send(Post("/stream", ""));
  HangUp();
  EXPECT_TRUE(router_.handler->gone);
  EXPECT_TRUE(closed_);
}

TEST_F(ConnectionTest, AnAnswerThatIsThereReachesAClientThatHasEndedItsSide) {
  Open();
  wire_->takes = false;
  Send(Post("/a", std::string(900, 'x')));
  HangUp();
  EXPECT_FALSE(closed_);
  WireStream::Take(io_, wire_);
  Run();
  EXPECT_THAT(wire_->to_client, EndsWith(std::string(900, 'x')));
  EXPECT_TRUE(closed_);

  closed_ = false;
  Open();
  wire_->takes = false;
  Send(Post("/a", "x"));
  HangUp();
  Pass(settings_.write_time * 2);
  EXPECT_TRUE(closed_) << "it takes nothing";

  closed_ = false;
  Open();
  wire_->takes = false;
  Send(Post("/a", "x") + Post("/b", "y"));
  HangUp();
  WireStream::Take(io_, wire_);
  Run();
  EXPECT_THAT(wire_->to_client, EndsWith("POST /b? y")) << "it asked for both";
  EXPECT_TRUE(closed_);
}

TEST_F(ConnectionTest, TrafficIsCounted) {
  Open();
  const std::string request = Post("/stream", "");
  Send(request);
  router_.writer->StartStream({});
  Run();
  EXPECT_THAT(router_.counted.Text(), HasSubstr("lamina_gateway_streams 1\n"));
  EXPECT_THAT(router_.counted.Text(), HasSubstr("lamina_gateway_connections 1\n"));
  router_.writer->EndStream();
  Run();
  EXPECT_THAT(router_.counted.Text(), HasSubstr("lamina_gateway_streams 0\n"));
  const std::string page = router_.counted.Text();
  EXPECT_THAT(page, HasSubstr(absl::StrCat("received_bytes_total ", request.size(), "\n")));
  EXPECT_THAT(page, HasSubstr(absl::StrCat("sent_bytes_total ", wire_->to_client.size(), "\n")));
  EXPECT_THAT(page, HasSubstr("{path=\"/stream\",code=\"200\"} 1\n"));

  Send(request);
  HangUp();
  EXPECT_THAT(router_.counted.Text(), HasSubstr("{path=\"/stream\",code=\"499\"} 1\n"));
  EXPECT_THAT(router_.counted.Text(), HasSubstr("lamina_gateway_connections 0\n"));
  Open();
  Send(request);
  router_.writer->StartStream({});
  HangUp();
  EXPECT_THAT(router_.counted.Text(), HasSubstr("broken_streams_total{reason=\"client_gone\"} 1"));
  EXPECT_THAT(router_.counted.Text(), HasSubstr("lamina_gateway_streams 0\n"));
  Open();
  Send("nonsense\r\n\r\n");
  EXPECT_THAT(router_.counted.Text(), HasSubstr("refused_total{reason=\"bad_http\"} 1"));
  EXPECT_THAT(router_.counted.Text(), HasSubstr("{path=\"other\",code=\"400\"} 1\n"));
}

TEST_F(ConnectionTest, AClientThatTakesNothingIsClosed) {
  Open();
  Send(Post("/stream", ""));
  wire_->takes = false;
  router_.writer->StartStream({});
  router_.writer->Write("x");
  EXPECT_GT(router_.writer->pending_bytes(), 0u);
  Pass(settings_.write_time / 2);
  EXPECT_FALSE(closed_);
  Pass(settings_.write_time * 2);
  EXPECT_TRUE(closed_);
  EXPECT_TRUE(router_.handler->gone);
}

TEST_F(ConnectionTest, SilenceIsTold) {
  Open();
  Send(Post("/stream", ""));
  Pass(settings_.keep_alive_time / 2);
  EXPECT_EQ(router_.handler->silences, 0);
  Pass(settings_.keep_alive_time * 2);
  EXPECT_EQ(router_.handler->silences, 1);
  HangUp();
}

TEST_F(ConnectionTest, IdleConnectionsAreClosedAndSlowRequestsAnswered) {
  Open();
  Pass(settings_.idle_time * 2);
  EXPECT_TRUE(closed_);
  EXPECT_EQ(wire_->to_client, "");

  closed_ = false;
  Open();
  Send("POST /a HTT");
  Pass(settings_.request_time * 2);
  EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 408 "));
  EXPECT_TRUE(wire_->writes_shut);
  Pass(std::chrono::seconds(10));
  EXPECT_TRUE(closed_) << "it lingers only so long";
}

TEST_F(ConnectionTest, LimitsAreAnsweredBeforeTheConnectionEnds) {
  Open();
  Send(absl::StrCat("GET / HTTP/1.1\r\nX: ", std::string(Connection::kHeadBytesMax, 'x')));
  EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 431 "));
  HangUp();
  Open();
  Send(Post("/a", std::string(1001, 'x')));
  EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 413 "));
  EXPECT_EQ(router_.requests, 0);
  HangUp();
  Open();
  Send("hello\r\n\r\n");
  EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 400 "));
  HangUp();
}

// The parser takes each field that is whole, once a byte of the next has come.
TEST_F(ConnectionTest, AHeadThatComesFieldByFieldIsBounded) {
  const std::string field = absl::StrCat(": ", std::string(1000, 'x'), "\r\nX");
  const size_t most = Connection::kHeadBytesMax / field.size();
  Open();
  Send("GET /a HTTP/1.1\r\nX");
  for (size_t i = 1; i < most; ++i) {
    Send(field);
  }
  EXPECT_EQ(wire_->to_client, "");
  Send(field);
  Send(field);
  EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 431 "));
  HangUp();

  Open();
  Send("GET /a HTTP/1.1\r\nX");
  for (size_t i = 1; i < most; ++i) {
    Send(field);
  }
  Send(": y\r\n\r\n");
  EXPECT_THAT(wire_->to_client, EndsWith("GET /a? "));
}

TEST_F(ConnectionTest, EmptyLinesBeforeARequestArePassedOver) {
  Open();
  Send("\r\n" + Post("/a", "hello") + "\r\n");
  EXPECT_THAT(wire_->to_client, EndsWith("POST /a? hello"));
  Send("\r");
  Send("\n\r\nGET /b HTTP/1.1\r\n\r\n");
  EXPECT_THAT(wire_->to_client, EndsWith("GET /b? "));
  Send("\r\n");
  EXPECT_TRUE(connection_->idle_since().has_value());
  wire_->to_client.clear();
  Pass(settings_.idle_time * 2);
  EXPECT_TRUE(closed_);
  EXPECT_EQ(wire_->to_client, "");
}

// A page of another origin could not read an answer without the headers of its request.
TEST_F(ConnectionTest, ABodyThatIsTooLargeIsAnsweredAsWhatItsHeadAsksFor) {
  for (const std::string& rest :
       {std::string("Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n"),
        "Content-Length: 1001\r\n\r\n" + std::string(1001, 'x'),
        std::string("Transfer-Encoding: chunked\r\n\r\n3e9\r\n")}) {
    SCOPED_TRACE(rest);
    Open();
    Send("POST /a HTTP/1.1\r\n" + rest);
    EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 413 "));
    EXPECT_THAT(wire_->to_client, HasSubstr("x-mine: yes\r\n"));
    EXPECT_THAT(wire_->to_client, HasSubstr("x-error-of: /a\r\n"));
    HangUp();
  }
  EXPECT_EQ(router_.requests, 0);
  EXPECT_THAT(router_.counted.Text(), HasSubstr("{path=\"/a\",code=\"413\"} 3\n"));

  Open();
  Send("POST /refused HTTP/1.1\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 404 ")) << "a smaller one would be, too";
  HangUp();
}

TEST_F(ConnectionTest, AnErrorBehindARequestForAHeadHasItsBody) {
  Open();
  Send("HEAD /a HTTP/1.1\r\n\r\n");
  EXPECT_THAT(wire_->to_client, EndsWith("\r\n\r\n"));
  wire_->to_client.clear();
  Send("hello\r\n\r\n");
  EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(wire_->to_client, HasSubstr("\r\n\r\n{\"error\":"));
  HangUp();
}

TEST_F(ConnectionTest, ExtensionsOfChunksAndTrailersAreBounded) {
  const std::string head = "POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string much(2 * Connection::kHeadBytesMax, 'x');
  for (const std::string& body : {"1;a=" + much, "1\r\na\r\n0\r\nX: " + much}) {
    Open();
    Send(head + body);
    EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 431 "));
    HangUp();
  }
  EXPECT_EQ(router_.requests, 0);

  Open();
  Send(head + "1;a=" + std::string(8000, 'x') + "\r\na\r\n0\r\nX: " + std::string(8000, 'x') +
       "\r\n\r\n");
  EXPECT_THAT(wire_->to_client, EndsWith("POST /c? a"));
}

TEST_F(ConnectionTest, ARefusalDoesNotWaitForTheBody) {
  Open();
  Send("POST /refused HTTP/1.1\r\nContent-Length: 900\r\n\r\nabc");
  EXPECT_THAT(wire_->to_client, StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(wire_->to_client, HasSubstr("Connection: close"));
  HangUp();
  Open();
  Send("GET /refused HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
  EXPECT_THAT(wire_->to_client, EndsWith("GET /b? ")) << "it had read the whole of the first";
  HangUp();
}

TEST_F(ConnectionTest, ContinueIsSaidOnce) {
  Open();
  Send("POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(wire_->to_client, "HTTP/1.1 100 Continue\r\n\r\n");
  Send("hi");
  EXPECT_THAT(wire_->to_client, EndsWith("POST /a? hi"));
}

TEST_F(ConnectionTest, DrainingClosesAfterTheAnswer) {
  Open();
  Send(Post("/stream", ""));
  connection_->Drain();
  EXPECT_FALSE(closed_);
  router_.writer->Respond({.body = "{}"});
  Run();
  EXPECT_THAT(wire_->to_client, HasSubstr("Connection: close"));
  EXPECT_TRUE(closed_);

  closed_ = false;
  Open();
  connection_->Drain();
  EXPECT_TRUE(closed_) << "it was idle";
}

TEST_F(ConnectionTest, WhatIsSentAheadIsBounded) {
  Open();
  Send(Post("/stream", "") + std::string(1 << 20, 'x'));
  EXPECT_GT(wire_->to_server.size(), (1u << 20) - 2 * Connection::kAheadBytesMax);
  connection_->Tick(std::chrono::steady_clock::now());
}

TEST_F(ConnectionTest, MutatedRequestsNeverBreakIt) {
  std::mt19937 random(7);
  const std::string good =
      Post("/a", "hello") + "GET /b HTTP/1.1\r\nHost: h\r\n\r\n" +
      "POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  for (int round = 0; round < 3000; ++round) {
    closed_ = false;
    Open();
    std::string bytes = good;
    for (size_t left = 1 + random() % 4; left > 0; --left) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          bytes.erase(at, 1 + random() % 10);
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), 1 + random() % 10));
      }
    }
    wire_->read_max = 1 + random() % 40;
    Send(bytes);
    HangUp();
    Pass(std::chrono::hours(1));
    EXPECT_TRUE(closed_) << bytes;
    for (size_t at = 0; (at = wire_->to_client.find("HTTP/1.1 5", at)) != std::string::npos; ++at) {
      ADD_FAILURE() << "a server's error for " << bytes;
    }
  }
}

}  // namespace
}  // namespace lamina::gateway
