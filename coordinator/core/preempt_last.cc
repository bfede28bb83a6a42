// SPDX-License-Identifier: Apache-2.0
//
// Out of slots, the last in service order is preempted.

#include "coordinator/core/out_of_slots.h"

namespace lamina::core {
namespace {

class PreemptLast final : public OutOfSlots {
 public:
  absl::string_view name() const override { return "preempt last"; }

  GivingUp WhoGivesUp(const FullNode& full) override {
    SlotHolder last = full.needy();
    full.VisitFromLast([&last](const Holding& holding) {
      last = holding.holder;
      return false;
    });
    return {.who = last};
  }
};

}  // namespace

std::unique_ptr<OutOfSlots> MakePreemptLast() { return std::make_unique<PreemptLast>(); }

}  // namespace lamina::core
