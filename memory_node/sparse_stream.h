// SPDX-License-Identifier: Apache-2.0
//
// SparseStream: the source that puts K and V of chosen tokens into the windows of the compute node
// where rows attend to them (path sparse). When a step begins the compute node says for every layer
// and sequence which tokens it wants (plan/token_sets.h); from then on the stream runs by itself,
// layer by layer, as far ahead as windows go.
//
// The pieces are those of plan/fetch_pieces.h, as if the chosen tokens were all that there are: K
// and V of these lie one behind the other, and so plain attention reads them.
//
// Sets come from a peer: bits of tokens that the sequence does not have before the step end the
// epoch, and nothing is sent of the step.
//
// Threading: the data thread. Allocation: in Open(), when a step begins, and when a layer's runs
// are cut more often than any before.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/extent.h"
#include "kernels/kv_device.h"
#include "memory_node/node_epoch.h"
#include "memory_node/piece_stream.h"
#include "memory_node/query_checks.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "plan/fetch_pieces.h"

namespace lamina::memory_node {

class SparseStream final : public WorkSource {
 public:
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
    std::vector<plan::FetchRun> rows;  // The step's.
    std::vector<uint64_t> sets;        // All layers', as they came.
    // The layer's rows with as many tokens before them as are chosen, and their slots.
    std::vector<plan::FetchRun> runs;
    std::vector<std::vector<Extent>> slots;
    std::vector<RunTokens> tokens;  // Those tokens themselves.
    PieceStream pieces;
  };

  transport::SignalCondition Awaited(const Stream& stream) const;
  bool MayGoOn(const Stream& stream) const;
  absl::Status GoOn(Lane& lane, Stream& stream);
  absl::Status TakeSets(const Lane& lane, Stream& stream);
  void BeginLayer(const Lane& lane, Stream& stream, uint32_t layer);
  uint32_t IndexOf(const Stream& stream) const {
    return static_cast<uint32_t>(&stream - streams_.data());
  }

  const NodeEpoch& epoch_;
  const QueryChecks& checks_;
  StepFeed& feed_;
  kernels::KvReads& kv_;
  std::vector<Stream> streams_;  // [lanes]
  uint32_t next_lane_ = 0;       // Lanes take turns.
};

}  // namespace lamina::memory_node
