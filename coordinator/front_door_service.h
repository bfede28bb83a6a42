// SPDX-License-Identifier: Apache-2.0
//
// FrontDoor: how connections come to the coordinator's gRPC server, and what they may cost. The
// library closes its own listening socket for good when a descriptor is missing once, so it is
// given connections that a Listener of ours has accepted.
//
// Threading: one thread.

#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/first_byte.h"
#include "coordinator/heap_trimmer.h"
#include "coordinator/listener.h"

namespace lamina::coordinator {

class FrontDoor {
 public:
  // `tls`: who speaks in the clear is turned away; else who speaks TLS.
  // Errors: of Listener::Open.
  static absl::StatusOr<std::unique_ptr<FrontDoor>> Open(const std::string& listen,
                                                         bool tls = false);

  // Has the server take connections from here, each with up to `streams_max` calls at a time. A
  // call whose messages are compressed ends with UNIMPLEMENTED. Once, before it is built.
  void AddTo(grpc::ServerBuilder& builder, int streams_max,
             const std::shared_ptr<grpc::ServerCredentials>& credentials);
  // Lets them in. After the server was built.
  void Start();
  // Lets nobody in any more. Before the server is shut down, which would leave them waiting.
  void Stop() {
    listener_->Stop();
    first_byte_.Stop();
  }

  uint16_t port() const { return listener_->port(); }
  // As of Listener.
  std::optional<Nanos> SinceLastByte(const std::string& peer) const {
    return listener_->SinceLastByte(peer);
  }

 private:
  FrontDoor(std::unique_ptr<Listener> listener, bool tls)
      : first_byte_(tls), listener_(std::move(listener)) {}

  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  const HeapTrimmer trimmer_;                 // Frees what calls of strangers left behind.
  FirstByte first_byte_;                      // Calls the acceptor.
  const std::unique_ptr<Listener> listener_;  // Ends first: it calls what is above.
};

}  // namespace lamina::coordinator
