// SPDX-License-Identifier: Apache-2.0
//
// SparseStream: the source that puts K and V of chosen tokens into the windows of the compute node
// where rows attend to them (path sparse). When a step begins the compute node says for every layer
// and sequence which tokens it wants (plan/token_sets.h); from then on the stream runs by itself,
// layer by layer, as far ahead as windows go.
//
// The pieces are those of plan/fetch_pieces.h, as if the chosen tokens were all that there are: K
// and V of these lie one behind the other, and so plain attention reads them. As with path fetch
// two windows take turns, a turn gathers and puts at most kTurnBytes, and what leaves is K and V of
// the piece's tokens and zeros, of no other sequence.
//
// Sets come from a peer: bits of tokens that the sequence does not have before the step end the
// epoch, and nothing is sent of the step.
//
// Threading: the data thread. Allocation: in Open(), when a step begins, and when a layer's runs
// are cut more often than any before.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/extent.h"
#include "kernels/kv_device.h"
#include "memory_node/node_epoch.h"
#include "memory_node/query_checks.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "plan/fetch_pieces.h"

namespace lamina::memory_node {

class SparseStream final : public WorkSource {
 public:
  // One turn puts at most so many bytes of K and V together.
  static constexpr size_t kTurnBytes = size_t{256} << 10;

  // References must outlive this.
  SparseStream(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed, UnitMeter& meter,
               kernels::KvReads& kv);

  // Registers what is put. Errors: the transport's, marked as its.
  absl::Status Open() override;
  void Close() override {}
  uint32_t share() const override { return 1; }
  // Takes part in a step with rows that attend over there, and leaves its units to others.
  absl::StatusOr<bool> TakeStep(Lane& lane) override;
  // The token sets of lanes that have none yet, and the credits of those whose next window is still
  // in use.
  void AppendAwaited(std::vector<transport::SignalCondition>& conditions) override;
  Nanos LookAt(Nanos now) const override;
  absl::Status Look() override;
  absl::Status Serve(size_t /*condition*/) override { return Look(); }

 private:
  enum class Phase : uint8_t { kIdle, kAwaitsSets, kSends };
  // Where one lane's stream is.
  struct Stream {
    Phase phase = Phase::kIdle;
    std::vector<plan::FetchRun> rows;  // Of the step.
    std::vector<uint64_t> sets;        // Of all layers, as they came.
    uint32_t layer = 0;
    // Of the layer: the rows with as many tokens before them as are chosen, and their slots.
    std::vector<plan::FetchRun> runs;
    std::vector<std::vector<Extent>> slots;
    std::vector<plan::FetchPiece> pieces;
    size_t piece = 0;   // The next one of these, and
    size_t done = 0;    // how much of it has left: tiles, heads in order.
    uint64_t sent = 0;  // Whole pieces, in the epoch.
    // Two windows as they are to lie at the compute node. A source of puts, until its credit. Empty
    // over shared memory.
    std::vector<std::byte> staged;
  };

  transport::SignalCondition Awaited(const Stream& stream) const;
  bool MayGoOn(const Stream& stream) const;
  absl::Status GoOn(Lane& lane, Stream& stream);
  absl::Status TakeSets(const Lane& lane, Stream& stream);
  void BeginLayer(const Lane& lane, Stream& stream);
  absl::Status PutTiles(Lane& lane, Stream& stream);
  absl::Status PutHeader(const Lane& lane, Stream& stream);
  // Tiles [first, end) of the piece, counted over its heads.
  absl::Status Gather(const Stream& stream, size_t first, size_t end, BFloat16* k, BFloat16* v);
  absl::Status Put(Stream& stream, size_t offset, size_t bytes,
                   const transport::SignalUpdate* signal);
  absl::Status EndPiece(Lane& lane, Stream& stream);
  std::byte* Gathered(Stream& stream) const;  // Where the piece at hand is gathered.
  uint32_t IndexOf(const Stream& stream) const {
    return static_cast<uint32_t>(&stream - streams_.data());
  }

  const NodeEpoch& epoch_;
  const QueryChecks& checks_;
  StepFeed& feed_;
  UnitMeter& meter_;
  kernels::KvReads& kv_;
  std::byte* direct_ = nullptr;  // The compute node's region, where it is shared memory.
  std::vector<Stream> streams_;  // [lanes]
  uint32_t next_lane_ = 0;       // Lanes take turns.
};

}  // namespace lamina::memory_node
