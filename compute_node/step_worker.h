// SPDX-License-Identifier: Apache-2.0
//
// StepWorker: the data thread of a compute node in one epoch. Runs the slices of all lanes, sends
// q, k, v to memory nodes, attends prompt chunks over the scratch KV, takes attention outputs, and
// samples.
//
// Each lane is a small state machine; the thread runs ready lanes in the order of LaneTurns. While
// a lane's attention is away, another lane's slice runs: with two lanes and balanced times neither
// this node nor the memory nodes wait.
//
//   idle --plan--> ready --slice k, put q k v--> away --replies--> ready (k + 1) ... --tail--> idle
//
// With several replicas a lane's slices run in turn on all of them, as PipelineSchedule says. Every
// replica keeps the tables of every lane. The one that ran slice k puts the context to the one that
// runs slice k + 1, where the attention outputs go too; the one that samples puts the tokens to all
// others. A lane whose step goes on elsewhere is `elsewhere` until these tokens come.
//
// A replica for prompts alone (prefill.mode dedicated) has lanes of its own, of chunks, and forgets
// a sequence once it has sampled its first token; the others take that token and go on.
//
// A replica may have stages, each on a compute node of its own (coordinator/core/stages.h). To this
// worker that is another schedule: the next slice runs on another node, which gets the context. So
// here "replicas" are the other compute nodes. What they get of prompt chunks besides is the
// attention output, which was computed here.
//
// Under policy local there are no memory nodes: decode rows and chunks attend here, over the KV of
// this node (local_attention.h), and a lane is never away.
//
// A replica may have shards (tensor parallelism): the configuration and the executor's graph are
// this shard's own, with some heads and columns. Where a slice needs a sum over shards, the lane
// puts its part to the others and is away until theirs have come; other lanes run meanwhile, so
// that shards need not agree on an order of lanes. The LM head is shard 0's: the others' steps end
// when its tokens come.
//
// A device may exchange rows with memory nodes by itself (kernels/window_exchange.h). Steps of
// decode rows alone are then given to it ahead of time, a unit at each of the lane's turns, and the
// thread only looks how far it has come:
//
//   ready --take, slice k, send--> ahead --take k - 1 has ended--> ready (k + 1) ... --tail--> idle
//
// Threading: Run() on one thread; PushPlan() and Stop() from any other.
// Allocation: per step (plans, results), not per slice.
// Files: step_worker.cc the loop and slices; step_worker_tail.cc the last slice and sampling;
// step_worker_prepare.cc what is made before; step_worker_begin.cc how a step is laid out;
// step_worker_exchange.cc what goes to memory nodes and comes back; step_worker_spans.cc the same
// for sequences cut into spans; step_worker_replicas.cc what replicas tell each other;
// step_worker_local.cc attention under policy local; step_worker_shards.cc what shards tell each
// other; step_worker_device.cc steps whose rows the device exchanges; step_worker_links.cc how fast
// the links are, before any of that.

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "compute_node/local_attention.h"
#include "compute_node/sequence_table.h"
#include "compute_node/slice_executor.h"
#include "control/epoch_shape.h"
#include "control/inbox.h"
#include "control/node_handler.h"
#include "control/refusals.h"
#include "control/work_meter.h"
#include "coordinator/core/pipeline_schedule.h"
#include "coordinator/core/window_layout.h"
#include "kernels/attention.h"
#include "kernels/compute_device.h"
#include "kernels/partial.h"
#include "kernels/window_exchange.h"
#include "transport/link_probe.h"
#include "transport/transport.h"

namespace lamina::compute_node {

// Counts that other threads read while the worker runs. Written by the worker alone.
struct StepCounters {
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> kv_bytes_read{0};  // Policy local.
  std::atomic<uint64_t> units{0};
  std::atomic<uint64_t> replayed_units{0};
  std::atomic<uint64_t> device_units{0};
  control::UnitLine unit_line;
  control::Refusals refusals;
  control::WorkMeter meter;
};

class StepWorker {
 public:
  struct Options {
    control::EpochConfig config;  // As the node's shard works with it.
    core::WindowShape shape;      // Of the cluster's, with the widths of contexts and parts.
    uint32_t node = 0;            // Own index among the compute nodes.
    uint32_t vocabulary = 0;
    model::GrammarCache* grammars = nullptr;
    kernels::KvDevice* kv = nullptr;    // Policy local: where K and V are. Else null.
    Nanos peer_deadline = Seconds(60);  // Longest wait for an attention output.
  };

  // All references must outlive the worker.
  StepWorker(const Options& options, SliceExecutor& executor, transport::Transport& transport,
             transport::Region& region, kernels::ChunkAttention& chunks, ThreadPool& pool,
             control::NodeReporter& reporter, StepCounters& counters);
  ~StepWorker();
  StepWorker(const StepWorker&) = delete;
  StepWorker& operator=(const StepWorker&) = delete;

  // Takes the memory of the lanes, and records their slices if the device can; if that fails they
  // run op by op, and the log says why. Call before SetPeers(). Errors: those of the device.
  absl::Status Prepare();

  // Queries for memory node i go to queries[i], what goes to compute node i to replicas[i] (null
  // for the own one). Call before Run().
  void SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> queries,
                std::vector<std::unique_ptr<transport::RemoteRegion>> replicas);

  // Works until Stop() (OK) or until something is wrong; `blamed` then names the peer, if one.
  absl::Status Run(std::string& blamed);

  // For people, after Prepare(): how rows get to a device and from there, and why not by itself.
  // Empty on the processor.
  std::string DescribeRows() const;

  void PushPlan(core::StepPlan plan);
  void Stop();

 private:
  enum class Phase : uint8_t { kIdle, kReady, kAway, kAhead, kElsewhere };

  struct RowRange {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  // What of a step concerns one memory node.
  struct NodePart {
    RowRange rows;     // Decode rows.
    RowRange kv_rows;  // Of the lane's staging of chunk k and v.
    bool pending = false;
    // Partition token_range: the rows, of which the first `own_rows` have their own token there.
    std::vector<uint32_t> span_rows;
    uint32_t own_rows = 0;
    uint32_t partials = 0;  // That it answers.
    // While a unit is sent: its rows as they lie in the window, k and v of its own row or not.
    absl::Span<const BFloat16> staged = {};
    core::RowPieces pieces;
    bool involved() const { return rows.count > 0 || kv_rows.count > 0; }
  };
  // Of a row's span: where its reply lies.
  struct Partial {
    uint32_t node = 0;
    uint32_t index = 0;  // Among the node's.
  };
  struct Chunk {
    core::PrefillChunk plan;
    uint32_t first_row = 0;  // Of the step.
    Extent scratch;          // All tokens of the sequence up to this chunk's end.
  };
  // A row of the last slice and what it is for.
  struct TailRow {
    uint32_t row = 0;
    core::SequenceId sequence = 0;
    uint32_t position = 0;  // Of the row's token.
    bool score = false;
  };
  struct Lane {
    Phase phase = Phase::kIdle;
    std::vector<core::StepPlan> plans;  // Not yet begun, oldest first.
    core::StepPlan plan;                // Of the step that runs.
    uint32_t slice = 0;                 // Next to run here,
    size_t op = 0;                      // from this op on.
    bool reducing = false;              // Parts of other shards are awaited, for op `op`.
    uint64_t reductions = 0;            // So far.
    bool replayed = false;              // The ops that ran last had been recorded.
    bool by_device = false;             // The device exchanges the step's rows. Then:
    bool take_due = false;              // the outputs before `slice` are not ordered yet;
    bool taking = false;                // an order of outputs has not been seen to end;
    uint32_t taking_layer = 0;          // these are of this layer.
    bool pinned = false;                // The step stays on one replica.
    bool context_pending = false;       // Of the slice before, from another compute node.
    Nanos away_since = 0;
    std::vector<uint32_t> token_ids;
    std::vector<uint32_t> positions;
    uint32_t decode_rows = 0;
    Nanos slices_nanos = 0;  // Spent on slices of the step here.
    uint32_t slices_run = 0;
    std::vector<Chunk> chunks;
    std::vector<NodePart> nodes;
    std::vector<TailRow> tail;
    size_t tail_done = 0;     // Rows of `tail` that are sampled or scored.
    size_t head_columns = 0;  // Logits of the next rows that are there.
    bool head_due = false;    // It has come to the head, which another lane is in.
    core::StepResult result;  // Of the rows that are done.
    ValueBuffers buffers;
    std::vector<core::WindowHeader> headers;  // [memory nodes], the source of puts.
    // [chunk tokens, k | v] of the memory nodes, one after the other.
    std::vector<BFloat16> kv_staging;
    // Rows as they lie in windows: where queries go first or chunks are of heads, and in partition
    // head: [decode rows, q | k | v] of each memory node's. Partition token_range: [memory nodes,
    // decode rows, q | k | v]. Else rows are sent as they are.
    std::vector<BFloat16> row_staging;
    // Partition token_range: of each decode row and span, rows by rows; where each row's begin.
    std::vector<Partial> partials;
    std::vector<uint32_t> first_partial;
    bool partials_due = false;
    // The own part of the latest two reductions: header and rows.
    std::vector<std::byte> parts[2];
    std::vector<uint32_t> kept_rows;  // Of the last slice's.
    core::WindowHeader context_header;
    // Header and entries, [plan_ahead]: each is free again when its step is done everywhere.
    std::vector<std::vector<std::byte>> token_messages;
  };

  // The time since the last lap went into `part`. Returns how much it was.
  Nanos Lap(control::WorkPart part) { return Lap({.part = part}); }
  Nanos Lap(control::TraceEvent event);
  // The same, of a lane's `layer`.
  Nanos LapOf(const Lane& lane, control::WorkPart part, uint32_t layer,
              uint8_t peer = control::TraceEvent::kNoPeer, size_t bytes = 0);
  // The same of what ended at `end`.
  void LapUntil(const Lane& lane, control::WorkPart part, uint32_t layer, Nanos end,
                uint8_t peer = control::TraceEvent::kNoPeer);
  control::TraceEvent EventOf(const Lane& lane, control::WorkPart part, uint32_t layer,
                              uint8_t peer) const;
  // `bytes` of it have gone to the peer in `spent`.
  void CountSent(control::LinkCounters& link, size_t bytes, Nanos spent);
  void RecordSlices();
  absl::Status RegisterSources();
  absl::Status MeasureLinks(std::string& blamed);
  absl::Status AnswerReplicas(const transport::WaitOptions& wait, std::string& blamed);
  absl::Status MeasurePeer(const std::string& name, const transport::LinkAsker& asker,
                           const transport::WaitOptions& wait,
                           std::vector<control::LinkReport>& reports);
  absl::Status Loop(std::string& blamed);
  bool AnyPending() const;  // Puts that have not left yet.
  bool Runs(uint32_t lane) const { return schedule_.Runs(options_.node, lane); }
  void TakePlans();
  absl::Status BeginSteps();
  absl::Status BeginStep(Lane& lane);
  absl::Status PlaceRows(Lane& lane);
  absl::Status PlaceChunks(Lane& lane);
  void ChooseTailRows(Lane& lane);
  // The lane's next slice from `from` on that runs here, if there is one.
  void GoTo(Lane& lane, uint32_t from);
  void SetReady(Lane& lane);
  void EndStep(Lane& lane);
  void ForgetPrefilled(const Lane& lane);
  absl::Status RunSlice(Lane& lane, std::string& blamed);
  absl::StatusOr<bool> RunOps(Lane& lane, std::string& blamed);
  void NoteSlice(Lane& lane, Nanos elapsed);
  absl::Status Send(Lane& lane, std::string& blamed);
  void BeginSend(Lane& lane, uint32_t node);
  core::RowPieces PiecesTo(const Lane& lane, uint32_t layer, uint32_t node) const;
  size_t StagedElements(const Lane& lane, uint32_t node, uint32_t rows, uint32_t kv_heads) const;
  absl::Status SendPiece(Lane& lane, uint32_t node, uint32_t piece);
  size_t PieceEnd(const Lane& lane, uint32_t node, uint32_t piece) const;
  std::vector<absl::Span<std::byte>> ContextOf(Lane& lane, uint32_t slice) const;
  absl::Status SendContext(Lane& lane, std::string& blamed);
  absl::Status SendTokens(Lane& lane, const core::StepResult& result, std::string& blamed);
  absl::Status Put(transport::RemoteRegion& peer, control::LinkCounters& link, size_t offset,
                   absl::Span<const std::byte> source, const transport::SignalUpdate* signal);
  void StageRows(Lane& lane, uint32_t node);
  BFloat16* StageHeads(Lane& lane, uint32_t node, HeadRange heads, uint32_t ahead, BFloat16* to);
  void StageChunks(Lane& lane, uint32_t node);
  absl::Span<BFloat16> RowStaging(Lane& lane, uint32_t node);
  absl::Span<BFloat16> KvStaging(Lane& lane, uint32_t node);
  // Whether memory nodes get some columns of every row, and not whole rows.
  bool by_head() const { return !options_.config.heads.empty(); }
  HeadRange HeadsOf(uint32_t layer, uint32_t node) const {
    return control::HeadsOf(options_.config, options_.config.layers[layer], node);
  }
  // The layer as a memory node computes it.
  AttentionDescriptor PartOf(uint32_t layer, uint32_t node) const {
    return lamina::PartOf(options_.config.layers[layer], HeadsOf(layer, node));
  }
  bool Holds(uint32_t node, const Sequence& sequence) const {
    return control::Holds(options_.config, node, sequence.join.memory_node);
  }
  // Whether K and V of that token, all or some heads, are on the node.
  bool HoldsToken(uint32_t node, const Sequence& sequence, uint32_t token) const {
    return by_span() ? sequence.spans[token / options_.config.span_tokens] == node
                     : Holds(node, sequence);
  }
  // step_worker_spans.cc: partition token_range.
  bool by_span() const { return options_.config.span_tokens > 0; }
  const std::vector<uint32_t>& SpansOf(const Lane& lane, uint32_t row) {
    return sequences_.Find(lane.plan.rows[row].sequence)->spans;
  }
  absl::Status PlaceSpans(Lane& lane);
  void PlacePartials(Lane& lane);
  size_t PartialBytes(uint32_t layer) const;
  void MergePartials(Lane& lane);
  // step_worker_shards.cc
  void FindShards();
  absl::Status KeepTailRows(Lane& lane);
  std::vector<std::byte>& PartOfSum(Lane& lane) { return lane.parts[lane.reductions % 2]; }
  absl::Status SendPart(Lane& lane, std::string& blamed);
  bool IsHere(const Lane& lane, uint32_t shard) const {
    return shard == shard_.index ||
           region_.LoadSignal(layout_.part_word(shard, IndexOf(lane))) >= lane.reductions;
  }
  uint32_t NextMissingPart(const Lane& lane) const;
  absl::StatusOr<bool> TakeParts(Lane& lane, std::string& blamed);
  absl::Status AttendChunks(Lane& lane);
  absl::Status AttendHere(Lane& lane);  // step_worker_local.cc
  // step_worker_device.cc
  void MakeExchange();
  std::string WhyRowsAreCopied() const;
  void OpenWindows();
  bool GoesByDevice(const Lane& lane) const;
  absl::Status TakeByDevice(Lane& lane);
  absl::Status SendByDevice(Lane& lane);
  absl::StatusOr<bool> HasGotOn(Lane& lane, std::string& blamed);
  absl::Status FaultOf(const Lane& lane, const kernels::FailedTake& failed, std::string& blamed);
  void NoteTaken(Lane& lane);
  void NapBesideDevice() const;
  core::WindowHeader QueryHeader(const Lane& lane, uint32_t node) const;
  core::WindowHeader ReplyHeader(const Lane& lane, uint32_t layer, uint32_t node) const;
  absl::Status TakeArrivals(std::string& blamed);
  absl::StatusOr<bool> TakeReplies(Lane& lane, std::string& blamed);
  absl::Status TakeReply(Lane& lane, uint32_t node);
  absl::StatusOr<bool> TakeContext(Lane& lane);
  absl::StatusOr<bool> TakeTokens(Lane& lane);
  absl::Status ApplyTokens(const Lane& lane, const std::byte* entries, uint32_t count);
  absl::Status CheckWindow(const core::WindowHeader& header, const core::WindowHeader& expected,
                           const std::string& sender);
  absl::Status WaitForArrivals(std::string& blamed);
  void CountWait(uint8_t peer);
  absl::Status NothingFrom(const std::string& peer) const;
  // The next chunk of the LM head; behind the last one, the step's end.
  absl::Status RunTail(Lane& lane, std::string& blamed);
  void EndHead();
  absl::Status SampleTail(Lane& lane, size_t count);
  absl::Status SampleOnDevice(const Lane& lane, size_t count);
  bool InHead(const Lane& lane) const {
    return lane.phase == Phase::kReady && lane.slice + 1 == executor_.slice_count();
  }
  // Of the attention after `slice`.
  uint64_t UnitValue(const Lane& lane, uint32_t slice) const {
    return layout_.SignalValue(lane.plan.step, slice);
  }
  uint32_t NodeOf(const Lane& lane, uint32_t slice) const {
    return schedule_.NodeOf(lane.plan.lane, lane.plan.step, slice, lane.pinned);
  }
  // Whose tokens end the step.
  uint32_t TailNodeOf(const Lane& lane) const {
    return schedule_.HeadNodeOf(lane.plan.lane, lane.plan.step, lane.pinned);
  }
  uint32_t IndexOf(const Lane& lane) const { return static_cast<uint32_t>(&lane - lanes_.data()); }
  RowInputs Rows(const Lane& lane) const { return {lane.token_ids, lane.positions}; }

  const Options options_;
  const core::WindowLayout layout_;
  const ShardPart shard_;
  const core::PipelineSchedule schedule_;
  SliceExecutor& executor_;
  transport::Transport& transport_;
  transport::Region& region_;
  kernels::ChunkAttention& chunks_;  // Of the layers that run here,
  const uint32_t first_layer_;       // from this one on.
  ThreadPool& pool_;
  control::NodeReporter& reporter_;
  StepCounters& counters_;
  std::vector<std::unique_ptr<transport::RemoteRegion>> queries_;
  std::vector<std::unique_ptr<transport::RemoteRegion>> replicas_;
  control::Inbox<core::StepPlan> inbox_;
  transport::AbortWord abort_{0};

  // Null: there is none. Made by Prepare(), which also says why not.
  std::unique_ptr<kernels::WindowExchange> exchange_;
  std::string why_copied_;

  // Worker thread only.
  bool windows_open_ = false;  // The exchange reaches all peers.
  std::vector<kernels::RowsIn> rows_in_;
  SequenceTable sequences_;
  std::unique_ptr<LocalAttention> local_;  // Policy local.
  std::vector<Lane> lanes_;
  core::LaneTurns turns_;
  ValueBuffers tail_buffers_;
  const Lane* tail_lane_ = nullptr;  // Whose logits are being made there.
  std::vector<kernels::ChunkItem> items_;
  std::vector<transport::SignalCondition> conditions_;
  std::unique_ptr<kernels::RowSampler> sampler_;        // Of the device; may be null.
  std::vector<kernels::SampleRequest> device_samples_;  // Of the rows that are sampled.
  std::vector<uint32_t> host_rows_;                     // Those that the host samples or scores.
  std::vector<kernels::SampleScratch> sample_scratch_;  // One a thread.
  std::vector<std::vector<float>> folded_;              // The same: a merged head.
  std::map<uint32_t, std::vector<kernels::PartialStack>> partial_stacks_;  // By head_dim: the same.
  std::vector<uint32_t>
      shard_nodes_;  // Those that sum with this one, by shard; one if there are none.
  std::vector<const float*> parts_;  // Of the sum at hand.
  std::vector<core::StepPlan> taken_;
  LineFit slice_times_;
  std::vector<control::LinkCounters*> memory_links_;   // [memory nodes]
  std::vector<control::LinkCounters*> compute_links_;  // [compute nodes]
  std::vector<uint8_t> awaited_;                       // Peers of conditions_.
  Nanos lap_ = 0;                                      // End of the last one.
};

}  // namespace lamina::compute_node
