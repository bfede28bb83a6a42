// SPDX-License-Identifier: Apache-2.0
#include "control/keepalive_service.h"

namespace lamina::control {
namespace {

int InMillis(Nanos time) { return static_cast<int>(time / Millis(1)); }

}  // namespace

void SetKeepalive(const Keepalive& keepalive, grpc::ChannelArguments& arguments) {
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, InMillis(keepalive.interval));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, InMillis(keepalive.timeout));
  // The library pings twice, and then no more, while a call sends nothing: a stream of tokens does
  // not after its request.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

void AllowKeepalive(const Keepalive& keepalive, grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             InMillis(keepalive.interval / 2));
}

}  // namespace lamina::control
