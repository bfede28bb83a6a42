// SPDX-License-Identifier: Apache-2.0
#include "bench/churn.h"

#include <algorithm>
#include <random>

#include "common/check.h"

namespace lamina::bench {
namespace {

using kernels::Extent;

// Runs are aligned to this, so that a stretch of 16 tokens seldom straddles two.
constexpr uint32_t kUnit = 16;
constexpr uint32_t kReserveUnitsMax = 256 / kUnit;
constexpr uint32_t kPromptMax = 2048;
constexpr uint32_t kOutputMax = 1024;

class Churn {
 public:
  explicit Churn(const ChurnOptions& options)
      : options_(options), random_(options.seed), used_(options.slots / kUnit, false) {
    // Full sequences of the longest kind must fit, or the churn would have to preempt.
    LAMINA_CHECK(uint64_t{options.sequences} * (kPromptMax + kOutputMax + 256) <= options.slots);
  }

  ChurnResult Run() {
    std::vector<Sequence> live(options_.sequences);
    for (Sequence& s : live) {
      Start(s);
    }
    for (uint32_t finished = 0; finished < options_.finished;) {
      for (Sequence& s : live) {
        if (s.left == 0) {
          Release(s);
          Start(s);
          ++finished;
        } else {
          Append(s, 1);
          --s.left;
        }
      }
    }
    return Picture(live);
  }

 private:
  struct Sequence {
    std::vector<Extent> extents;
    uint32_t reserved = 0;  // Slots behind the last extent that only it may use.
    uint32_t left = 0;      // Tokens to come.
  };

  void Start(Sequence& s) {
    s = {};
    Append(s, 64 + static_cast<uint32_t>(random_() % (kPromptMax - 64)));
    s.left = 1 + static_cast<uint32_t>(random_() % (kOutputMax - 1));
  }

  void Append(Sequence& s, uint32_t tokens) {
    while (tokens > 0) {
      if (s.reserved == 0) {
        Reserve(s);
      }
      const uint32_t take = std::min(tokens, s.reserved);
      s.extents.back().tokens += take;
      s.reserved -= take;
      tokens -= take;
    }
  }

  // Takes the free run that begins nearest behind the last slot, at most 256 slots of it; a run
  // right behind the tail lengthens the last extent.
  void Reserve(Sequence& s) {
    const auto units = static_cast<uint32_t>(used_.size());
    const uint32_t from = s.extents.empty()
                              ? static_cast<uint32_t>(random_() % units)
                              : (s.extents.back().first_slot + s.extents.back().tokens) / kUnit;
    uint32_t first = from % units;
    while (used_[first]) {
      first = (first + 1) % units;
    }
    uint32_t count = 0;
    while (count < kReserveUnitsMax && first + count < units && !used_[first + count]) {
      used_[first + count] = true;
      ++count;
    }
    if (s.extents.empty() || first != from) {
      s.extents.push_back({.first_slot = first * kUnit, .tokens = 0});
    }
    s.reserved = count * kUnit;
  }

  void Release(const Sequence& s) {
    for (const Extent& extent : s.extents) {
      Free(extent.first_slot, extent.tokens);
    }
    if (s.reserved > 0) {
      Free(s.extents.back().first_slot + s.extents.back().tokens, s.reserved);
    }
  }

  void Free(uint32_t slot, uint32_t slots) {
    for (uint32_t unit = slot / kUnit; unit < (slot + slots + kUnit - 1) / kUnit; ++unit) {
      used_[unit] = false;
    }
  }

  static ChurnResult Picture(const std::vector<Sequence>& live) {
    ChurnResult result;
    double tokens = 0;
    double extents = 0;
    for (const Sequence& s : live) {
      result.extents.push_back(s.extents);
      extents += static_cast<double>(s.extents.size());
      for (const Extent& extent : s.extents) {
        tokens += extent.tokens;
      }
    }
    result.mean_extent = tokens / extents;
    result.mean_tokens = tokens / static_cast<double>(live.size());
    return result;
  }

  const ChurnOptions options_;
  std::mt19937 random_;
  std::vector<bool> used_;  // By unit.
};

}  // namespace

ChurnResult SimulateChurn(const ChurnOptions& options) { return Churn(options).Run(); }

}  // namespace lamina::bench
