// SPDX-License-Identifier: Apache-2.0
#include "client/cli/token_bill.h"

namespace lamina::cli {
namespace {

constexpr double kSecondsPerHour = 3600;

cost::PoolPrices PricesOf(const client::ClusterStatus& status) {
  return {.compute = status.token_cost.compute_price,
          .prompts = status.token_cost.prompts_price,
          .memory = status.token_cost.memory_price};
}

using Work = client::ClusterStatus::TokenCost::Work;

cost::Work Between(const Work& before, const Work& after) {
  return {.input = after.input - before.input,
          .output = after.output - before.output,
          .cached = after.cached - before.cached};
}

}  // namespace

std::optional<cost::TokenBill> BillBetween(const client::ClusterStatus& before,
                                           const client::ClusterStatus& after, double seconds) {
  const auto& old = before.token_cost;
  const auto& now = after.token_cost;
  const bool same = now.input_tokens >= old.input_tokens &&
                    after.tokens_generated >= before.tokens_generated &&
                    now.compute.output >= old.compute.output;
  if (PricesOf(after).total() <= 0 || !same) {
    return std::nullopt;
  }
  return cost::BillOfPools(
      PricesOf(after),
      {.compute = Between(old.compute, now.compute), .memory = Between(old.memory, now.memory)},
      seconds / kSecondsPerHour,
      {.input = static_cast<double>(now.input_tokens - old.input_tokens),
       .output = static_cast<double>(after.tokens_generated - before.tokens_generated),
       .cached = static_cast<double>(now.cached_tokens - old.cached_tokens)});
}

nlohmann::json BillToJson(const client::ClusterStatus& status,
                          const std::optional<cost::TokenBill>& bill) {
  if (!bill.has_value()) {
    return nullptr;
  }
  return {{"hourly", PricesOf(status).total()},
          {"input", bill->input},
          {"output", bill->output},
          {"cached", bill->cached},
          {"per_million_input", bill->per_million_input},
          {"per_million_output", bill->per_million_output},
          {"per_million_cached", bill->per_million_cached}};
}

}  // namespace lamina::cli
