// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/lane_packing.h"

#include <cstddef>

#include "policy/batch_exchange.h"
#include "policy/fetch_hybrid.h"

namespace lamina::core {
namespace {

class RowsStay final : public LanePacking {
 public:
  absl::string_view name() const override { return "rows stay"; }
  std::vector<LaneExchange> Choose(const LanesToPack& /*to_pack*/,
                                   const FetchRates& /*rates*/) override {
    return {};
  }
};

class MiniBatches final : public LanePacking {
 public:
  explicit MiniBatches(const RecomputeBytes& bytes) : bytes_(bytes) {}

  absl::string_view name() const override { return "mini-batches"; }

  std::vector<LaneExchange> Choose(const LanesToPack& to_pack, const FetchRates& rates) override {
    if (to_pack.path != plan::AttentionPath::kHybrid || !rates.measured()) {
      return {};
    }
    std::vector<policy::MiniBatch> batches;
    size_t rows = 0;
    for (const PackedLane& lane : to_pack.lanes()) {
      policy::MiniBatch& batch = batches.emplace_back();
      for (const PackedRow& row : lane) {
        batch.push_back(
            {.tokens = {.activations = row.activations, .kv = row.kv, .resident = row.resident},
             .may_move = row.may_move});
      }
      rows += lane.size();
    }
    std::vector<LaneExchange> exchanges;
    if (batches.size() < 2) {
      return exchanges;
    }
    for (const policy::BatchExchange& exchange :
         policy::ChooseExchanges(ProfileOf(rates, batches.size(), rows), batches)) {
      exchanges.push_back({.lane = exchange.batch,
                           .row = exchange.request,
                           .other_lane = exchange.other_batch,
                           .other_row = exchange.other_request});
    }
    return exchanges;
  }

 private:
  // Lanes share the weights that come, and have about as many rows each.
  policy::HybridProfile ProfileOf(const FetchRates& rates, size_t lanes, size_t rows) const {
    const auto count = static_cast<double>(lanes);
    return {
        .load_kv = {.slope = bytes_.kv / rates.bytes_per_second},
        .load_activations = {.slope = bytes_.activation / rates.bytes_per_second},
        .make = {.fixed = rates.recompute_fixed_seconds, .slope = rates.recompute_seconds},
        .attend = rates.attend_seconds,
        .load_weights = rates.weights_seconds / count,
        .dense = rates.slice.fixed + rates.slice.slope * static_cast<double>(rows) / count,
    };
  }

  const RecomputeBytes bytes_;
};

}  // namespace

std::unique_ptr<LanePacking> MakeRowsStay() { return std::make_unique<RowsStay>(); }

std::unique_ptr<LanePacking> MakeMiniBatches(const RecomputeBytes& bytes) {
  return std::make_unique<MiniBatches>(bytes);
}

}  // namespace lamina::core
