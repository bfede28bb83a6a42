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
// Threading: Run() on one thread; PushPlan() and Stop() from any other.
// Allocation: none per unit; tables grow when sequences join.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "control/epoch_shape.h"
#include "control/inbox.h"
#include "control/node_handler.h"
#include "control/refusals.h"
#include "control/work_meter.h"
#include "coordinator/core/pipeline_schedule.h"
#include "coordinator/core/step_plan.h"
#include "coordinator/core/window_layout.h"
#include "kernels/attention.h"
#include "kernels/kv_arena.h"
#include "transport/transport.h"

namespace lamina::memory_node {

// Counts that other threads read while the worker runs. Written by the worker alone.
struct WorkerCounters {
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> kv_bytes_read{0};
  std::atomic<uint64_t> units{0};
  control::UnitLine unit_line;
  control::Refusals refusals;
  control::WorkMeter meter;
};

class AttentionWorker {
 public:
  struct Options {
    control::EpochConfig config;
    uint32_t node = 0;  // Own index among the memory nodes.
    const kernels::AttentionKernel* kernel = nullptr;
    Nanos peer_deadline = Seconds(60);  // Longest wait inside a started unit.
  };

  // All references must outlive the worker.
  AttentionWorker(const Options& options, transport::Transport& transport,
                  transport::Region& region, kernels::KvArena& arena, ThreadPool& pool,
                  WorkerCounters& counters);
  ~AttentionWorker();

  // Replies of compute node i go to replies[i]. Call before Run().
  void SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> replies);

  // Works until Stop() (OK) or until something is wrong; `blamed` then names the peer, if one.
  absl::Status Run(std::string& blamed);

  void PushPlan(core::StepPlan plan);
  void Stop();

 private:
  // Tokens [index * span_tokens, + tokens) of a sequence.
  struct Span {
    uint32_t index = 0;
    std::vector<Extent> extents;
    uint32_t tokens = 0;
  };
  struct Sequence {
    std::vector<Extent> extents;
    uint32_t tokens = 0;      // With spans those on other nodes too.
    std::vector<Span> spans;  // Partition token_range, in place of `extents`: those that lie here.
  };
  // A row of the current step that lives here.
  struct Row {
    const Sequence* sequence = nullptr;
    uint32_t position = 0;
    Extent slot;            // Where its own k and v go.
    bool own = true;        // They go here; with spans perhaps to another node.
    uint32_t partials = 0;  // With spans: how many it sees here.
  };
  struct Chunk {
    uint32_t tokens = 0;
    std::vector<Extent> slots;
  };
  struct Lane {
    std::vector<core::StepPlan> plans;  // Not yet begun, oldest first.
    uint64_t step = 0;                  // In it; 0 for none: the next plan has not come.
    uint64_t value = 0;                 // Last unit done.
    bool pinned = false;                // The step stays on one replica.
    std::vector<Row> rows;
    std::vector<Chunk> chunks;
    uint32_t chunk_tokens = 0;
  };

  // The time since the last lap went into `part` of a unit. Returns how much it was.
  Nanos Lap(control::WorkPart part, uint32_t lane, uint64_t value, uint32_t replica,
            size_t bytes = 0);
  absl::Status AnswerLinks(std::string& blamed);
  absl::StatusOr<size_t> WaitForQueries();
  absl::Status ServeUnit(uint32_t replica, uint32_t lane);
  void NoteUnit(const Lane& lane, Nanos elapsed);
  absl::Status CheckWindow(const core::WindowHeader& header, const core::WindowHeader& expected);
  absl::Status TakePlans();
  absl::Status Advance(Lane& lane);
  absl::Status AwaitPlan(const Lane& lane);
  absl::Status ApplyTables(const core::StepPlan& plan);
  absl::Status CollectRows(const core::StepPlan& plan, Lane& lane);
  static void AppendExtent(std::vector<Extent>& extents, const Extent& extent);
  static absl::StatusOr<std::vector<Extent>> SlotsOf(const std::vector<Extent>& extents,
                                                     uint32_t held, uint32_t first,
                                                     uint32_t tokens);
  bool spans() const { return options_.config.span_tokens > 0; }
  absl::Status GrantToSpan(Sequence& sequence, const core::SlotGrant& grant);
  absl::StatusOr<std::vector<Extent>> SpanSlotsOf(const Sequence& sequence, uint32_t first,
                                                  uint32_t tokens) const;
  absl::Status CollectSpanRow(const Sequence& sequence, uint32_t position, Lane& lane) const;
  void CollectSpanItems(const Row& row, const BFloat16* q, size_t q_stride,
                        const AttentionDescriptor& shape, float*& partial);
  // Elements of the row in a query window.
  static size_t RowWidth(const Row& row, const AttentionDescriptor& shape) {
    return row.own ? shape.qkv_width() : shape.q_width();
  }
  void Store(const Lane& lane, uint32_t layer, const std::byte* window);
  uint64_t Attend(const Lane& lane, uint32_t layer, const std::byte* window);
  absl::Status Reply(uint32_t lane_index, uint64_t value);

  const Options options_;
  const std::vector<AttentionDescriptor> layers_;  // As this node computes them.
  const core::WindowLayout layout_;
  const core::PipelineSchedule schedule_;
  transport::Transport& transport_;
  transport::Region& region_;
  kernels::KvArena& arena_;
  ThreadPool& pool_;
  WorkerCounters& counters_;
  std::vector<std::unique_ptr<transport::RemoteRegion>> replies_;
  control::Inbox<core::StepPlan> inbox_;
  transport::AbortWord abort_{0};

  // Worker thread only.
  std::vector<Lane> lanes_;
  std::unordered_map<core::SequenceId, Sequence> sequences_;
  std::vector<transport::SignalCondition> conditions_;  // [compute node x lane], rotated.
  size_t first_condition_ = 0;
  std::unique_ptr<kernels::AttentionScratch> scratch_;
  std::vector<kernels::AttentionItem> items_;
  std::vector<std::byte> reply_;  // Header and rows, as in a reply window.
  std::vector<core::StepPlan> taken_;
  LineFit unit_times_;
  std::vector<control::LinkCounters*> links_;  // [compute nodes]
  Nanos lap_ = 0;                              // End of the last one.
};

}  // namespace lamina::memory_node
