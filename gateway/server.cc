// SPDX-License-Identifier: Apache-2.0
#include "gateway/server.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace lamina::gateway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kTick = std::chrono::milliseconds(100);
// What the kernel keeps for a slow reader; left to itself it would grow to megabytes.
constexpr int kSendBufferBytes = 64 << 10;
constexpr auto kTellPause = std::chrono::seconds(10);
// What a handshake, a request and an answer may take, each, of who is turned away.
constexpr auto kTurnedAwayTime = std::chrono::seconds(2);
constexpr char kFull[] =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    "Content-Length: 125\r\nConnection: close\r\n\r\n"
    R"({"error":{"message":"too many connections; try again later","type":"server_error","param":null,"code":"service_unavailable"}})";

// Tells every request that there is no room.
class FullRouter final : public RequestRouter {
 public:
  explicit FullRouter(RequestRouter& router) : router_(router) {}

  std::optional<HttpResponse> Refuse(const HttpRequest& head) override {
    HttpResponse response =
        ErrorOf(head.path, absl::UnavailableError("too many connections; try again later"));
    response.headers = {{"Retry-After", "1"}};
    return response;
  }
  HttpResponse ErrorOf(const std::string& path, const absl::Status& status) const override {
    return router_.ErrorOf(path, status);
  }
  HttpHeaders HeadersFor(HttpRequest& head) override { return router_.HeadersFor(head); }
  std::string RouteOf(const std::string& path) const override { return router_.RouteOf(path); }
  GatewayMetrics& metrics() override { return router_.metrics(); }
  std::shared_ptr<RequestHandler> Handle(HttpRequest request, ResponseWriter& writer) override {
    writer.Respond(*Refuse(request));
    return nullptr;
  }

 private:
  RequestRouter& router_;
};

Connection::Settings TurnedAwaySettings(Connection::Settings settings) {
  settings.request_time = kTurnedAwayTime;
  settings.idle_time = kTurnedAwayTime;
  settings.write_time = kTurnedAwayTime;
  return settings;
}

}  // namespace

absl::Status LoadTlsFiles(const std::string& certificate, const std::string& key,
                          asio::ssl::context& context) {
  error_code error;
  context.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                      asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                      asio::ssl::context::no_tlsv1_1);
  context.use_certificate_chain_file(certificate, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("gateway.tls_certificate '", certificate, "': ", error.message()));
  }
  context.use_private_key_file(key, asio::ssl::context::pem, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("gateway.tls_key '", key, "': ", error.message()));
  }
  return absl::OkStatus();
}

Server::Server(asio::io_context& io, const Connection::Settings& settings, RequestRouter& router,
               asio::ssl::context* tls, size_t connections_max)
    : io_(io),
      settings_(settings),
      turned_away_settings_(TurnedAwaySettings(settings)),
      router_(router),
      turned_away_router_(std::make_unique<FullRouter>(router)),
      tls_(tls),
      connections_max_(connections_max),
      acceptors_(io),
      ticker_(io) {}

absl::Status Server::Listen(const std::string& listen, const PortRange& ports) {
  LAMINA_RETURN_IF_ERROR(
      OpenWithin(ports, listen, [this](const std::string& address) { return Bind(address); }));
  acceptors_.Start({.accepted = [this](tcp::socket socket) { OnAccepted(std::move(socket)); },
                    .failed =
                        [this](const error_code& error) {
                          // Most likely out of file descriptors: others will end.
                          TellOfFailure(error);
                          return MakeRoom();
                        }});
  Tick();
  return absl::OkStatus();
}

absl::Status Server::Bind(const std::string& listen) {
  const std::optional<HostPort> at = ParseHostPort(listen);
  if (!at.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("gateway.listen '", listen, "' is not host:port"));
  }
  error_code error;
  const std::vector<tcp::endpoint> addresses = acceptors_.AddressesOf(*at, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("gateway.listen '", listen, "': ", error.message()));
  }
  error = acceptors_.Listen(addresses);
  if (error) {
    return absl::UnavailableError(absl::StrCat("could not listen on ", listen, ": ",
                                               error.message(), "; choose another gateway.listen"));
  }
  return absl::OkStatus();
}

void Server::OnAccepted(tcp::socket socket) {
  if (connections_.size() >= connections_max_ && !MakeRoom()) {
    TurnAway(std::move(socket));
  } else {
    const auto connection = Begin(std::move(socket), settings_, router_, connections_);
    if (draining_) {
      connection->Drain();
    }
  }
}

std::shared_ptr<Connection> Server::Begin(tcp::socket socket, const Connection::Settings& settings,
                                          RequestRouter& router, Connections& among) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  auto stream = tls_ == nullptr ? MakePlainStream(std::move(socket))
                                : MakeTlsStream(std::move(socket), *tls_);
  auto connection = std::make_shared<Connection>(io_, std::move(stream), settings, router,
                                                 [this, &among](const auto& closed) {
                                                   among.erase(closed);
                                                   awaited_.erase(closed);
                                                   CheckDrained();
                                                 });
  among.insert(connection);
  connection->Start();
  return connection;
}

// Strangers who connect without end shall not fill the log.
void Server::TellOfFailure(const error_code& error) {
  ++accepts_failed_;
  const auto now = std::chrono::steady_clock::now();
  if (now >= tell_from_) {
    LogWarning("accept: ", error.message(), " (", accepts_failed_,
               " times since the last warning)");
    accepts_failed_ = 0;
    tell_from_ = now + kTellPause;
  }
}

// The connection that has been idle for longest gives way: its client can open another, and idle
// ones shall not keep health checks out. False: none is idle.
bool Server::MakeRoom() {
  std::shared_ptr<Connection> longest;
  for (const std::shared_ptr<Connection>& connection : connections_) {
    const auto since = connection->idle_since();
    if (since.has_value() && (longest == nullptr || *since < *longest->idle_since())) {
      longest = connection;
    }
  }
  if (longest != nullptr) {
    longest->GiveWay();
  }
  return longest != nullptr;
}

// In one write, without waiting: a client that cannot take so little learns nothing. Over TLS by a
// connection that ends with its first answer, as one that comes while the server drains.
void Server::TurnAway(tcp::socket socket) {
  if (tls_ != nullptr && turned_away_.size() < kTurnedAwayMax) {
    Begin(std::move(socket), turned_away_settings_, *turned_away_router_, turned_away_)->Drain();
    return;
  }
  error_code ignored;
  socket.non_blocking(true, ignored);
  if (tls_ == nullptr) {
    socket.write_some(asio::buffer(kFull, sizeof(kFull) - 1), ignored);
  }
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

void Server::Tick() {
  ticker_.expires_after(kTick);
  ticker_.async_wait([this](const error_code& error) {
    if (error) {
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    for (const std::shared_ptr<Connection>& connection : All()) {
      connection->Tick(now);
    }
    Tick();
  });
}

void Server::Drain(std::function<void()> done) {
  draining_ = true;
  drained_ = std::move(done);
  const std::vector<std::shared_ptr<Connection>> all = All();
  awaited_.insert(all.begin(), all.end());
  for (const std::shared_ptr<Connection>& connection : all) {
    connection->Drain();
  }
  CheckDrained();
}

// A copy, since connections may end while it is gone through.
std::vector<std::shared_ptr<Connection>> Server::All() const {
  std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
  all.insert(all.end(), turned_away_.begin(), turned_away_.end());
  return all;
}

void Server::CheckDrained() {
  if (!draining_ || !awaited_.empty() || drained_ == nullptr) {
    return;
  }
  std::function<void()> drained = std::exchange(drained_, nullptr);
  acceptors_.Close();
  ticker_.cancel();
  for (const std::shared_ptr<Connection>& newcomer : All()) {
    newcomer->GiveWay();
  }
  asio::post(io_, std::move(drained));
}

}  // namespace lamina::gateway
