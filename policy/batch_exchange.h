// SPDX-License-Identifier: Apache-2.0
//
// Mini-batches of policy fetch_hybrid (HybridServe, hybridserve.txt 4.3.3) that run already: which
// of their requests change places. PackMiniBatches() (fetch_hybrid.h) has the paper's rule, which
// fills one mini-batch after the other from requests that wait. Here there are as many mini-batches
// as lanes, requests join them one at a time, and what a request is held as is known once it has
// joined, so that what is left of the rule is to exchange requests of lanes.
//
// While K and V of mini-batch b are made in a layer, what b + 1 reads in it crosses the link, and
// while those of the last one are, what the first one reads in the next layer. With T_link and
// T_device of each (equations 9 and 10) a layer of all n of them takes
//
//   E1  R = sum over b of max(T_device(b), T_link(b + 1 mod n))
//
// which for mini-batches of one length is shortest where each is in balance (equations 12 and 13),
// and can be as short elsewhere. An exchange leaves tokens and kinds of all mini-batches together
// as they are, so that none brings R below
//
//   E2  max(sum of T_device, sum of T_link)
//
// Threading: pure functions.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "policy/fetch_hybrid.h"

namespace lamina::policy {

// A request that runs.
struct BatchRequest {
  HybridRequest tokens;
  bool may_move = true;
};
// The requests of one mini-batch.
using MiniBatch = std::vector<BatchRequest>;

// Two requests of different mini-batches change places; both are indices.
struct BatchExchange {
  uint32_t batch = 0;
  uint32_t request = 0;
  uint32_t other_batch = 0;
  uint32_t other_request = 0;
};

// E1 of mini-batches with so many tokens. `profile` is of one of them: its load_weights and dense
// are each one's part of these.
double RoundSeconds(const HybridProfile& profile, absl::Span<const HybridTokens> batches);

// The exchange behind which E1 is shortest, of several such the first; nothing where none is
// allowed. Those are allowed that leave both mini-batches about as long as each other, or no
// farther apart than they were.
// Cost: O(requests^2) for each two mini-batches.
std::optional<BatchExchange> BestExchange(const HybridProfile& profile,
                                          absl::Span<const MiniBatch> batches);

// Exchanges that pay, each request in one at most: the best one, then the best behind that, while
// each saves a request's part of E1, up to kExchangesMax. None where together they save less than
// kSavedMin of it.
inline constexpr uint32_t kExchangesMax = 16;
inline constexpr double kSavedMin = 1.0 / 16;
std::vector<BatchExchange> ChooseExchanges(const HybridProfile& profile,
                                           absl::Span<const MiniBatch> batches);

}  // namespace lamina::policy
