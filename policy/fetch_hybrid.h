// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_hybrid (HybridServe, hybridserve.txt 4.3): of a request's tokens some are held as K
// and V, the others as the activations that K and V are made from. Both cross the link, and only
// the latter keep the device busy, so that a mix can keep both sides busy equally long.
//
// The times of one layer of a step in seconds, with a activations and k tokens of K and V in the
// host, a0 activations on the device, T_load_w to bring the layer's weights, and `dense` for its
// dense layers:
//
//   link    T_load_w + T_load_act(a) + T_load_kv(k)         (equation 9)
//   device  T_kv_gen(a0 + a) + attend (a0 + a + k) + dense  (equation 10)
//
// each T a straight line over tokens, fitted to samples. Kinds take turns over all tokens alike
// (equation 11), so that with a share s of activations in N tokens, for r of which the device has
// room,
//
//   a0 = s r    a = s (N - r)    k = (1 - s) N
//
// Host memory has the a0 too, so that a lost device loses nothing. The paper leaves out attention
// and dense layers, which its device does in no time; `attend` and `dense` 0 are its model.
//
// Threading: pure functions.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace lamina::policy {

// Seconds over tokens; fixed where there are any.
struct TimeLine {
  double fixed = 0;
  double slope = 0;
  double At(double tokens) const { return tokens > 0 ? fixed + slope * tokens : 0; }
};

struct TimeSample {
  double tokens = 0;
  double seconds = 0;
};

// The line of least squares, and how much of the samples' variance it explains (R squared; 1 where
// they do not vary). Neither part of it is negative.
struct FittedLine {
  TimeLine line;
  double r_squared = 1;
};
// Requires: two samples of different sizes at least.
FittedLine FitLine(absl::Span<const TimeSample> samples);

struct HybridProfile {
  TimeLine load_kv;
  TimeLine load_activations;
  TimeLine make;            // T_kv_gen
  double attend = 0;        // Seconds to attend one token.
  double load_weights = 0;  // T_load_w
  double resident = 0;      // r: tokens of a step for whose activations the device has room.
  double dense = 0;         // Seconds of a step's dense layers.
};

struct HybridTokens {
  double activations = 0;  // a
  double kv = 0;           // k
  double resident = 0;     // a0
  double all() const { return resident + activations + kv; }
  // Share of activations in all tokens.
  double share() const { return all() > 0 ? (resident + activations) / all() : 0; }
};

// So many tokens with this share of activations.
HybridTokens WithShare(const HybridProfile& profile, double tokens, double share);

// What either side is busy for.
double LinkSeconds(const HybridProfile& profile, const HybridTokens& tokens);
double DeviceSeconds(const HybridProfile& profile, const HybridTokens& tokens);

// How so many tokens are held with which the longer side is as short as it can be. Algorithm 1's
// balance of both sides (equation 8), of the tokens that a step reads (a0 + a + k is theirs) where
// the paper fills a memory, which is seldom full here: what does not grow with tokens counts
// against those that come with it. Where the device is the longer side with K and V alone, or an
// activation takes no less time on the link than K and V and none stays, as in models of strongly
// grouped queries, all is K and V.
HybridTokens AllocateHybrid(const HybridProfile& profile, double tokens);

// A request's tokens of either kind.
struct HybridRequest {
  uint32_t activations = 0;  // That come.
  uint32_t kv = 0;
  uint32_t resident = 0;  // Whose activations are on the device.
};

// Mini-batches (equations 12, 13): requests are taken in order into the open one as long as both
// kinds that come fit into the device's buffers and the imbalance |1 - link / device| falls; when
// none can be added the next one begins. Indices of requests, each once.
// Requires: each request fits by itself.
std::vector<std::vector<uint32_t>> PackMiniBatches(absl::Span<const HybridRequest> requests,
                                                   const HybridProfile& profile,
                                                   const HybridRequest& buffers);

// For people: "62% of tokens held as activations: ...", or why none are; `tokens` are those of a
// step, said with its dense layers.
std::string DescribeHybrid(const HybridProfile& profile, double share, double tokens);

}  // namespace lamina::policy
