// SPDX-License-Identifier: Apache-2.0
//
// FetchedKv: rows attend over K and V that memory nodes put into this node's windows, piece by
// piece (plan/fetch_pieces.h). A window is a small KV arena: the kernels read it where it lies, and
// the rows' own K and V are stored into the slots that the piece leaves for them.
//
// What a piece holds of sequences, and how rows attend to it, are others' to say: whole_kv.h, and
// spanned_kv.h where sequences are cut. Tokens that come as activations (fetch_splits.h), or have
// theirs here (resident_activations.h), have their K and V made here, while the piece with the
// others is on its way; where a layer's weights stream, before its slice can run, as soon as those
// that make k and v are here. K and V that this node has in another way (kept_kv.h) are copied into
// the piece that has the others.
//
// To add one: list in AddRun() what each memory node sends for a run, and append in AddItems() what
// of the run attends to it.
//
// Where heads are spread over memory nodes (partition head) an activation comes in parts, one from
// each, and what is made of it goes to pieces of all of them. Their pieces are of the same runs
// then, and nodes take turns: a piece is taken when no other node is behind it.
//
// Threading: the data thread. Allocation: per epoch, and when a step begins.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compute_node/fetch_splits.h"
#include "compute_node/fetched_runs.h"
#include "compute_node/kept_kv.h"
#include "compute_node/kv_recompute.h"
#include "compute_node/lane.h"
#include "compute_node/making_line.h"
#include "compute_node/peers.h"
#include "compute_node/piece_rows.h"
#include "compute_node/piece_windows.h"
#include "compute_node/resident_activations.h"
#include "compute_node/step_layout.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"
#include "plan/fetch_pieces.h"
#include "plan/fetch_split.h"

namespace lamina::compute_node {

class FetchedKv {
 public:
  virtual ~FetchedKv();
  FetchedKv(const FetchedKv&) = delete;
  FetchedKv& operator=(const FetchedKv&) = delete;

  virtual uint64_t buffer_bytes() const { return recompute_.bytes(); }

  // Errors: as KvRecompute::Prepare(), where memory nodes keep activations of rows of the path.
  absl::Status Prepare();

  // A plan whose step begins. Errors: as FetchSplits::Apply().
  absl::Status Apply(const plan::StepPlan& plan) { return splits_->Apply(plan); }

  // These rows of the lane's step attend here; each run is of one sequence.
  // Errors: as AddRun().
  virtual absl::Status BeginStep(const Lane& lane, absl::Span<const RowRun> runs);

  // The memory nodes that send something to the lane's step.
  std::vector<uint32_t> Senders(const Lane& lane) const;
  // What one of them sends.
  const FetchedRuns& StreamOf(const Lane& lane, uint32_t node) const {
    return lanes_[lane.index].streams[node];
  }

  // The weights of the lane's slice are coming. Makes K and V for the next piece of one memory
  // node, if activations for it are here and WeightSource::KvHere() says that what makes them is.
  // Poll() of the layer before was true. Errors: as Peers::CheckWindow(), Peers::Put(); those of
  // the device.
  absl::Status MakeAhead(Lane& lane);

  // q, k and v of the lane's slice are there, and activations of its rows that stay have been
  // stored: from now on Poll() attends its pieces; before, K and V that are made from token numbers
  // have to be there too. Makes K and V for the next piece of each memory node. The slice's weights
  // stay until the last K and V have been made with them.
  // Errors: as WeightSource::Ask(); those of the device.
  absl::Status BeginLayer(Lane& lane);

  // Attends at most one piece of each memory node that has come, and gives its window back. Whether
  // none is missing. Errors: as Peers::CheckWindow(), Peers::Put().
  absl::StatusOr<bool> Poll(Lane& lane);
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const;

 protected:
  // One run of what a memory node sends.
  struct RunOfNode {
    uint32_t node = 0;
    uint32_t run = 0;
  };

  // For rows of the path `kind`, of which `splits` says what comes. `kept` has K and V that do not
  // come; null where there are none. `scratch` is for items of AddItems(). References must outlive
  // this.
  FetchedKv(const WorkerContext& context, plan::AttentionPath kind,
            std::unique_ptr<FetchSplits> splits, const kernels::AttentionKernel& kernel,
            const ResidentActivations& resident, const KeptKv* kept,
            std::unique_ptr<kernels::AttentionScratch> scratch);

  // Calls Add() with what each memory node sends for the run.
  // Errors: as FetchSplits::Of(); kInternal  the plan does not follow from the tables.
  virtual absl::Status AddRun(const Lane& lane, const RowRun& run, const FetchSplits& splits) = 0;
  // The node sends this for rows of the run, of tokens from `start` on.
  void Add(const Lane& lane, uint32_t node, const RowRun& run, plan::FetchSplit split,
           uint32_t start);

  // Rows attend to the piece at hand, whose own K and V are stored first.
  virtual absl::Status Attend(Lane& lane, uint32_t node);
  // Appends what of the run attends to the piece, whose tokens lie in `extents`.
  virtual void AddItems(Lane& lane, const RunOfNode& which, const PieceRows& rows,
                        absl::Span<const Extent> extents,
                        std::vector<kernels::AttentionItem>& items) = 0;
  // All pieces of the layer have been attended.
  virtual void EndLayer(Lane& /*lane*/) {}

  // K and V of the run's tokens that this node has (FetchRun::kept), which follow each other, go to
  // the piece at hand, from this slot on.
  void FillKept(const Lane& lane, const RunOfNode& which, const PieceRows& rows,
                uint32_t slot) const;

  uint32_t LayerOf(const Lane& lane) const { return lanes_[lane.index].layer; }
  PieceWindows& windows() { return windows_; }

  const WorkerContext& context_;

 private:
  // Memory nodes [first, end), into whose pieces K and V are made together.
  struct Nodes {
    uint32_t first = 0;
    uint32_t end = 0;
  };
  struct LaneState {
    uint32_t layer = 0;
    bool together = false;             // What the step makes goes to pieces of all memory nodes.
    bool begun_ahead = false;          // Its pieces have been begun, but its slice has not run.
    bool holds_weights = false;        // Those of the layer's slice.
    bool ended = true;                 // All of the layer have been attended.
    uint32_t made_tokens = 0;          // The layer's, whose K and V have been made,
    Nanos made_nanos = 0;              // and the time for it.
    std::vector<FetchedRuns> streams;  // [memory nodes]
  };

  void BeginPieces(const Lane& lane);
  void ReleaseWeights(LaneState& state);
  // The memory nodes that go together with this one.
  Nodes GroupOf(const Lane& lane, uint32_t node) const;
  // Whether the node's next piece has come and it is its turn: those of activations take it
  // together.
  bool MayTake(const Lane& lane, uint32_t node) const;
  // How many pieces of the layer all of them have given back.
  size_t GivenBackByAll(const Lane& lane, Nodes nodes) const;
  absl::Status TakePiece(Lane& lane, uint32_t node);
  absl::Status TakeActivations(Lane& lane, Nodes nodes);
  absl::Status Recompute(const Lane& lane, Nodes nodes);
  // Makes K and V of activations that stay for the node's next piece of K and V,
  absl::Status Remake(const Lane& lane, uint32_t node);
  // if there are some that have not been made,
  bool RemakesNext(const Lane& lane, uint32_t node) const;
  // which is the current piece, or behind one of activations.  Requires: the node's have not ended.
  size_t BehindActivations(const Lane& lane, uint32_t node) const {
    return windows_.piece(lane, node).activations() ? 1 : 0;
  }
  // Whether K and V of the layer are still to be made, from what is here or comes.
  bool IsToMake(const Lane& lane) const;
  // Makes K and V of the tokens that have been listed, from `from_`, whose parts are so wide, in
  // the windows of pieces behind the nodes' current ones.
  absl::Status Make(const Lane& lane, Nodes nodes, size_t behind,
                    absl::Span<const uint32_t> widths);

  const uint32_t activation_width_;  // Elements of what some tokens come as; 0: none do.
  std::vector<uint32_t> widths_;     // [memory nodes]: elements of each one's part of that.
  const kernels::AttentionKernel& kernel_;
  const std::unique_ptr<kernels::AttentionScratch> scratch_;
  const ResidentActivations& resident_;
  const KeptKv* const kept_;
  KvRecompute recompute_;
  MakingLine making_;
  std::unique_ptr<FetchSplits> splits_;
  PieceWindows windows_;
  std::vector<LaneState> lanes_;
  std::vector<Extent> extents_;              // Slots that the items name.
  std::vector<uint32_t> positions_;          // Positions of tokens that are recomputed,
  std::vector<const BFloat16*> from_;        // the parts of their activations,
  std::vector<Extent> recomputed_;           // their slots,
  std::vector<KvRecompute::Planes> planes_;  // and the planes that have these.
  std::vector<kernels::AttentionItem> items_;
};

// For items of so many query tokens and tokens, of any layer: that with most to a row serves all.
std::unique_ptr<kernels::AttentionScratch> MakePieceScratch(const WorkerContext& context,
                                                            const kernels::AttentionKernel& kernel,
                                                            uint32_t query_tokens, uint32_t tokens);

// Over spans where the epoch's sequences are cut, else over whole ones, for rows of path fetch,
// recompute or hybrid. Arguments are those of the constructor; `kernel` attends. References must
// outlive it.
std::unique_ptr<FetchedKv> MakeFetchedKv(const WorkerContext& context, plan::AttentionPath kind,
                                         const kernels::AttentionKernel& kernel,
                                         const ResidentActivations& resident, const KeptKv* kept);

}  // namespace lamina::compute_node
