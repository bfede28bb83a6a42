// SPDX-License-Identifier: Apache-2.0
//
// Brings what the gRPC library logs into our log, so that a daemon's lines have one form.

#pragma once

namespace lamina::daemon {

// Call once, before the library is used.
void RouteGrpcLog();

}  // namespace lamina::daemon
