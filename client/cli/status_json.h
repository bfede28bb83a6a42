// SPDX-License-Identifier: Apache-2.0
//
// The status of a cluster as `lamina status --json` and `lamina top --json` print it.

#pragma once

#include "client/cli/command.h"

namespace lamina::cli {

Json ToJson(const client::ClusterStatus& status);

}  // namespace lamina::cli
