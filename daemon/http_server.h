// SPDX-License-Identifier: Apache-2.0
//
// HttpServer: the small HTTP port of a daemon, for /metrics and /health. Not for users' requests.
//
// Threading: a thread of its own runs the handler; one request at a time.
// Limits: kHttpConnectionsMax connections, kHttpHeaderBytesMax of a request's header, no bodies,
// kHttpIdleSeconds without a byte; what is beyond is closed.

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/port_range.h"

namespace lamina::daemon {

inline constexpr int kHttpConnectionsMax = 64;
inline constexpr int kHttpHeaderBytesMax = 8192;
inline constexpr int kHttpIdleSeconds = 10;

struct HttpAnswer {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  // Answers a GET of `target`, a path and maybe a query behind it. Status 404 for a path that is
  // not known.
  using Handler = std::function<HttpAnswer(absl::string_view target)>;

  // `listen`: host:port; port 0 picks one, of `ports`. A name is listened at by all its addresses.
  // Errors: kInvalidArgument  not host:port.
  //         kUnavailable      the port is taken, or the host is not ours.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& listen,
                                                           Handler handler,
                                                           const PortRange& ports = {});
  // Closes all connections.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // host:port, with the port that was picked.
  const std::string& address() const { return address_; }

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
  std::string address_;
};

// The handler of a daemon: /metrics from `metrics`, and /health, which is 200 while `health` is
// empty and 503 with its text otherwise. /health?live is 200 while the process lives.
HttpServer::Handler DaemonPages(std::function<std::string()> metrics,
                                std::function<std::string()> health);

// The health of a node: it is attached to its coordinator.
std::string AttachedOrWhyNot(bool attached);

}  // namespace lamina::daemon
