// SPDX-License-Identifier: Apache-2.0
//
// A step is packed with rows first, so that decode never waits for prompts.

#include "coordinator/core/step_packing.h"

namespace lamina::core {
namespace {

class RowsFirst final : public StepPacking {
 public:
  absl::string_view name() const override { return "rows first"; }

  void Pack(StepToPack& step) override {
    step.AddRows(step.Decoding());
    for (Sequence* sequence : step.Prefilling()) {
      if (step.tokens_left() == 0) {
        break;
      }
      step.AddChunk(*sequence, step.tokens_left());
    }
  }

  uint32_t TokensForNewcomer(const StepToPack& step) override { return step.tokens_left(); }
};

}  // namespace

std::unique_ptr<StepPacking> MakeRowsFirst() { return std::make_unique<RowsFirst>(); }

}  // namespace lamina::core
