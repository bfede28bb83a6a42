// SPDX-License-Identifier: Apache-2.0
//
// The status of a cluster as JSON: `lamina status --json`, `lamina top --json`, and the gateway's
// /v1/lamina/status.

#pragma once

#include "client/client.h"
#include "nlohmann/json.hpp"

namespace lamina::cli {

nlohmann::ordered_json ToJson(const client::ClusterStatus& status);

}  // namespace lamina::cli
