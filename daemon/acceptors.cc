// SPDX-License-Identifier: Apache-2.0
#include "daemon/acceptors.h"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <string>
#include <utility>

namespace lamina::daemon {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Between two attempts to accept without a descriptor to be had.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// Ports that the system picks at one address until one is free at the others, too.
constexpr int kPicksMax = 16;

error_code ListenAtOne(const tcp::endpoint& endpoint, tcp::acceptor& acceptor) {
  error_code error;
  error_code ignored;
  acceptor.close(ignored);
  acceptor.open(endpoint.protocol(), error);
  if (!error) {
    acceptor.set_option(asio::socket_base::reuse_address(true), error);
  }
  if (!error && endpoint.protocol() == tcp::v6() && endpoint.address().is_unspecified()) {
    acceptor.set_option(asio::ip::v6_only(false), error);
  }
  if (!error) {
    acceptor.bind(endpoint, error);
  }
  if (!error) {
    acceptor.listen(asio::socket_base::max_listen_connections, error);
  }
  return error;
}

error_code ListenAt(const tcp::endpoint& endpoint, tcp::acceptor& acceptor) {
  if (!endpoint.address().is_unspecified()) {
    return ListenAtOne(endpoint, acceptor);
  }
  const error_code error = ListenAtOne({tcp::v6(), endpoint.port()}, acceptor);
  return error ? ListenAtOne({tcp::v4(), endpoint.port()}, acceptor) : error;
}

}  // namespace

struct Acceptors::Place {
  explicit Place(asio::io_context& io) : acceptor(io), pause(io) {}

  tcp::acceptor acceptor;
  asio::steady_timer pause;  // Until the next attempt.
};

Acceptors::Acceptors(asio::io_context& io) : io_(io) {}

Acceptors::~Acceptors() = default;

std::vector<tcp::endpoint> Acceptors::AddressesOf(const HostPort& at, error_code& error) {
  tcp::resolver resolver(io_);
  const tcp::resolver::results_type found =
      resolver.resolve(at.host, std::to_string(at.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  std::vector<tcp::endpoint> addresses;
  for (const auto& each : found) {
    const tcp::endpoint endpoint = each.endpoint();
    // A file of hosts may have one twice.
    if (std::find(addresses.begin(), addresses.end(), endpoint) == addresses.end()) {
      addresses.push_back(endpoint);
    }
  }
  if (!error && addresses.empty()) {
    error = asio::error::host_not_found;
  }
  return addresses;
}

error_code Acceptors::Listen(const std::vector<tcp::endpoint>& addresses) {
  error_code error = ListenAtAll(addresses);
  const bool picked = addresses.front().port() == 0;
  for (int i = 1; picked && error == asio::error::address_in_use && i < kPicksMax; ++i) {
    error = ListenAtAll(addresses);
  }
  return error;
}

error_code Acceptors::ListenAtAll(const std::vector<tcp::endpoint>& addresses) {
  places_.clear();
  port_ = addresses.front().port();
  error_code first_error;
  for (tcp::endpoint address : addresses) {
    address.port(port_);
    auto place = std::make_unique<Place>(io_);
    error_code error = ListenAt(address, place->acceptor);
    if (error == asio::error::address_in_use) {
      places_.clear();  // Another would answer some of the clients.
      return error;
    }
    if (!error) {
      port_ = place->acceptor.local_endpoint(error).port();
    }
    if (!error) {
      places_.push_back(std::move(place));
    } else if (!first_error) {
      first_error = error;
    }
  }
  return places_.empty() ? first_error : error_code();
}

void Acceptors::Start(Handlers handlers) {
  handlers_ = std::move(handlers);
  for (const std::unique_ptr<Place>& place : places_) {
    Accept(*place);
  }
}

void Acceptors::Accept(Place& place) {
  place.acceptor.async_accept([this, &place](const error_code& error, tcp::socket socket) {
    if (closed_) {
      return;
    }
    if (!error) {
      handlers_.accepted(std::move(socket));
    } else if (!handlers_.failed(error)) {
      AcceptLater(place);
      return;
    }
    if (!closed_) {
      Accept(place);
    }
  });
}

void Acceptors::AcceptLater(Place& place) {
  place.pause.expires_after(kAcceptPause);
  place.pause.async_wait([this, &place](const error_code&) {
    if (!closed_) {
      Accept(place);
    }
  });
}

void Acceptors::Close() {
  closed_ = true;
  for (const std::unique_ptr<Place>& place : places_) {
    error_code ignored;
    place->acceptor.close(ignored);
    place->pause.cancel();
  }
}

}  // namespace lamina::daemon
