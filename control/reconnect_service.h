// SPDX-License-Identifier: Apache-2.0
//
// How channels to a coordinator connect, and connect again: nodes, the gateway and clients.

#pragma once

#include <grpcpp/support/channel_arguments.h>

namespace lamina::control {

// The coordinator's name is looked up at each attempt to connect, at most once a second, and an
// attempt at an address that says nothing ends after three: so a coordinator that moved to another
// address is found within seconds. The library's own figures are 30 and 20 seconds. A web proxy of
// the environment does not come between.
void SetReconnect(grpc::ChannelArguments& arguments);

}  // namespace lamina::control
