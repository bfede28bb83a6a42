// SPDX-License-Identifier: Apache-2.0
//
// AttentionWorker: the data thread of a memory node in one epoch. Polls query windows, copies k and
// v into slots, attends, and puts the outputs into reply windows.
//
// It decides nothing: slots, rows and order come from plans. A query window may arrive before its
// plan (shared memory outruns gRPC): the worker waits for the plan. Plans in which this node has no
// part never get a window; their changes to the tables are applied as soon as the step before is
// done.
//
// Rows of a unit come in chunks (coordinator/core/row_chunks.h), of rows or of heads; each is
// attended when it is here, and its outputs leave at once. Lanes take turns between chunks that
// have not come yet.
//
// Where compute nodes are shards, each sends the rows of its own heads: a unit comes in one part
// for each shard that has heads here, in any order, and is served part by part. The device stores
// and attends these heads by themselves, so that windows need no gathering. A replica for prompts
// alone may have other shards than those that decode.
//
// Where the device and all windows allow it, steps of decode rows in one piece are the device's:
// their units are launched ahead of the data, and the worker only looks how far they are. The
// choice is made when a step begins, so the worker and the device never serve the same unit.
//
// Files: attention_worker.cc the loop, plans and tables; attention_unit.cc one attention;
// attention_spans.cc what is different for sequences cut into spans; attention_query_first.cc what
// is where queries come ahead of their k and v; attention_waits.cc steps that the device serves.
//
// Threading: Run() on one thread; PushPlan() and Stop() from any other.
// Allocation: none per unit; tables grow when sequences join.

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "control/epoch_shape.h"
#include "control/inbox.h"
#include "control/node_handler.h"
#include "control/refusals.h"
#include "control/work_meter.h"
#include "coordinator/core/pipeline_schedule.h"
#include "coordinator/core/slot_tables.h"
#include "coordinator/core/step_plan.h"
#include "coordinator/core/window_layout.h"
#include "kernels/attention.h"
#include "kernels/kv_device.h"
#include "kernels/partial.h"
#include "transport/transport.h"

namespace lamina::memory_node {

// Counts that other threads read while the worker runs. Written by the worker alone.
struct WorkerCounters {
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> kv_bytes_read{0};
  std::atomic<uint64_t> units{0};
  std::atomic<uint64_t> device_units{0};  // Of these.
  control::UnitLine unit_line;
  control::Refusals refusals;
  control::WorkMeter meter;
};

class AttentionWorker {
 public:
  struct Options {
    control::EpochConfig config;
    uint32_t node = 0;                  // Own index among the memory nodes.
    bool device_waits = false;          // Where the device waits for windows itself, it may.
    Nanos peer_deadline = Seconds(60);  // Longest wait inside a started unit.
  };

  // All references must outlive the worker.
  AttentionWorker(const Options& options, transport::Transport& transport,
                  transport::Region& region, kernels::KvDevice& device, ThreadPool& pool,
                  WorkerCounters& counters);
  ~AttentionWorker();
  AttentionWorker(const AttentionWorker&) = delete;
  AttentionWorker& operator=(const AttentionWorker&) = delete;

  // Replies of compute node i go to replies[i]. Call before Run().
  void SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> replies);

  // What a device is asked for at most in this epoch, with `slots` of `layers`.
  static kernels::KvDeviceOptions DeviceOptions(const control::EpochConfig& config,
                                                std::vector<AttentionDescriptor> layers,
                                                uint32_t slots);

  // Why the device cannot serve steps of an epoch by itself, whatever device it is; empty where it
  // can, and where it must not (pipeline.device_waits).
  static std::string WaitsObstacle(const control::EpochConfig& config, transport::Region& region);

  // Works until Stop() (OK) or until something is wrong; `blamed` then names the peer, if one.
  absl::Status Run(std::string& blamed);

  void PushPlan(core::StepPlan plan);
  void Stop();

 private:
  using Span = core::SlotTables::Span;
  using Sequence = core::SlotTables::Sequence;
  // A row of the current step that lives here.
  struct Row {
    const Sequence* sequence = nullptr;
    uint32_t position = 0;
    Extent slot;            // Where its own k and v go.
    bool own = true;        // They go here; with spans perhaps to another node.
    uint32_t partials = 0;  // With spans: how many it sees here.
    // Where queries go first: its full blocks as aligned spans, and the tokens behind them. Spans
    // of a cut sequence are these already. Empty where no block is full.
    std::vector<Span> closed = {};
    Span open = {};
  };
  struct Chunk {
    uint32_t tokens = 0;
    std::vector<Extent> slots;
  };
  // What a lane's units are for one shard; without shards there is one.
  struct Part {
    uint32_t shard = 0;
    HeadRange heads;     // Of those here.
    uint64_t value = 0;  // Of the last piece done.
    bool done = false;   // Its last unit of the step.
    // Of the unit that is being served: how it is cut, pieces done, and what of the windows they
    // took, in bytes.
    core::RowPieces pieces;
    uint32_t pieces_done = 0;
    size_t query_bytes = 0;
    size_t reply_bytes = 0;
    Nanos unit_nanos = 0;
    // Header and rows, as in a reply window. The next unit's query says that it was read.
    std::vector<std::byte> reply;
    // Of the rows of the first chunk, where queries go first: [rows, spans of the row, query heads,
    // PartialWidth()], f32.
    std::vector<float> closed_partials;
  };
  struct Lane {
    std::vector<core::StepPlan> plans;  // Not yet begun, oldest first.
    uint64_t step = 0;                  // In it; 0 for none: the next plan has not come.
    bool pinned = false;                // The step stays on one replica.
    core::Chunking chunking;            // Of the step.
    std::vector<Row> rows;
    std::vector<Chunk> chunks;
    uint32_t chunk_tokens = 0;
    std::vector<Part> parts;
    bool on_device = false;  // The device serves the step by itself. Of its units,
    uint32_t launched = 0;   // how many wait there or are done,
    uint32_t seen = 0;       // and how many have been seen to be done.
  };
  // A unit that the device has served, until its time has been counted.
  struct DeviceUnit {
    uint32_t lane = 0;
    uint64_t value = 0;
    Nanos nanos = 0;
    uint64_t read_bytes = 0;
  };
  // Some rows of a lane that are here, with some heads.
  struct RowChunk {
    uint64_t value = 0;
    uint32_t layer = 0;
    absl::Span<const Row> rows;
    HeadRange heads;  // Of those here.
    bool first = false;
    bool last = false;
    bool query_first = false;           // Their queries came first and stand together.
    const std::byte* window = nullptr;  // Where they begin in it.
  };
  static constexpr uint32_t kNoPart = UINT32_MAX;

  // Which tokens of a row are attended.
  enum class Tokens : uint8_t { kAll, kClosed, kOpen };

  // The time since the last lap went into `part` of a unit. Returns how much it was.
  Nanos Lap(control::WorkPart part, uint32_t lane, uint64_t value, uint32_t replica,
            size_t bytes = 0);
  absl::Status AnswerLinks(std::string& blamed);
  absl::StatusOr<size_t> WaitForQueries();
  // Those with heads here of one replica that runs the lane.
  std::vector<Part> MakeParts(uint32_t lane) const;
  // Of the lane, for a compute node; null if it takes no part, or its shard has no heads here.
  Part* PartFor(uint32_t compute_node, uint32_t lane);
  uint32_t FindPart(uint32_t compute_node, uint32_t lane) const;
  // The attention of the chunk's layer over its heads.
  AttentionDescriptor ShapeOf(const RowChunk& chunk) const {
    return PartOf(layers_[chunk.layer], chunk.heads);
  }
  absl::Status ServeUnit(uint32_t replica, uint32_t lane);
  absl::Status BeginUnit(uint32_t replica, uint32_t lane_index, Part& part, uint64_t value);
  absl::Status ServePiece(uint32_t replica, uint32_t lane_index, Part& part, uint64_t last);
  absl::Status EndUnit(uint32_t replica, uint32_t lane_index, Part& part);
  void NoteUnit(const Lane& lane, const Part& part);
  absl::Status CheckWindow(const core::WindowHeader& header, const core::WindowHeader& expected);
  absl::Status TakePlans();
  absl::Status Advance(Lane& lane);
  absl::Status AwaitPlan(const Lane& lane);
  absl::Status CollectRows(const core::StepPlan& plan, Lane& lane);
  bool spans() const { return options_.config.span_tokens > 0; }
  absl::Status CollectSpanRow(const Sequence& sequence, uint32_t position, Lane& lane) const;
  uint64_t CollectSpanItems(const Row& row, const BFloat16* q, Tokens tokens,
                            const AttentionDescriptor& shape, float*& partial);
  // Elements of the row in a query window.
  static size_t RowWidth(const Row& row, const AttentionDescriptor& shape) {
    return row.own ? shape.qkv_width() : shape.q_width();
  }
  // Walks the rows of a chunk as they lie in the window.
  class RowPlaces {
   public:
    RowPlaces(const RowChunk& chunk, const AttentionDescriptor& shape)
        : shape_(shape),
          q_(reinterpret_cast<const BFloat16*>(chunk.window)),
          kv_(q_ + (chunk.query_first ? chunk.rows.size() : 1) * shape.q_width()),
          query_first_(chunk.query_first) {}
    const BFloat16* q() const { return q_; }
    const BFloat16* kv() const { return kv_; }  // [k | v], if the row is own.
    void Next(const Row& row) {
      const size_t kv_width = row.own ? 2 * size_t{shape_.kv_width()} : 0;
      q_ += shape_.q_width() + (query_first_ ? 0 : kv_width);
      kv_ += kv_width + (query_first_ ? 0 : shape_.q_width());
    }
    // Behind the last row, when all have been walked.
    const BFloat16* end() const { return query_first_ ? kv_ : q_; }

   private:
    const AttentionDescriptor& shape_;
    const BFloat16* q_;
    const BFloat16* kv_;
    bool query_first_;
  };
  absl::StatusOr<size_t> Store(const Lane& lane, const Part& part, const RowChunk& chunk);
  absl::StatusOr<uint64_t> Attend(Part& part, const RowChunk& chunk, Tokens tokens);
  uint64_t CollectItems(Part& part, const RowChunk& chunk, Tokens tokens);
  uint64_t CollectSpanRows(Part& part, const RowChunk& chunk, Tokens tokens);
  // attention_query_first.cc
  absl::Status CutAtFullBlocks(Lane& lane);
  bool Cuts(const Row& row, const AttentionDescriptor& shape) const {
    return !row.closed.empty() && shape.window == 0;
  }
  uint64_t CollectCutRow(const Row& row, const BFloat16* q, Tokens tokens,
                         const AttentionDescriptor& shape, float*& partial);
  void MergeCutRows(Part& part, const RowChunk& chunk);
  absl::Status Reply(uint32_t lane_index, Part& part, const RowChunk& chunk);
  // attention_waits.cc
  void OpenWaits();
  absl::Status GiveToDevice(Lane& lane);
  absl::Status LaunchAhead(uint32_t lane_index);
  kernels::WaitingUnit UnitOf(uint32_t lane_index, uint32_t layer);
  core::WindowHeader QueryHeader(uint32_t lane_index, uint32_t layer) const;
  absl::Status LookAtDevice();
  absl::Status LookAtLane(uint32_t lane_index);
  void NoteDeviceUnit(uint32_t lane_index, Nanos nanos);
  void LapDeviceUnits();
  absl::Status DeviceFailure(uint32_t lane_index, kernels::WaitOutcome outcome);
  Nanos NextLook() const;
  absl::Status Serve(std::string& blamed);

  const Options options_;
  const std::vector<AttentionDescriptor> layers_;  // Over the heads that are here.
  const core::WindowLayout layout_;
  std::vector<core::PipelineSchedule> schedules_;  // By shard.
  std::vector<uint32_t> part_of_;  // [compute nodes, lanes]: index of the part, or kNoPart.
  transport::Transport& transport_;
  transport::Region& region_;
  kernels::KvDevice& device_;
  ThreadPool& pool_;
  WorkerCounters& counters_;
  kernels::KvWaits* const waits_;  // Null: the device cannot, or must not.
  std::vector<std::unique_ptr<transport::RemoteRegion>> replies_;
  control::Inbox<core::StepPlan> inbox_;
  transport::AbortWord abort_{0};

  // Worker thread only.
  std::vector<Lane> lanes_;
  core::SlotTables tables_;
  std::vector<transport::SignalCondition> conditions_;  // [compute node x lane], rotated.
  size_t first_condition_ = 0;
  std::vector<kernels::KvRows> kv_rows_;
  std::vector<kernels::AttentionItem> items_;
  std::vector<const Row*> cut_rows_;                               // Of the chunk at hand.
  std::map<uint32_t, std::vector<kernels::PartialStack>> stacks_;  // By head_dim: one a thread.
  std::vector<std::vector<float>> folded_;                         // The same: a merged head.
  std::vector<core::StepPlan> taken_;
  LineFit unit_times_;
  std::vector<control::LinkCounters*> links_;  // [compute nodes]
  Nanos lap_ = 0;                              // End of the last one.
  // With waits_:
  bool waits_open_ = false;
  transport::DirectMemory queries_;  // Of the own region,
  transport::DirectMemory reply_;    // and of the only compute node's.
  std::vector<kernels::WaitingRow> waiting_rows_;
  std::vector<DeviceUnit> device_units_;  // Seen by this look.
  Nanos progress_ = 0;                    // When a unit was last seen to be done, or launched.
};

}  // namespace lamina::memory_node
