// SPDX-License-Identifier: Apache-2.0
#include "daemon/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "daemon/acceptors.h"

namespace lamina::daemon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

// One connection. Lives as long as an operation of it is under way.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const HttpServer::Handler& handler, int* open)
      : stream_(std::move(socket)), handler_(handler), open_(open) {
    ++*open_;
  }
  ~Connection() { --*open_; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Read() {
    parser_.emplace();
    parser_->header_limit(kHttpHeaderBytesMax);
    parser_->body_limit(0);
    stream_.expires_after(std::chrono::seconds(kHttpIdleSeconds));
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](beast::error_code error, size_t) {
                       if (!error) {
                         self->Answer();
                       }
                     });
  }

 private:
  void Answer() {
    const auto& request = parser_->get();
    HttpAnswer answer{.status = 405, .body = "only GET\n"};
    if (request.method() == http::verb::get || request.method() == http::verb::head) {
      answer = handler_(std::string(request.target()));
    }
    response_ = {};
    response_.version(request.version());
    response_.result(static_cast<unsigned>(answer.status));
    response_.set(http::field::server, absl::StrCat("lamina/", kVersion));
    response_.set(http::field::content_type, answer.content_type);
    response_.keep_alive(request.keep_alive());
    response_.content_length(answer.body.size());
    if (request.method() != http::verb::head) {
      response_.body() = std::move(answer.body);
    }
    http::async_write(stream_, response_,
                      [self = shared_from_this()](beast::error_code error, size_t) {
                        if (!error && self->response_.keep_alive()) {
                          self->Read();
                        }
                      });
  }

  beast::tcp_stream stream_;
  const HttpServer::Handler& handler_;
  int* const open_;
  beast::flat_buffer buffer_{kHttpHeaderBytesMax};
  std::optional<http::request_parser<http::empty_body>> parser_;
  http::response<http::string_body> response_;
};

}  // namespace

struct HttpServer::Impl {
  explicit Impl(Handler h) : handler(std::move(h)) {}

  void Accept() {
    acceptors.Start(
        {.accepted =
             [this](tcp::socket socket) {
               if (open < kHttpConnectionsMax) {
                 std::make_shared<Connection>(std::move(socket), handler, &open)->Read();
               }
             },
         .failed =
             [](const beast::error_code& error) {
               // Most likely out of file descriptors: others will end.
               LogWarning("accept for metrics: ", error.message());
               return false;
             }});
  }

  // `listen` is host:port.
  absl::Status Listen(const std::string& listen) {
    const std::optional<HostPort> at = ParseHostPort(listen);
    if (!at.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("'", listen, "' is not host:port"));
    }
    beast::error_code error;
    const std::vector<tcp::endpoint> addresses = acceptors.AddressesOf(*at, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot resolve ", at->host, ": ", error.message()));
    }
    error = acceptors.Listen(addresses);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("could not listen on ", listen, ": ", error.message(),
                       "; choose another http for this daemon, in the cluster file or by --set"));
    }
    return absl::OkStatus();
  }

  const Handler handler;
  int open = 0;  // Connections; this server's thread. Outlives those of the context.
  asio::io_context context{1};
  Acceptors acceptors{context};
  std::thread thread;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  impl_->context.stop();
  impl_->thread.join();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen,
                                                              Handler handler,
                                                              const PortRange& ports) {
  auto impl = std::make_unique<Impl>(std::move(handler));
  LAMINA_RETURN_IF_ERROR(OpenWithin(
      ports, listen, [&impl](const std::string& address) { return impl->Listen(address); }));
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(impl)));
  server->address_ = WithPort(listen, server->impl_->acceptors.port());
  server->impl_->Accept();
  server->impl_->thread = std::thread([impl = server->impl_.get()] { impl->context.run(); });
  LogInfo("metrics at http://", server->address_, "/metrics");
  return server;
}

HttpServer::Handler DaemonPages(std::function<std::string()> metrics,
                                std::function<std::string()> health) {
  return [metrics = std::move(metrics),
          health = std::move(health)](absl::string_view target) -> HttpAnswer {
    const absl::string_view path = target.substr(0, target.find('?'));
    if (target == "/health?live") {
      return {.body = "live\n"};
    }
    if (path == "/metrics") {
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics()};
    }
    if (path == "/health") {
      const std::string problem = health();
      return problem.empty() ? HttpAnswer{.body = "ok\n"}
                             : HttpAnswer{.status = 503, .body = absl::StrCat(problem, "\n")};
    }
    return {.status = 404, .body = "here are /metrics and /health\n"};
  };
}

std::string AttachedOrWhyNot(bool attached) {
  return attached ? "" : "not attached to the coordinator";
}

}  // namespace lamina::daemon
