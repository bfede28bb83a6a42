// SPDX-License-Identifier: Apache-2.0
#include "daemon/acceptor.h"

#include <boost/asio/ip/v6_only.hpp>

namespace lamina::daemon {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

error_code ListenAtOne(const tcp::endpoint& endpoint, tcp::acceptor& acceptor) {
  error_code error;
  acceptor.close(error);
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

}  // namespace

error_code ListenAt(const tcp::endpoint& endpoint, tcp::acceptor& acceptor) {
  if (!endpoint.address().is_unspecified()) {
    return ListenAtOne(endpoint, acceptor);
  }
  const error_code error = ListenAtOne({tcp::v6(), endpoint.port()}, acceptor);
  return error ? ListenAtOne({tcp::v4(), endpoint.port()}, acceptor) : error;
}

}  // namespace lamina::daemon
