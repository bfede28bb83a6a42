// SPDX-License-Identifier: Apache-2.0
//
// The parts of a scheduler that keep who runs where, without those that decide.

#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "coordinator/core/kept_sequences.h"
#include "coordinator/core/kept_tails.h"
#include "coordinator/core/lanes.h"
#include "coordinator/core/node_residents.h"
#include "coordinator/core/sequence_kv.h"
#include "coordinator/core/sequence_life.h"
#include "coordinator/core/service_order.h"
#include "coordinator/core/spills.h"
#include "coordinator/core/step_borders.h"

namespace lamina::core {

class PartsTest : public testing::Test {
 protected:
  void MakeNodes(const std::vector<uint32_t>& slots, uint32_t lanes = 2, uint32_t span_tokens = 0,
                 const plan::PrefillLanes& prefill = {}, bool keeps_prefixes = false,
                 const cost::LayerWindows& windows = {}, const SpillShare& spill = {},
                 uint32_t spilled_tokens = 1) {
    const auto nodes = static_cast<uint32_t>(slots.size());
    kv_.Reset({.slots = slots}, span_tokens);
    lanes_.Reset(lanes, prefill, nodes, windows);
    residents_.Reset(nodes);
    borders_.Reset({.lanes = lanes, .prefill_lanes = prefill, .scratch_tokens = 1000});
    std::vector<MemoryNodeShare> shares;
    for (const uint32_t count : slots) {
      shares.push_back({.slots = count, .spill = spill});
    }
    spills_.Reset(shares, std::vector<uint32_t>(shares.size(), spilled_tokens));
    cache_.Reset(std::vector<uint32_t>(nodes, kCachedBlockTokens), keeps_prefixes, UINT32_MAX,
                 HasSpillTier(shares), span_tokens);
    if (span_tokens == 0 && keeps_prefixes) {
      kept_.ResetOpenBlocks(std::vector<uint32_t>(nodes, kCachedBlockTokens));
    } else {
      kept_.Reset(nodes, span_tokens);
    }
    tails_.Reset(std::vector<uint32_t>(nodes), /*steps_ahead=*/2);
  }

  static SequenceRequest Request(plan::SequenceId id, uint32_t prompt) {
    SequenceRequest request{.id = id, .tokens_max = prompt + 100};
    request.prompt.assign(prompt, 5);
    return request;
  }

  Sequence& Wait(plan::SequenceId id, uint32_t prompt) {
    life_.Submit(Request(id, prompt));
    return *life_.Find(id);
  }

  // One that is submitted, and runs with slots for its prompt.
  Sequence& Run(plan::SequenceId id, uint32_t prompt, uint32_t lane = 0, uint32_t node = 0) {
    Wait(id, prompt);
    return Start(id, lane, node);
  }
  // It finds K and V of so many tokens.
  Sequence& Start(plan::SequenceId id, uint32_t lane = 0, uint32_t node = 0, uint32_t found = 0) {
    Sequence& sequence = *life_.Find(id);
    life_.Begin(sequence, lane, node);
    sequence.chunked_tokens = found;
    kv_.Open(id);
    kv_.BeginSpan(id, node);
    EXPECT_TRUE(kv_.Append(id, sequence.join_tokens).ok());
    life_.Settle(sequence);
    return sequence;
  }

  absl::Status Audit() const {
    for (const absl::Status& status :
         {kv_.Audit(), lanes_.Audit(kv_), life_.Audit(), residents_.Audit(life_.Running(), kv_),
          cache_.Audit(life_.Running()), spills_.Audit(), kept_.Audit()}) {
      if (!status.ok()) {
        return status;
      }
    }
    return kv_.directory().SpansKept() == cache_.blocks() + kept_.parts_with_slots()
               ? absl::OkStatus()
               : absl::InternalError("slots are kept for nobody");
  }

  std::unique_ptr<ServiceOrder> order_ = MakeFirstComeFirstServed();
  ServiceBefore before_{order_.get()};
  SequenceKv kv_;
  Lanes lanes_{before_};
  NodeResidents residents_{before_};
  StepBorders borders_{kv_};
  Spills spills_{kv_};
  PrefixCache cache_{kv_, spills_};
  KeptSequences kept_{before_, kv_};
  KeptTails tails_;
  SequenceLife::Places places_{lanes_, residents_, borders_, kv_, cache_, spills_, kept_, tails_};
  SequenceLife life_{before_, places_};
};

}  // namespace lamina::core
