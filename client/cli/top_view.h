// SPDX-License-Identifier: Apache-2.0
//
// TopView: one picture of `lamina top`: what the cluster did between two looks at it.

#pragma once

#include <optional>
#include <string>

#include "client/cli/terminal.h"
#include "client/client.h"

namespace lamina::cli {

// Width of a terminal; no line is longer, save for names that are.
inline constexpr int kTopColumns = 80;

// Lines with their ends. `before` may be null: rates are then 0. `seconds`: between the two.
// Percentiles are of what came since `earlier`, of all so far where that is null.
std::string TopView(const client::ClusterStatus& now, const client::ClusterStatus* before,
                    double seconds, const Terminal& terminal,
                    const client::ClusterStatus* earlier = nullptr);

// The value below which that share of the values lies that came after `before`: read between the
// bounds as if values were spread evenly there; the highest bound for what is above all. Nothing
// where no value came, or what is said does not fit together.
std::optional<double> Quantile(const client::Distribution& now, const client::Distribution& before,
                               double share);

}  // namespace lamina::cli
