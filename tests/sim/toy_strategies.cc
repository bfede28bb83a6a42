// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/toy_strategies.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace lamina::sim {
namespace {

using core::Holding;
using core::LaneLoad;
using core::NodeLoad;

std::vector<Holding> AllFromLast(const core::FullNode& full) {
  std::vector<Holding> all;
  full.VisitFromLast([&all](const Holding& holding) {
    all.push_back(holding);
    return true;
  });
  return all;
}

class LargestGivesUp final : public core::OutOfSlots {
 public:
  absl::string_view name() const override { return "largest"; }
  core::GivingUp WhoGivesUp(const core::FullNode& full) override {
    std::vector<Holding> all = AllFromLast(full);
    if (all.size() > 1) {
      all.pop_back();
    }
    return {.who = std::max_element(all.begin(), all.end(), [](const Holding& a, const Holding& b) {
                     return a.slots < b.slots;
                   })->holder};
  }
};

class NeedyGivesUp final : public core::OutOfSlots {
 public:
  absl::string_view name() const override { return "needy"; }
  core::GivingUp WhoGivesUp(const core::FullNode& full) override {
    const std::vector<Holding> all = AllFromLast(full);
    return {.who = full.needy() == all.back().holder ? all.front().holder : full.needy()};
  }
};

class PromptsGetHalf final : public core::StepPacking {
 public:
  absl::string_view name() const override { return "prompts get half"; }
  void Pack(core::StepToPack& step) override {
    const std::vector<core::Sequence*> decoding = step.Decoding();
    uint32_t left = decoding.empty() ? step.tokens_left() : (step.tokens_left() + 1) / 2;
    for (core::Sequence* sequence : step.Prefilling()) {
      left -= step.AddChunk(*sequence, left);
    }
    for (core::Sequence* sequence : decoding) {
      step.AddRow(*sequence);
    }
  }
  uint32_t TokensForNewcomer(const core::StepToPack& step) override {
    return step.rows() == 0 ? step.tokens_left() : (step.tokens_left() + 1) / 2;
  }
};

class FirstRowsChange final : public core::LanePacking {
 public:
  absl::string_view name() const override { return "first rows change"; }
  std::vector<core::LaneExchange> Choose(const core::LanesToPack& to_pack,
                                         const core::FetchRates& /*rates*/) override {
    const std::vector<core::PackedLane> lanes = to_pack.lanes();
    std::optional<core::LaneExchange> half;
    for (uint32_t lane = 0; lane < lanes.size(); ++lane) {
      const auto row = std::find_if(lanes[lane].begin(), lanes[lane].end(),
                                    [](const core::PackedRow& one) { return one.may_move; });
      if (row == lanes[lane].end()) {
        continue;
      }
      const auto index = static_cast<uint32_t>(row - lanes[lane].begin());
      if (half.has_value()) {
        half->other_lane = lane;
        half->other_row = index;
        return {*half};
      }
      half = core::LaneExchange{.lane = lane, .row = index};
    }
    return {};
  }
};

class InTurn final : public core::Placement {
 public:
  absl::string_view name() const override { return "in turn"; }
  std::optional<uint32_t> LaneOfNewcomer(const std::vector<LaneLoad>& lanes, bool) override {
    return Next(lanes.size(), lane_, [&](uint32_t lane) {
      return lanes[lane].open && lanes[lane].has_room && lanes[lane].tokens_left > 0;
    });
  }
  std::optional<uint32_t> NodeOfNewcomer(const std::vector<NodeLoad>& nodes, uint32_t) override {
    return Next(nodes.size(), node_, [&](uint32_t node) { return nodes[node].fits; });
  }
  std::optional<uint32_t> NodeOfNextSpan(const std::vector<NodeLoad>& nodes, uint32_t) override {
    return Next(nodes.size(), node_, [&](uint32_t node) { return nodes[node].fits; });
  }

 private:
  template <typename Fits>
  static std::optional<uint32_t> Next(size_t count, uint32_t& last, const Fits& fits) {
    for (size_t i = 0; i < count; ++i) {
      const auto next = static_cast<uint32_t>((last + 1 + i) % count);
      if (fits(next)) {
        last = next;
        return next;
      }
    }
    return std::nullopt;
  }

  uint32_t lane_ = 0;
  uint32_t node_ = 0;
};

}  // namespace

std::unique_ptr<core::OutOfSlots> MakeLargestGivesUp() {
  return std::make_unique<LargestGivesUp>();
}
std::unique_ptr<core::OutOfSlots> MakeNeedyGivesUp() { return std::make_unique<NeedyGivesUp>(); }
std::unique_ptr<core::StepPacking> MakePromptsGetHalf() {
  return std::make_unique<PromptsGetHalf>();
}
std::unique_ptr<core::LanePacking> MakeFirstRowsChange() {
  return std::make_unique<FirstRowsChange>();
}
std::unique_ptr<core::Placement> MakeInTurn() { return std::make_unique<InTurn>(); }

}  // namespace lamina::sim
