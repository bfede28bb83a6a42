// SPDX-License-Identifier: Apache-2.0
//
// Keepalive: pings of nodes, gateways and clients to the coordinator, so that they notice when its
// host vanished without a word (power, a cable). A coordinator that ends is noticed at once without
// them, and a node that vanished by its missing status. Without a call under way nothing is sent.

#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "common/clock.h"

namespace lamina::control {

struct Keepalive {
  Nanos interval = Seconds(10);  // Since the last word of the coordinator.
  Nanos timeout = Seconds(20);   // Without an answer the stream ends as if it had gone.
};

// The end of who calls.
void SetKeepalive(const Keepalive& keepalive, grpc::ChannelArguments& arguments);

// The coordinator's: without it, a server may end the connection of who pings so often.
void AllowKeepalive(const Keepalive& keepalive, grpc::ServerBuilder& builder);

}  // namespace lamina::control
