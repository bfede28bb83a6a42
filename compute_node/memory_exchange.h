// SPDX-License-Identifier: Apache-2.0
//
// MemoryExchange: what goes to memory nodes and comes back, carried by the data thread: rows of q,
// k and v into query windows, attention outputs out of reply windows.
//
// Rows go in pieces (coordinator/core/row_chunks.h), the first to every node, then the second. In
// partition token_range a row goes to every node that holds a span of its sequence, with k and v to
// the one that holds its own token; each answers a partial for each span, and these are merged here
// along the tree that one node alone would have followed.
//
// Threading: the data thread. Allocation: per epoch.
// Files: memory_exchange.cc puts and takes; memory_exchange_staging.cc rows as they lie in windows;
// memory_exchange_spans.cc the merge of partials.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/thread_pool.h"
#include "compute_node/sequence_table.h"
#include "compute_node/worker_context.h"
#include "kernels/partial.h"
#include "plan/row_pieces.h"

namespace lamina::compute_node {

class MemoryExchange {
 public:
  // References must outlive this.
  MemoryExchange(const WorkerContext& context, SequenceTable& sequences, ThreadPool& pool);

  // What puts are made from. Errors: the transport's.
  absl::Status RegisterSources();

  // Puts the rows of the lane's slice. Errors: as Peers::Put().
  absl::Status Send(Lane& lane);

  // From now on Take() waits for the outputs of the slice before the lane's.
  void Await(const Lane& lane);

  // Takes the outputs that have come. Whether none is awaited any more.
  // Errors: as Peers::CheckWindow().
  absl::StatusOr<bool> Take(Lane& lane);

  // Appends the signals that Take() still waits for.
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const;

 private:
  // Of one lane and memory node.
  struct Unit {
    bool awaited = false;
    absl::Span<const BFloat16> staged;  // Rows as they lie in the window,
    plan::RowPieces pieces;             // and how they are cut.
  };
  struct LaneState {
    std::vector<Unit> units;                  // [memory nodes]
    std::vector<plan::WindowHeader> headers;  // The same.
    bool partials_due = false;
    // [chunk tokens, k | v] of the memory nodes, one after the other.
    std::vector<BFloat16> kv_staging;
    // Rows as they lie in windows: where queries go first or chunks are of heads, and in partition
    // head: [decode rows, q | k | v] of each memory node's. Partition token_range: [memory nodes,
    // decode rows, q | k | v]. Else rows are sent as they are.
    std::vector<BFloat16> row_staging;
  };

  void BeginSend(Lane& lane, uint32_t node);
  plan::RowPieces PiecesTo(const Lane& lane, uint32_t layer, uint32_t node) const;
  absl::Status SendPiece(Lane& lane, uint32_t node, uint32_t piece);
  absl::Status Put(uint32_t node, size_t offset, absl::Span<const std::byte> source,
                   const transport::SignalUpdate* signal) {
    return context_.peers.Put(MemoryPeer(node), offset, source, signal);
  }
  absl::Status TakeReply(Lane& lane, uint32_t node);

  // memory_exchange_staging.cc
  absl::Span<BFloat16> RowStaging(const Lane& lane, uint32_t node);
  absl::Span<BFloat16> KvStaging(const Lane& lane, uint32_t node);
  void StageRows(Lane& lane, uint32_t node);
  BFloat16* StageHeads(Lane& lane, uint32_t node, HeadRange heads, uint32_t ahead, BFloat16* to);
  void StageChunks(Lane& lane, uint32_t node);
  size_t StagedElements(const Lane& lane, uint32_t node, uint32_t rows, uint32_t kv_heads) const;
  size_t PieceEnd(const Lane& lane, uint32_t node, uint32_t piece) const;

  // memory_exchange_spans.cc
  size_t PartialBytes(uint32_t layer) const;
  void MergePartials(Lane& lane);

  const WorkerContext& context_;
  SequenceTable& sequences_;
  ThreadPool& pool_;
  std::vector<LaneState> lanes_;
  std::vector<std::vector<float>> folded_;  // [threads]: a merged head.
  std::map<uint32_t, std::vector<kernels::PartialStack>> partial_stacks_;  // By head_dim: the same.
};

}  // namespace lamina::compute_node
