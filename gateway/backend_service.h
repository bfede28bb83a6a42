// SPDX-License-Identifier: Apache-2.0
//
// MakeGrpcBackend: the Backend that speaks lamina.v1 to a coordinator, over one channel that
// reconnects by itself.

#pragma once

#include <memory>
#include <string>

#include "common/tls.h"
#include "control/keepalive_service.h"
#include "gateway/backend.h"
#include "gateway/side_work.h"

namespace lamina::gateway {

// Limits: calls with one answer wait 30 s (Score 600 s); generations have no deadline but end with
// max_tokens. Errors are the coordinator's, code for code; kUnavailable when it cannot be reached,
// or answers no ping of `keepalive`, for what it journals only after kWaitMax of
// client::Resumption.
std::unique_ptr<Backend> MakeGrpcBackend(const std::string& server, PostFunction post,
                                         const TlsFiles& tls = {},
                                         const control::Keepalive& keepalive = {});

}  // namespace lamina::gateway
