// SPDX-License-Identifier: Apache-2.0
//
// Out of slots, the last in service order goes to the spill tier, or is preempted where that is
// faster.

#include "coordinator/core/out_of_slots.h"

namespace lamina::core {
namespace {

class SpillLast final : public OutOfSlots {
 public:
  absl::string_view name() const override { return "spill last"; }

  GivingUp WhoGivesUp(const FullNode& full) override {
    GivingUp last{.who = full.needy()};
    full.VisitFromLast([&](const Holding& holding) {
      const bool spills =
          holding.fits_in_tier && cost::SpillPays(full.spill_rates(), holding.tokens);
      last = {.who = holding.holder, .how = spills ? GivesUp::kToTier : GivesUp::kToRecompute};
      return false;
    });
    return last;
  }
};

}  // namespace

std::unique_ptr<OutOfSlots> MakeSpillLast() { return std::make_unique<SpillLast>(); }

}  // namespace lamina::core
