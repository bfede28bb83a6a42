// SPDX-License-Identifier: Apache-2.0
//
// TopView: one picture of `lamina top`: what the cluster did between two looks at it.

#pragma once

#include <string>

#include "client/cli/terminal.h"
#include "client/client.h"

namespace lamina::cli {

// Of a terminal; no line is longer, save for names that are.
inline constexpr int kTopColumns = 80;

// Lines with their ends. `before` may be null: rates are then 0. `seconds`: between the two.
std::string TopView(const client::ClusterStatus& now, const client::ClusterStatus* before,
                    double seconds, const Terminal& terminal);

}  // namespace lamina::cli
