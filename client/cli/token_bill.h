// SPDX-License-Identifier: Apache-2.0
//
// What tokens cost on a running cluster: from two of its statuses, or from one since it started.

#pragma once

#include <optional>

#include "client/client.h"
#include "cost/token_price.h"
#include "nlohmann/json.hpp"

namespace lamina::cli {

// The bill of the `seconds` between the two; none where the cluster file has no prices, or the
// coordinator is another one than before.
std::optional<cost::TokenBill> BillBetween(const client::ClusterStatus& before,
                                           const client::ClusterStatus& after, double seconds);

// {"hourly", "input", "output", "cached", "per_million_input", "per_million_output",
// "per_million_cached"}; null of none. In the cluster file's currency.
nlohmann::json BillToJson(const client::ClusterStatus& status,
                          const std::optional<cost::TokenBill>& bill);

}  // namespace lamina::cli
