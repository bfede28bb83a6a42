// SPDX-License-Identifier: Apache-2.0
#include "coordinator/front_door_service.h"

#include <utility>

#include "common/status_macros.h"

namespace lamina::coordinator {
namespace {

// For the first words of a client, so that connections that say nothing do not stay.
constexpr int kHandshakeMillis = 20'000;

}  // namespace

absl::StatusOr<std::unique_ptr<FrontDoor>> FrontDoor::Open(const std::string& listen, bool tls) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, Listener::Open(listen));
  return std::unique_ptr<FrontDoor>(new FrontDoor(std::move(listener), tls));
}

void FrontDoor::AddTo(grpc::ServerBuilder& builder, int streams_max,
                      const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillis);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, streams_max);
  // The library bounds a message before it decompresses it, and not what comes out, which may be a
  // thousand times as large: so it decompresses nothing, and says so to who asks for it.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, /*enabled=*/false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, /*enabled=*/false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

void FrontDoor::Start() {
  first_byte_.Start([this](OwnedFd connection) {
    // The library owns the descriptor from here on, and closes it with the connection.
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.fd = connection.Release();
    acceptor_->HandleNewConnection(&parameters);
  });
  listener_->Start([this](OwnedFd connection) { first_byte_.Add(std::move(connection)); });
}

}  // namespace lamina::coordinator
