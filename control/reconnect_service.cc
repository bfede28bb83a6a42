// SPDX-License-Identifier: Apache-2.0
#include "control/reconnect_service.h"

namespace lamina::control {
namespace {

constexpr int kLookUpPauseMillis = 1000;
// A first packet that is lost is sent again after one second.
constexpr int kConnectMillisMax = 3000;

}  // namespace

void SetReconnect(grpc::ChannelArguments& arguments) {
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kLookUpPauseMillis);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMillisMax);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
}

}  // namespace lamina::control
