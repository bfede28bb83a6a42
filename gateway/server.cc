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
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr char kFull[] =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    "Content-Length: 125\r\nConnection: close\r\n\r\n"
    R"({"error":{"message":"too many connections; try again later","type":"server_error","param":null,"code":"service_unavailable"}})";

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
      router_(router),
      tls_(tls),
      connections_max_(connections_max),
      acceptor_(io),
      ticker_(io),
      accept_pause_(io) {}

absl::Status Server::Listen(const std::string& listen, const PortRange& ports) {
  LAMINA_RETURN_IF_ERROR(
      OpenWithin(ports, listen, [this](const std::string& address) { return Bind(address); }));
  Accept();
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
  tcp::resolver resolver(io_);
  const auto found =
      resolver.resolve(at->host, absl::StrCat(at->port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("gateway.listen '", listen, "': ", error.message()));
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.close(error);  // It may be open on a port that was tried before.
  acceptor_.open(endpoint.protocol(), error);
  if (!error) {
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  }
  if (!error) {
    acceptor_.bind(endpoint, error);
  }
  if (!error) {
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat("could not listen on ", listen, ": ",
                                               error.message(), "; choose another gateway.listen"));
  }
  port_ = acceptor_.local_endpoint(error).port();
  return absl::OkStatus();
}

void Server::Accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    OnAccepted(error, std::move(socket));
  });
}

void Server::OnAccepted(const error_code& error, tcp::socket socket) {
  if (error == asio::error::operation_aborted) {
    return;
  }
  if (error) {
    // Most likely out of file descriptors: others will end.
    TellOfFailure(error);
    if (MakeRoom()) {
      Accept();
      return;
    }
    accept_pause_.expires_after(kAcceptPause);
    accept_pause_.async_wait([this](const error_code& stopped) {
      if (!stopped) {
        Accept();
      }
    });
    return;
  }
  if (connections_.size() >= connections_max_ && !MakeRoom()) {
    TurnAway(std::move(socket));
  } else {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
    auto stream = tls_ == nullptr ? MakePlainStream(std::move(socket))
                                  : MakeTlsStream(std::move(socket), *tls_);
    const auto connection = std::make_shared<Connection>(io_, std::move(stream), settings_, router_,
                                                         [this](const auto& closed) {
                                                           connections_.erase(closed);
                                                           CheckDrained();
                                                         });
    connections_.insert(connection);
    connection->Start();
    if (draining_) {
      connection->Drain();
    }
  }
  Accept();
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

// In one write, without waiting: a client that cannot take so little learns nothing.
void Server::TurnAway(tcp::socket socket) const {
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
    const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
    for (const std::shared_ptr<Connection>& connection : all) {
      connection->Tick(now);
    }
    Tick();
  });
}

void Server::Drain(std::function<void()> done) {
  draining_ = true;
  drained_ = std::move(done);
  const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
  for (const std::shared_ptr<Connection>& connection : all) {
    connection->Drain();
  }
  CheckDrained();
}

void Server::CheckDrained() {
  if (draining_ && connections_.empty() && drained_ != nullptr) {
    error_code ignored;
    acceptor_.close(ignored);
    ticker_.cancel();
    accept_pause_.cancel();
    asio::post(io_, std::exchange(drained_, nullptr));
  }
}

}  // namespace lamina::gateway
