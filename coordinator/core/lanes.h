// SPDX-License-Identifier: Apache-2.0
//
// Lanes: which sequences run in which lane, and what they weigh there. Counters are kept as
// sequences come, grow, move and go; none is counted anew for a decision.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/lane_homes.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/sequence.h"
#include "coordinator/core/sequence_kv.h"
#include "cost/layer_windows.h"
#include "plan/attention_paths.h"
#include "plan/prefill_lanes.h"

namespace lamina::core {

class Lanes {
 public:
  struct LaneSequences {
    explicit LaneSequences(ServiceBefore before)
        : running(before), prefilling(before), moving(before) {}
    SequenceQueue running;
    SequenceQueue prefilling;  // Sequences of `running` whose prompts are not done.
    SequenceQueue moving;      // Sequences of `running` that are wanted in another lane.
    // What their next rows read on each memory node, the mean over the layers: of layers with
    // windows what these hide does not count.
    std::vector<uint64_t> context_tokens;
    uint64_t context_tokens_all = 0;
    uint64_t tokens = 0;  // All tokens of their contexts, those that windows hide too.
  };

  explicit Lanes(ServiceBefore before) : before_(before) {}

  // Nothing runs any more. Prefill lanes come behind the `decode` ones. Requires: no prefill lanes
  // where lanes are bound.
  void Reset(uint32_t decode, const plan::PrefillLanes& prefill, uint32_t memory_nodes,
             const cost::LayerWindows& windows = {}, const LaneHomes& homes = {});

  uint32_t size() const { return static_cast<uint32_t>(lanes_.size()); }
  const LaneSequences& operator[](uint32_t lane) const { return lanes_[lane]; }
  bool IsPrefill(uint32_t lane) const { return lane >= decode_; }
  bool has_prefill() const { return lanes_.size() > decode_; }
  const LaneHomes& homes() const { return homes_; }
  uint32_t running() const { return running_; }  // How many run, in all lanes together.
  uint32_t moving() const { return moving_; }    // How many of them are wanted in another lane.
  // The path by which all sequences attend that run in the lane or are wanted there; nothing: there
  // are none.
  std::optional<plan::AttentionPath> PathOf(uint32_t lane) const {
    const bool in_use = !lanes_[lane].running.empty() || loads_[lane].rows > 0;
    return in_use ? std::optional(paths_[lane]) : std::nullopt;
  }
  // Rows and context of each lane, sequences counted where they are wanted. The rest is as in a
  // lane that is open and has room.
  const std::vector<LaneLoad>& loads() const { return loads_; }
  // The context of all lanes together, per memory node.
  const std::vector<uint64_t>& context_tokens() const { return context_tokens_; }

  // Puts the sequence in its `lane`, with the slots that it has; `next_lane` says where it is
  // wanted. Requires: both are of its path, or empty.
  void Add(Sequence& sequence, const SequenceKv& kv);
  void Remove(Sequence& sequence);
  // A sequence that is there decodes from now on: changes its state.
  void Decode(Sequence& sequence);
  // From now on it is wanted in this lane. Requires: the lane is of its path, or empty.
  void Aim(Sequence& sequence, uint32_t lane);
  // Puts it where it is wanted. Requires: no step with a row of it is under way in its lane.
  void Move(Sequence& sequence, const SequenceKv& kv);
  // The sequence got so many more slots on a node. With windows, spans before see less of it.
  void Grow(Sequence& sequence, uint32_t node, uint32_t slots, const SequenceKv& kv);

  // Recounts. Errors: kInternal names the first broken invariant.
  absl::Status Audit(const SequenceKv& kv) const;

 private:
  // What the sequence's next row reads on each node.
  absl::InlinedVector<SeenTokens, 1> SeenBy(const Sequence& sequence, const SequenceKv& kv) const;
  // Adds it to the counters of its lanes, or takes it away; of one node so many tokens more.
  void WeighOn(const Sequence& sequence, uint32_t node, uint64_t change);
  void Weigh(const Sequence& sequence, bool add);
  absl::Status AuditLane(uint32_t lane, const SequenceKv& kv) const;

  ServiceBefore before_;
  cost::LayerWindows windows_;
  LaneHomes homes_;
  uint32_t decode_ = 0;
  uint32_t running_ = 0;
  uint32_t moving_ = 0;
  std::vector<LaneSequences> lanes_;
  std::vector<plan::AttentionPath> paths_;  // [lanes]; of those who came last.
  std::vector<LaneLoad> loads_;
  std::vector<uint64_t> context_tokens_;
};

}  // namespace lamina::core
