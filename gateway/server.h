// SPDX-License-Identifier: Apache-2.0
//
// Server: accepts connections, keeps them, looks after their times, and lets them end.
//
// Threading: the gateway's. It must outlive every connection: run the io_context until it is done.
// Limits:    `connections_max` at a time; one more is told 503 and closed. Over TLS that takes a
//            handshake, for which kTurnedAwayMax have some seconds; others are closed without a
//            word.

#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/port_range.h"
#include "daemon/acceptors.h"
#include "gateway/connection.h"

namespace lamina::gateway {

// Errors: kInvalidArgument  the files cannot be read or do not belong together.
absl::Status LoadTlsFiles(const std::string& certificate, const std::string& key,
                          boost::asio::ssl::context& context);

class Server {
 public:
  static constexpr size_t kTurnedAwayMax = 64;

  // `tls` is null for plain HTTP; all references must outlive it.
  Server(boost::asio::io_context& io, const Connection::Settings& settings, RequestRouter& router,
         boost::asio::ssl::context* tls, size_t connections_max);

  // `listen`: host:port; port 0 picks one, of `ports`. A name is listened at by all its addresses.
  // Errors: kInvalidArgument  the host is not known here. kUnavailable  the port is taken.
  absl::Status Listen(const std::string& listen, const PortRange& ports = {});
  uint16_t port() const { return acceptors_.port(); }

  // Lets every request in hand end, then calls `done`. Until then new ones are still read, for the
  // router to refuse. Nobody waits for connections that come meanwhile: clients who come again and
  // again would keep the server for ever.
  void Drain(std::function<void()> done);

 private:
  using Connections = std::set<std::shared_ptr<Connection>>;

  absl::Status Bind(const std::string& listen);
  void OnAccepted(boost::asio::ip::tcp::socket socket);
  void TellOfFailure(const boost::system::error_code& error);
  bool MakeRoom();
  std::shared_ptr<Connection> Begin(boost::asio::ip::tcp::socket socket,
                                    const Connection::Settings& settings, RequestRouter& router,
                                    Connections& among);
  void TurnAway(boost::asio::ip::tcp::socket socket);
  std::vector<std::shared_ptr<Connection>> All() const;
  void Tick();
  void CheckDrained();

  boost::asio::io_context& io_;
  const Connection::Settings settings_;
  const Connection::Settings turned_away_settings_;
  RequestRouter& router_;
  const std::unique_ptr<RequestRouter> turned_away_router_;
  boost::asio::ssl::context* const tls_;
  const size_t connections_max_;
  daemon::Acceptors acceptors_;
  boost::asio::steady_timer ticker_;
  Connections connections_;
  Connections turned_away_;  // Over TLS: those that are told so.
  Connections awaited_;      // While it drains: those that there were when that began.
  std::function<void()> drained_;
  uint64_t accepts_failed_ = 0;  // Since the log said so.
  std::chrono::steady_clock::time_point tell_from_;
  bool draining_ = false;
};

}  // namespace lamina::gateway
