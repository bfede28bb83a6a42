// SPDX-License-Identifier: Apache-2.0
//
// ByteStream: an accepted connection as bytes, plain or under TLS.
//
// Threading: the gateway's. Functions given are called later, in that thread, never from inside the
// call; after Close() at most with an error. They keep what they capture alive until then.

#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lamina::gateway {

class ByteStream {
 public:
  using Done = std::function<void(boost::system::error_code error, size_t bytes)>;

  virtual ~ByteStream() = default;
  // Before anything else.
  virtual void Handshake(Done done) = 0;
  // At most one of each at a time. The memory must live until `done`.
  virtual void ReadSome(absl::Span<char> into, Done done) = 0;
  virtual void WriteSome(absl::string_view bytes, Done done) = 0;
  // Says to the peer that nothing more comes; reading goes on.
  virtual void ShutDownWrites() = 0;
  virtual void Close() = 0;
};

std::unique_ptr<ByteStream> MakePlainStream(boost::asio::ip::tcp::socket socket);
// `context` must outlive the stream.
std::unique_ptr<ByteStream> MakeTlsStream(boost::asio::ip::tcp::socket socket,
                                          boost::asio::ssl::context& context);

}  // namespace lamina::gateway
