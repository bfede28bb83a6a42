// SPDX-License-Identifier: Apache-2.0
#include "cost/token_price.h"

#include <algorithm>

namespace lamina::cost {
namespace {

constexpr double kMillion = 1e6;

double PerMillion(double cost, double tokens) { return tokens > 0 ? kMillion * cost / tokens : 0; }

// Adds `cost` to the bill in the proportion of `work`. Returns whether there was any.
bool Add(double cost, double input, double output, double cached, TokenBill& bill) {
  const double work = input + output + cached;
  if (work <= 0) {
    return false;
  }
  bill.input += cost * input / work;
  bill.output += cost * output / work;
  bill.cached += cost * cached / work;
  return true;
}

}  // namespace

StepShares ShapleyShares(double both, double prompts, double rows) {
  const double input = std::clamp(0.5 * (prompts + both - rows), 0.0, both);
  return {.input = input, .output = both - input};
}

TokenBill ShareBill(absl::Span<const MachineWork> machines, double hours,
                    const TokenCounts& tokens) {
  TokenBill bill;
  double idle = 0;
  for (const MachineWork& machine : machines) {
    const double cost = machine.price_per_hour * hours;
    if (!Add(cost, machine.input, machine.output, machine.cached, bill)) {
      idle += cost;
    }
  }
  const TokenBill busy = bill;
  if (!Add(idle, busy.input, busy.output, busy.cached, bill) &&
      !Add(idle, tokens.input, tokens.output, tokens.cached, bill)) {
    bill.output += idle;
  }
  bill.per_million_input = PerMillion(bill.input, tokens.input);
  bill.per_million_output = PerMillion(bill.output, tokens.output);
  bill.per_million_cached = PerMillion(bill.cached, tokens.cached);
  return bill;
}

TokenBill BillOfPools(const PoolPrices& prices, const PoolWork& work, double hours,
                      const TokenCounts& tokens) {
  const MachineWork pools[] = {{.price_per_hour = prices.compute,
                                .input = work.compute.input,
                                .output = work.compute.output,
                                .cached = work.compute.cached},
                               {.price_per_hour = prices.prompts, .input = 1},
                               {.price_per_hour = prices.memory,
                                .input = work.memory.input,
                                .output = work.memory.output,
                                .cached = work.memory.cached}};
  return ShareBill(pools, hours, tokens);
}

}  // namespace lamina::cost
