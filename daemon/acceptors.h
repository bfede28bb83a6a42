// SPDX-License-Identifier: Apache-2.0
//
// Acceptors: the sockets at which a daemon takes HTTP connections, one for each address of the host
// that it was told to listen at. A client takes whichever address of a name it likes first.
//
// Threading: that of the io_context. Its handlers may run until the io_context is done or gone.

#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/host_port.h"

namespace lamina::daemon {

class Acceptors {
 public:
  struct Handlers {
    std::function<void(boost::asio::ip::tcp::socket socket)> accepted;
    // No connection could be taken, most likely for want of file descriptors. Returns whether
    // there is room by now; the next attempt waits a little where there is none.
    std::function<bool(const boost::system::error_code& error)> failed;
  };

  explicit Acceptors(boost::asio::io_context& io);
  ~Acceptors();
  Acceptors(const Acceptors&) = delete;
  Acceptors& operator=(const Acceptors&) = delete;

  // The addresses of a host, at its port. None: `error` says why.
  std::vector<boost::asio::ip::tcp::endpoint> AddressesOf(const HostPort& at,
                                                          boost::system::error_code& error);
  // Listens at all of them, and no longer at those of a call before it. Port 0 is one that the
  // system picks, the same for all. 0.0.0.0 and :: are all addresses of both families, or those of
  // IPv4 where the host has no IPv6. Others that are not of this host are left out unless all are.
  // Requires: at least one address.
  // Returns why it listens at none: its port is in use at one of them, or none is of this host.
  boost::system::error_code Listen(const std::vector<boost::asio::ip::tcp::endpoint>& addresses);
  // That of Listen(), once it has succeeded.
  uint16_t port() const { return port_; }

  // Once, after Listen().
  void Start(Handlers handlers);
  // No handler is called any more.
  void Close();

 private:
  struct Place;

  boost::system::error_code ListenAtAll(
      const std::vector<boost::asio::ip::tcp::endpoint>& addresses);
  void Accept(Place& place);
  void AcceptLater(Place& place);

  boost::asio::io_context& io_;
  Handlers handlers_;
  std::vector<std::unique_ptr<Place>> places_;
  uint16_t port_ = 0;
  bool closed_ = false;
};

}  // namespace lamina::daemon
