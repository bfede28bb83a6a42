// SPDX-License-Identifier: Apache-2.0
//
// What a token costs: the bill of some machines over some time, shared out over computed prompt
// tokens (input), generated tokens (output) and prompt tokens that were found computed (cached).
//
// In a step that a machine takes t(B, c) for, with B decode rows and c prompt tokens, input is
// charged its Shapley share of two players,
//
//   phi_in = 1/2 [t(0, c) + t(B, c) - t(B, 0)]
//
// and output the rest. The idle time of a machine is shared as its busy time is.
//
// Threading: pure.

#pragma once

#include "absl/types/span.h"

namespace lamina::cost {

// Seconds of a step that are input's and output's; they add up to `both`.
struct StepShares {
  double input = 0;
  double output = 0;
};

// Shares of a step that takes `both` seconds, `prompts` without its decode rows, and `rows` without
// its prompt tokens. Each share lies in [0, both].
StepShares ShapleyShares(double both, double prompts, double rows);

// What one machine (or several that did alike) costs, and what it was busy with. Any unit of work
// will do, the same within a machine.
struct MachineWork {
  double price_per_hour = 0;
  double input = 0;
  double output = 0;
  double cached = 0;
};

// Tokens of each kind.
struct TokenCounts {
  double input = 0;
  double output = 0;
  double cached = 0;
};

// Parts of the bill, and what 1,000,000 tokens of each kind cost; 0 where there are no tokens.
// input + output + cached is the bill.
struct TokenBill {
  double input = 0;
  double output = 0;
  double cached = 0;
  double per_million_input = 0;
  double per_million_output = 0;
  double per_million_cached = 0;

  double total() const { return input + output + cached; }
};

// The bill of `hours`. A machine that did nothing is shared as all the others are together; if none
// did anything, by the number of tokens; without tokens, all is output's.
TokenBill ShareBill(absl::Span<const MachineWork> machines, double hours,
                    const TokenCounts& tokens);

// A running cluster's nodes by what they do; prices per hour of all of a kind together.
struct PoolPrices {
  double compute = 0;  // Nodes that decode; with prompts inline they run these too.
  double prompts = 0;  // Nodes for prefill only.
  double memory = 0;

  double total() const { return compute + prompts + memory; }
};

// What a pool's nodes were busy with, in seconds of one node; to `cached` comes, for K and V that
// are kept for nobody yet, their share of the slots times the busy seconds.
struct Work {
  double input = 0;
  double output = 0;
  double cached = 0;
};
struct PoolWork {
  Work compute;  // Nodes that decode.
  Work memory;
};

// The bill of `hours`: nodes for prompts are input's, and the pools are shared as `work`.
TokenBill BillOfPools(const PoolPrices& prices, const PoolWork& work, double hours,
                      const TokenCounts& tokens);

}  // namespace lamina::cost
