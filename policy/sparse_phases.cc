// SPDX-License-Identifier: Apache-2.0
#include "policy/sparse_phases.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cost/recompute_layer.h"
#include "policy/fetch_sparse.h"

namespace lamina::policy {
namespace {

constexpr uint32_t kBetas = 64;

uint64_t TokensInAll(const PhaseProfile& profile) {
  return uint64_t{profile.prompt} + profile.output;
}

// How many tokens the device keeps from p1 on.
uint64_t KeptTokens(const PhaseProfile& profile, double alpha) {
  return static_cast<uint64_t>(
      std::llround((1 - alpha) * static_cast<double>(TokensInAll(profile))));
}

bool HasRoom(const PhaseProfile& profile, const SparsePhases& phases) {
  const uint64_t until_p1 = phases.p1 == 0 ? 0 : uint64_t{profile.prompt} + phases.p1;
  return std::max(until_p1, KeptTokens(profile, phases.alpha)) <= profile.resident;
}

// T_j^m or T_j^r of so many tokens that come.
double ComingSeconds(const PhaseProfile& profile, uint32_t coming, double beta) {
  return cost::RecomputeLayerSeconds(
      {.activation = profile.activation, .kv = profile.kv, .make = profile.make}, coming,
      std::floor(beta * coming), cost::ActivationsCome::kWithinLayer);
}

// p1 and alpha by the room that there is.
SparsePhases PhasesByRoom(const PhaseProfile& profile) {
  const uint64_t all = TokensInAll(profile);
  SparsePhases phases{.p2 = profile.output};
  if (profile.resident > profile.prompt) {
    phases.p1 = std::min(profile.output, profile.resident - profile.prompt);
  }
  if (profile.resident < all) {
    phases.alpha = 1 - static_cast<double>(profile.resident) / static_cast<double>(all);
  }
  return phases;
}

// beta and p2 by what recomputing gains.
void RecomputeWherePays(const PhaseProfile& profile, SparsePhases& phases) {
  const SparsePhases by_room = phases;
  double most = 0;
  for (uint32_t share = 1; share <= kBetas; ++share) {
    const double beta = static_cast<double>(share) / kBetas;
    double gain = 0;
    for (uint32_t step = profile.output; step-- > by_room.p1;) {
      const uint32_t coming = ComingTokens(profile, by_room, step);
      gain += ComingSeconds(profile, coming, 0) - ComingSeconds(profile, coming, beta);
      if (gain > most) {
        most = gain;
        phases.p2 = step;
        phases.beta = beta;
      }
    }
  }
}

std::string DescribeStaying(const PhaseProfile& profile, const SparsePhases& phases) {
  const uint64_t all = TokensInAll(profile);
  const uint64_t kept = std::min<uint64_t>(profile.resident, all);
  if (kept == all) {
    return absl::StrCat("all ", all, " tokens stay (p1 = n, alpha = 0)");
  }
  return absl::StrFormat("%d of %d tokens stay (p1 = %d, alpha = %.3g)", kept, all, phases.p1,
                         phases.alpha);
}

std::string WhyNoneIsRecomputed(const PhaseProfile& profile, const PhaseBytes& bytes) {
  if (profile.resident >= TokensInAll(profile)) {
    return "none has to come";
  }
  if (bytes.activation >= bytes.kv) {
    return absl::StrFormat("an activation has %.0f bytes in a layer, K and V %.0f",
                           bytes.activation, bytes.kv);
  }
  if (!profile.keeps_activations) {
    return absl::StrFormat(
        "memory nodes keep no activations, with which they would have room for %.0f%% of the "
        "tokens; recomputing would save at most %.0f%% of what comes (an activation has %.0f bytes "
        "in a layer, K and V %.0f)",
        100 * bytes.kv / (bytes.kv + bytes.activation), 100 * (1 - bytes.activation / bytes.kv),
        bytes.activation, bytes.kv);
  }
  constexpr double kMicro = 1e6;
  return absl::StrFormat("K and V of one take %.3g us on the link, and making them %.3g us",
                         profile.kv * kMicro, profile.make * kMicro);
}

}  // namespace

uint32_t ComingTokens(const PhaseProfile& profile, const SparsePhases& phases, uint32_t step) {
  if (step < phases.p1) {
    return 0;
  }
  const uint32_t tokens = profile.prompt + step;
  const uint32_t half = KeptHalf(tokens, profile.ratio);
  const uint32_t chosen = std::min(tokens, 2 * half);
  const auto kept =
      static_cast<uint32_t>(std::min<uint64_t>(tokens, KeptTokens(profile, phases.alpha)));
  return std::min(chosen - std::min(kept, half), tokens - kept);
}

double PhaseSeconds(const PhaseProfile& profile, const SparsePhases& phases) {
  if (!HasRoom(profile, phases) || phases.p1 > phases.p2 || phases.p2 > profile.output) {
    return std::numeric_limits<double>::infinity();
  }
  double seconds = 0;
  for (uint32_t step = 0; step < profile.output; ++step) {
    const uint32_t tokens = profile.prompt + step;
    const uint32_t attended = std::min(tokens, 2 * KeptHalf(tokens, profile.ratio)) + 1;
    const double beta = step < phases.p2 ? 0 : phases.beta;
    seconds += profile.attend * attended +
               ComingSeconds(profile, ComingTokens(profile, phases, step), beta);
  }
  return seconds;
}

SparsePhases SearchPhases(const PhaseProfile& profile) {
  SparsePhases phases = PhasesByRoom(profile);
  if (profile.keeps_activations && profile.activation < profile.kv) {
    RecomputeWherePays(profile, phases);
  }
  phases.seconds = PhaseSeconds(profile, phases);
  return phases;
}

std::string DescribePhases(const PhaseProfile& profile, const PhaseBytes& bytes,
                           const SparsePhases& phases) {
  const std::string staying = DescribeStaying(profile, phases);
  if (phases.p2 == profile.output) {
    return absl::StrCat(staying,
                        ", none is recomputed (p2 = n): ", WhyNoneIsRecomputed(profile, bytes));
  }
  return absl::StrFormat("%s, %.0f%% of those that come are recomputed from p2 = %d on", staying,
                         100 * phases.beta, phases.p2);
}

}  // namespace lamina::policy
