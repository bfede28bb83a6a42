// SPDX-License-Identifier: Apache-2.0
//
// SpillSource: the source that moves K and V between slots and the spill tier, as plans say. It
// serves no queries.
//
// A sequence, or a run of blocks of the prefix cache, goes in blocks of plan::kSpillBlockTokens
// tokens, in the form that the device keeps (spill_form.h). Behind the closed blocks of INT8 come
// those of the open one, bf16 out of the sequence's tail and back into the one that it has by then
// (docs/adr/0240-open-blocks-are-spilled-too.md). Threads of the tier copy blocks between
// slots and buffers of theirs, and write and read these, several at once
// (docs/adr/0209-threads-of-the-tier-copy.md). What slots get may be anything before the report,
// since a block is checked in the walk in which it is copied; nobody reads them before.
// Moves begin with their plan, and the thread that does the last block of one reports it: none
// waits for the data thread to come back from attention
// (docs/adr/0231-threads-of-the-tier-report.md).
//
// First blocks of the sequence that is likely to come back next are read before a plan says so
// (docs/adr/0261-blocks-are-read-ahead.md).
//
// What goes wrong is reported to the coordinator, and ends neither the step nor the epoch.
//
// Threading: the data thread, but for Copy() and reports of what went well. Allocation: buffers in
// Open(), orders and lists of extents for each block.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/extent.h"
#include "memory_node/node_epoch.h"
#include "memory_node/spill_form.h"
#include "memory_node/spill_pass.h"
#include "memory_node/spill_tier.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "plan/slot_tables.h"
#include "plan/step_plan.h"

namespace lamina::memory_node {

class SpillSource final : public WorkSource {
 public:
  // Told once for each SpillOut and SpillIn, when it is done or has failed, by any thread.
  using Report = std::function<void(const plan::SpillReport&)>;

  // References must outlive this. Requires: the device has reads() and writes().
  SpillSource(const NodeEpoch& epoch, UnitMeter& meter, SpillTier& tier, Report report);

  // Who is told by the data thread, in a call of this, that a move with this number has ended. All
  // whose reports others may have seen are told of before Take() begins any.
  void SetEnded(std::function<void(uint64_t spill)> ended) { ended_ = std::move(ended); }

  // Begins what a plan moves. SpillOuts of slots that nobody writes any more before the report.
  // Errors: kInternal  a move has fewer slots than tokens.
  absl::Status Take(const std::vector<plan::SlotMove>& moves);

  absl::Status Open() override;
  // Waits for what the disk is at, with a beat at each nap. Nothing is stored any more.
  void Close() override;
  uint32_t share() const override { return 1; }
  absl::StatusOr<bool> TakeStep(Lane&) override { return false; }
  void AppendAwaited(std::vector<transport::SignalCondition>&) override {}
  Nanos LookAt(Nanos now) const override;
  absl::Status Look() override;
  absl::Status Serve(size_t /*condition*/) override { return Look(); }

 private:
  struct Stored {
    std::vector<uint32_t> blocks;
    uint32_t tokens = 0;  // Those of an open block of INT8 are not among them,
    uint32_t open = 0;    // and are so many.
    bool of_blocks = false;
    bool ordered = false;  // It has been read back, or is being.
  };
  // Where the tokens of a block lie.
  struct Slots {
    std::vector<Extent> extents;
    uint32_t passed = 0;  // The first of these tokens, which have no slots and are not copied.
  };
  struct Move {
    bool out = false;
    uint64_t spill = 0;
    std::vector<uint32_t> blocks;
    uint32_t tokens = 0;
    Extent tail = {};   // Where those of an open block of INT8 lie, of which the last blocks are.
    uint32_t skip = 0;  // Tokens of the first block that are passed over.
    bool of_blocks = false;
    Nanos taken = 0;  // When it began.
  };

  void TakeDone();
  absl::Status BeginOut(const plan::SlotMove& move);
  absl::Status BeginIn(const plan::SlotMove& move);
  void Drop(uint64_t spill);
  // The tier reads ahead what is likely to be wanted next. Called when that may have changed.
  void ReadAhead();
  // Orders all blocks of the move, whose tokens have these slots.
  // Errors: kInternal  they are fewer than its tokens.
  absl::Status OrderBlocks(Move move, absl::Span<const Extent> slots);
  // Those of the move's block with this index.
  static absl::StatusOr<Slots> SlotsOf(const Move& move, absl::Span<const Extent> slots,
                                       uint32_t block);
  // Copies a block of this form between slots and its buffer. By a thread of the tier: nobody else
  // reads or writes these slots meanwhile, and no others are touched.
  static absl::Status Copy(const SpillForm& form, bool out, const Slots& slots, SpillPass& block);
  void End(Move& move, const SpillOrder& order);
  // Adds up where the time of one that was read went.
  void CountParts(const Move& move, const SpillOrder& order);
  void Fail(uint64_t spill, const absl::Status& why);
  void TellEnded(uint64_t spill) const;
  void CountUsed();

  const NodeEpoch& epoch_;
  UnitMeter& meter_;
  SpillTier& tier_;
  const Report report_;
  const std::unique_ptr<SpillForm> form_;
  const std::unique_ptr<SpillForm> tail_form_;
  std::function<void(uint64_t spill)> ended_;
  std::vector<SpillOrder> done_;
  uint64_t orders_ = 0;
  std::map<uint64_t, Move> under_way_;  // By the number of its order.
  std::map<uint64_t, Stored> stored_;
};

}  // namespace lamina::memory_node
