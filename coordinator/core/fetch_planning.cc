// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/fetch_planning.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cost/recompute_layer.h"
#include "plan/fetch_pieces.h"
#include "policy/fetch_recompute.h"
#include "policy/token_recompute.h"

namespace lamina::core {
namespace {

// Activations are a message more for each layer, and one more is stored for each token, which no
// profile counts. A split that gains less than this share of a layer is not worth these.
constexpr double kGainLeast = 0.02;

class FetchAll final : public FetchPlanning {
 public:
  explicit FetchAll(std::string why) : why_(std::move(why)) {}

  FetchShare Plan(const FetchStep& /*step*/, const FetchRates& /*rates*/) const override {
    return {.why = why_};
  }

 private:
  const std::string why_;
};

class FetchRecompute final : public FetchPlanning {
 public:
  explicit FetchRecompute(const RecomputeBytes& bytes) : bytes_(bytes) {}

  FetchShare Plan(const FetchStep& step, const FetchRates& rates) const override {
    if (step.path != plan::AttentionPath::kRecompute) {
      return {};
    }
    if (step.tokens == 0 || !rates.measured()) {
      return {.why = "nothing recomputed: links or recomputation are not measured yet"};
    }
    const auto tokens = static_cast<double>(step.tokens);
    // Lanes share the weights that come: each layer's come once for all of them.
    const cost::RecomputeProfile profile{
        .activation = bytes_.activation / rates.bytes_per_second,
        .kv = bytes_.kv / rates.bytes_per_second,
        .make = rates.recompute_seconds + rates.recompute_fixed_seconds / tokens,
        .weights = rates.weights_seconds / std::max(1u, step.lanes),
        .resident = static_cast<double>(step.resident),
        .other_work = rates.attend_seconds * tokens + rates.slice.fixed +
                      rates.slice.slope * static_cast<double>(step.rows)};
    const cost::ActivationsCome come =
        cost::ActivationsComeOf({.lanes = static_cast<double>(step.lanes),
                                 .weights = rates.weights_seconds,
                                 .kv_bytes = tokens * bytes_.kv,
                                 .room = bytes_.room});
    const uint64_t tile = uint64_t{plan::kFetchTile} * step.sequences;  // One of each.
    const policy::RecomputeSplit split =
        policy::BestRecomputeSplit(profile, step.tokens, come, std::max<uint64_t>(1, tile));
    if (const double gain =
            1 - split.seconds / cost::RecomputeLayerSeconds(profile, tokens, 0, come);
        split.recomputed > 0 && gain < kGainLeast) {
      return {.why = absl::StrFormat("%s; the best split would save %.1f%% of a layer",
                                     policy::DescribeRecompute(profile, 0), 100 * gain)};
    }
    return {
        .recomputed = UnitsOf(split.recomputed, step.tokens, tile),
        .why = policy::DescribeRecompute(profile, static_cast<double>(split.recomputed) / tokens)};
  }

 private:
  // StepPlan::recomputed. Sequences are cut down to whole tiles, from half a tile more: so those
  // which are somewhat shorter or longer than others have as many tiles, or as many on average.
  static uint32_t UnitsOf(uint64_t recomputed, uint64_t tokens, uint64_t tile) {
    if (recomputed == 0 || recomputed == tokens) {
      return recomputed == 0 ? 0 : plan::kRecomputeUnit;
    }
    const uint64_t units = (recomputed + tile / 2) * plan::kRecomputeUnit / tokens;
    return static_cast<uint32_t>(std::min<uint64_t>(units, plan::kRecomputeUnit - 1));
  }

  const RecomputeBytes bytes_;
};

class FetchRecomputeShare final : public FetchPlanning {
 public:
  explicit FetchRecomputeShare(uint32_t percent) : percent_(percent) {}

  FetchShare Plan(const FetchStep& step, const FetchRates& /*rates*/) const override {
    if (step.path != plan::AttentionPath::kRecompute) {
      return {};
    }
    return {.recomputed = percent_ * plan::kRecomputeUnit / 100,
            .why = absl::StrCat(percent_, "% of tokens recomputed, as configured")};
  }

 private:
  const uint32_t percent_;
};

class FetchTokens final : public FetchPlanning {
 public:
  explicit FetchTokens(const TokenMaking& making) : making_(making) {}

  FetchShare Plan(const FetchStep& step, const FetchRates& rates) const override {
    if (step.path != plan::AttentionPath::kRecompute) {
      return {};
    }
    if (making_.percent.has_value()) {
      return NoMoreThanMay(
          step, {.recomputed = *making_.percent * plan::kRecomputeUnit / 100,
                 .why = absl::StrCat(*making_.percent,
                                     "% of tokens made from their numbers, as configured")});
    }
    if (step.tokens == 0 || step.sequences == 0 || !rates.measured()) {
      return {.why = "no tokens made from their numbers: links or making are not measured yet"};
    }
    const auto tokens = static_cast<double>(step.tokens);
    // Lanes share the weights that come.
    const policy::TokenProfile profile{
        .kv = making_.kv_bytes / rates.bytes_per_second,
        .make = rates.recompute_seconds + rates.recompute_fixed_seconds / tokens,
        .attend = rates.attend_seconds,
        .other = rates.attend_seconds * tokens + rates.slice.fixed +
                 rates.slice.slope * static_cast<double>(step.rows),
        .weights = rates.weights_seconds / std::max(1u, step.lanes)};
    const policy::TokenLoad load{.rows = step.sequences,
                                 .context = static_cast<uint32_t>(step.tokens / step.sequences),
                                 .tile = making_.tile};
    const uint32_t made = policy::BestTokenSplit(profile, load).made;
    if (made == 0) {
      return {.why = policy::DescribeTokens(profile, 0)};
    }
    // Rounded up, so that rows of this context have as many whole tiles.
    const auto share = static_cast<uint32_t>(
        (uint64_t{made} * plan::kRecomputeUnit + load.context - 1) / load.context);
    return NoMoreThanMay(
        step, {.recomputed = share,
               .why = policy::DescribeTokens(profile, static_cast<double>(made) / load.context)});
  }

 private:
  // Each run of rows has no more than its share, so that together they have no more either. The
  // step's rows count, some of which may be of sequences that the lane has lost since.
  FetchShare NoMoreThanMay(const FetchStep& step, FetchShare share) const {
    const uint64_t most = uint64_t{making_.tokens_max} * plan::kRecomputeUnit;
    if (share.recomputed * step.contexts <= most) {
      return share;
    }
    share.recomputed = static_cast<uint32_t>(most / step.contexts);
    absl::StrAppend(&share.why, "; at most fetch.recompute_tokens_max ", making_.tokens_max,
                    " of a step's ", step.contexts);
    return share;
  }

  const TokenMaking making_;
};

// Which tokens come follows from elsewhere, and answers from these.
class FetchLossy final : public FetchPlanning {
 public:
  FetchLossy(absl::string_view rows, const std::string& lossy, absl::string_view more)
      : why_(absl::StrCat("answers are lossy: ", rows, " (", lossy, ")", more)) {}

  FetchShare Plan(const FetchStep& /*step*/, const FetchRates& /*rates*/) const override {
    return {.why = why_};
  }

 private:
  const std::string why_;
};

class FetchByPath final : public FetchPlanning {
 public:
  FetchByPath(plan::AttentionPath path, std::unique_ptr<FetchPlanning> own,
              std::unique_ptr<FetchPlanning> others)
      : path_(path), own_(std::move(own)), others_(std::move(others)) {}

  FetchShare Plan(const FetchStep& step, const FetchRates& rates) const override {
    return (step.path == path_ ? own_ : others_)->Plan(step, rates);
  }

 private:
  const plan::AttentionPath path_;
  const std::unique_ptr<FetchPlanning> own_;
  const std::unique_ptr<FetchPlanning> others_;
};

class FetchByEpoch final : public FetchPlanning {
 public:
  FetchByEpoch(std::unique_ptr<FetchPlanning> tokens, std::unique_ptr<FetchPlanning> others)
      : tokens_(std::move(tokens)), others_(std::move(others)) {}

  FetchShare Plan(const FetchStep& step, const FetchRates& rates) const override {
    return (rates.from_tokens ? tokens_ : others_)->Plan(step, rates);
  }

 private:
  const std::unique_ptr<FetchPlanning> tokens_;
  const std::unique_ptr<FetchPlanning> others_;
};

}  // namespace

std::unique_ptr<FetchPlanning> MakeFetchSparse(const std::string& lossy,
                                               const std::string& phases) {
  return std::make_unique<FetchLossy>("decode rows attend to a part of the tokens", lossy,
                                      absl::StrCat("; ", phases));
}

std::unique_ptr<FetchPlanning> MakeFetchStreaming(const std::string& lossy) {
  return std::make_unique<FetchLossy>("some heads attend to the first and the last tokens", lossy,
                                      "");
}

std::unique_ptr<FetchPlanning> MakeFetchByPath(plan::AttentionPath path,
                                               std::unique_ptr<FetchPlanning> own,
                                               std::unique_ptr<FetchPlanning> others) {
  return std::make_unique<FetchByPath>(path, std::move(own), std::move(others));
}

std::unique_ptr<FetchPlanning> MakeFetchByEpoch(std::unique_ptr<FetchPlanning> tokens,
                                                std::unique_ptr<FetchPlanning> others) {
  return std::make_unique<FetchByEpoch>(std::move(tokens), std::move(others));
}

std::unique_ptr<FetchPlanning> MakeFetchAll() { return std::make_unique<FetchAll>(""); }

std::unique_ptr<FetchPlanning> MakeFetchAllBecause(const std::string& why) {
  return std::make_unique<FetchAll>(why);
}

std::unique_ptr<FetchPlanning> MakeFetchRecompute(const RecomputeBytes& bytes) {
  return std::make_unique<FetchRecompute>(bytes);
}

std::unique_ptr<FetchPlanning> MakeFetchRecomputeShare(uint32_t percent) {
  return std::make_unique<FetchRecomputeShare>(percent);
}

std::unique_ptr<FetchPlanning> MakeFetchTokens(const TokenMaking& making) {
  return std::make_unique<FetchTokens>(making);
}

}  // namespace lamina::core
