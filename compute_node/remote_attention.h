// SPDX-License-Identifier: Apache-2.0
//
// RemoteAttention: rows attend at the memory nodes that hold K and V. The data thread carries them:
// q, k and v into query windows, attention outputs out of reply windows. Prompt chunks attend here,
// over the scratch KV of their sequences, while their k and v go to the memory nodes.
//
// Rows go in pieces (plan/row_pieces.h), the first to every node, then the second. In partition
// token_range a row goes to every node that holds a span of its sequence, with k and v to the one
// that holds its own token; each answers a partial for each span, and these are merged here along
// the tree that one node alone would have followed (partial_merge.h).
//
// Threading: as AttentionPath. Allocation: per epoch; per step for who gets which rows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "compute_node/attention_path.h"
#include "compute_node/partial_merge.h"
#include "compute_node/remote_rows.h"
#include "compute_node/scratch_attention.h"
#include "compute_node/worker_context.h"
#include "plan/query_window.h"
#include "plan/reply_window.h"
#include "plan/row_pieces.h"

namespace lamina::compute_node {

class RemoteAttention final : public AttentionPath {
 public:
  // `chunks` attends prompt chunks. References must outlive this.
  RemoteAttention(const WorkerContext& context, const ScratchAttention& chunks);

  uint64_t buffer_bytes() const override;
  absl::Status Open() override;
  absl::Status BeginStep(Lane& lane, const PathRows& rows) override;
  absl::Status Attend(Lane& lane) override;
  bool Await(Lane& lane) override;
  absl::StatusOr<bool> Poll(Lane& lane) override;
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const override;

  // The rows of the lane's step, which has begun, by memory node.
  const RemoteRows& RowsOf(const Lane& lane) const { return lanes_[lane.index].rows; }
  // Header of the query window with the rows of the lane's slice that go to the memory node.
  plan::WindowHeader QueryHeader(const Lane& lane, uint32_t node) const;
  // Header that the outputs of the layer that come from it must have.
  plan::WindowHeader ReplyHeader(const Lane& lane, uint32_t layer, uint32_t node) const;

 private:
  // What one lane exchanges with one memory node.
  struct Unit {
    bool awaited = false;
    plan::QueryWindowWriter window{{}, 0};
    const BFloat16* staged = nullptr;  // Rows as they lie in the window.
    // When the last piece that was sent began to leave, and its bytes.
    Nanos sent_at = 0;
    size_t sent_bytes = 0;
  };
  struct LaneState {
    PathRows path_rows;
    RemoteRows rows;
    std::vector<Unit> units;                  // [memory nodes]
    std::vector<plan::WindowHeader> headers;  // [memory nodes]
    bool awaited = false;  // There are outputs that Poll() has not seen complete.
    // [chunk tokens, k | v] of the memory nodes, one after the other.
    std::vector<BFloat16> kv_staging;
    // Rows as they lie in windows: where queries go first or chunks are of heads, and in partition
    // head: [decode rows, q | k | v] of each memory node's. Partition token_range: [memory nodes,
    // decode rows, q | k | v]. Else rows are sent as they are.
    std::vector<BFloat16> row_staging;
  };

  const NodeRows& RowsTo(const Lane& lane, uint32_t node) const { return RowsOf(lane).nodes[node]; }
  absl::Status Send(Lane& lane);
  void BeginSend(Lane& lane, uint32_t node);
  plan::RowPieces PiecesTo(const Lane& lane, uint32_t layer, uint32_t node) const;
  absl::Status SendPiece(Lane& lane, uint32_t node, uint32_t piece);
  absl::Status Put(uint32_t node, size_t offset, absl::Span<const std::byte> source,
                   const transport::SignalUpdate* signal) {
    return context_.peers.Put(MemoryPeer(node), offset, source, signal);
  }
  absl::Status TakeReply(Lane& lane, uint32_t node);
  // Brings the rows of a reply to where the executor reads them, from a window that is the host's
  // or the device's.
  void TakeOnHost(Lane& lane, uint32_t node, const plan::ReplyWindowReader& window);
  void TakeOnDevice(Lane& lane, uint32_t node, const plan::ReplyWindowReader& window);

  plan::LayerRows LayerRowsOf(Lane& lane) const;
  BFloat16* RowStaging(const Lane& lane, uint32_t node);
  BFloat16* KvStaging(const Lane& lane, uint32_t node);
  void GatherPrompts(Lane& lane, uint32_t node);
  // Outputs of the slice before the lane's, in memory that may be the device's.
  plan::ReplyWindowReader ReplyFrom(const Lane& lane, uint32_t node) const;

  const WorkerContext& context_;
  ScratchAttention chunks_;
  std::vector<LaneState> lanes_;
  PartialMerge merge_;
};

}  // namespace lamina::compute_node
