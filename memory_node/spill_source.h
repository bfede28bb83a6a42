// SPDX-License-Identifier: Apache-2.0
//
// SpillSource: the source that moves K and V between slots and the spill tier, as plans say. It
// serves no queries.
//
// A sequence, or a run of blocks of the prefix cache, goes in blocks of plan::kSpillBlockTokens
// tokens, in the form that the device keeps (spill_form.h). Threads of the tier copy blocks between
// slots and buffers of theirs, and write and read these, several at once
// (docs/adr/0209-threads-of-the-tier-copy.md).
// One move after the other, in the order of plans.
//
// What goes wrong is reported to the coordinator, and ends neither the step nor the epoch.
//
// Threading: the data thread, but for Copy(). Allocation: buffers in Open(), orders and lists of
// extents for each block.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/extent.h"
#include "memory_node/node_epoch.h"
#include "memory_node/spill_form.h"
#include "memory_node/spill_tier.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "plan/slot_tables.h"
#include "plan/step_plan.h"

namespace lamina::memory_node {

class SpillSource final : public WorkSource {
 public:
  // Told once for each SpillOut and SpillIn, when it is done or has failed.
  using Report = std::function<void(const plan::SpillReport&)>;

  // References must outlive this. Requires: the device has reads() and writes().
  SpillSource(const NodeEpoch& epoch, UnitMeter& meter, SpillTier& tier, Report report);

  // What a plan moves. SpillOuts of slots that nobody writes any more before the report.
  void Take(std::vector<plan::SlotMove> moves);

  absl::Status Open() override;
  // Waits for what the disk is at. Nothing is stored any more.
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
    uint32_t tokens = 0;
    bool of_blocks = false;
  };
  // Where the tokens of a block lie.
  struct Slots {
    std::vector<Extent> extents;
    uint32_t passed = 0;  // The first of these tokens, which have no slots and are not copied.
  };
  // The move at the front of moves_.
  struct Move {
    std::vector<uint32_t> blocks;
    uint32_t tokens = 0;
    uint32_t skip = 0;  // Tokens of the first block that are passed over.
    bool of_blocks = false;
    size_t ordered = 0;  // Blocks that threads have still to do.
    absl::Status status;
  };

  bool HasWork() const;
  void TakeDone();
  absl::Status Begin();
  void BeginOut(plan::SlotMove& move);
  void BeginIn(plan::SlotMove& move);
  void Drop(uint64_t spill);
  // Orders all blocks of the move. Errors: kInternal  it has fewer slots than tokens.
  absl::Status OrderBlocks();
  // The slots of the move's block of this number.
  absl::StatusOr<Slots> SlotsOf(uint32_t block) const;
  // Copies the block between slots and its buffer. By a thread of the tier: nobody else reads or
  // writes these slots meanwhile, and no others are touched.
  absl::Status Copy(bool out, const Slots& slots, std::byte* block) const;
  void End();
  void Fail(uint64_t spill, const absl::Status& why);
  void CountUsed();

  const NodeEpoch& epoch_;
  UnitMeter& meter_;
  SpillTier& tier_;
  const Report report_;
  const std::unique_ptr<SpillForm> form_;
  std::vector<SpillOrder> done_;
  // What is to be done, each with the time at which it was taken.
  std::deque<std::pair<plan::SlotMove, Nanos>> moves_;
  std::optional<Move> move_;
  std::map<uint64_t, Stored> stored_;
};

}  // namespace lamina::memory_node
