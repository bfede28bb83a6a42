// SPDX-License-Identifier: Apache-2.0
//
// The socket at which a daemon takes HTTP connections.

#pragma once

#include <boost/asio/ip/tcp.hpp>

namespace lamina::daemon {

// Listens at `endpoint`; an acceptor that is open, on a port that was tried before, is closed
// first. 0.0.0.0 and :: are all addresses of both families, or those of IPv4 where the host has no
// IPv6.
boost::system::error_code ListenAt(const boost::asio::ip::tcp::endpoint& endpoint,
                                   boost::asio::ip::tcp::acceptor& acceptor);

}  // namespace lamina::daemon
