// SPDX-License-Identifier: Apache-2.0
//
// StepPacking: which rows and which prompt chunks share a step. A strategy; to add one, implement
// this and hand it to SchedulerOptions::strategies.
//
// Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"

namespace lamina::core {

struct Sequence;

// What a strategy sees of a step that is being packed, and does with it. The step is of one lane.
class StepToPack {
 public:
  virtual ~StepToPack() = default;

  virtual uint32_t rows() const = 0;         // How many are packed.
  virtual uint32_t tokens_left() const = 0;  // What is left of the step's budget.
  // The sequences of the lane that may have a row, in service order; none in a prefill lane.
  // AddRow() refuses those that are taken out after this call.
  virtual std::vector<Sequence*> Decoding() const = 0;
  // The sequences of the lane whose prompt has tokens that no step has, in service order.
  virtual std::vector<Sequence*> Prefilling() const = 0;
  // Adds the next token of a sequence; false when it has no slot, or the budget is used up.
  virtual bool AddRow(Sequence& sequence) = 0;
  // Calls AddRow() for each, in their order: faster than one by one where there are many.
  virtual void AddRows(const std::vector<Sequence*>& sequences) = 0;
  // Adds the next prompt tokens of a sequence: at most `tokens_max`, chunk_tokens of the options,
  // and what is left of the budget. Returns how many; a sequence has one chunk in a step.
  virtual uint32_t AddChunk(Sequence& sequence, uint32_t tokens_max) = 0;
};

class StepPacking {
 public:
  virtual ~StepPacking() = default;
  virtual absl::string_view name() const = 0;

  // Packs what runs in the lane. Rows that are left out wait for the next step. A prompt must get
  // on at the latest when there are no rows.
  virtual void Pack(StepToPack& step) = 0;
  // How many tokens of newcomers' prompts the step takes now, behind what is packed; 0: none.
  virtual uint32_t TokensForNewcomer(const StepToPack& step) = 0;
};

// All rows; the rest of the budget for prompts in service order, then for newcomers.
std::unique_ptr<StepPacking> MakeRowsFirst();

}  // namespace lamina::core
