// SPDX-License-Identifier: Apache-2.0
//
// Keepalive: a node's pings to its coordinator, so that it notices when the coordinator's host
// vanished without a word (power, a cable). A coordinator that ends is noticed at once without
// them, and a node that vanished by its missing status.

#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "common/clock.h"

namespace lamina::control {

struct Keepalive {
  Nanos interval = Seconds(10);  // Since the last word of the coordinator.
  Nanos timeout = Seconds(20);   // Without an answer the stream ends as if it had gone.
};

// The node's end.
void SetKeepalive(const Keepalive& keepalive, grpc::ChannelArguments& arguments);

// The coordinator's: without it, a server may end the connection of who pings so often.
void AllowKeepalive(const Keepalive& keepalive, grpc::ServerBuilder& builder);

}  // namespace lamina::control
