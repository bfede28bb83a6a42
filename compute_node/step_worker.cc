// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_worker.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "compute_node/link_measurement.h"
#include "compute_node/step_layout.h"
#include "control/transport_fault.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {

StepWorker::StepWorker(const Options& options, SliceExecutor& executor,
                       transport::Transport& transport, transport::Region& region,
                       kernels::ChunkAttention& chunks, ThreadPool& pool,
                       control::NodeReporter& reporter, StepCounters& counters)
    : options_(options),
      executor_(executor),
      transport_(transport),
      region_(region),
      chunks_(chunks),
      first_layer_(plan::StageOf(options.config, options.node).first_layer),
      reporter_(reporter),
      counters_(counters),
      laps_(counters.meter),
      peers_(options_.config, options.node, options.peer_deadline, transport, abort_, counters),
      context_{.config = options_.config,
               .node = options.node,
               .layout = plan::WindowLayout(options.shape),
               .schedule = plan::ScheduleOf(
                   options.config, plan::StageOf(options.config, options.node).shard.index),
               .executor = executor,
               .transport = transport,
               .region = region,
               .peers = peers_,
               .laps = laps_,
               .counters = counters},
      memory_(context_, sequences_, pool),
      device_(context_, options.peer_deadline),
      replicas_(context_, sequences_, options.vocabulary),
      shards_(context_),
      tail_(context_, sequences_, pool, options.grammars),
      local_(options.kv == nullptr ? nullptr
                                   : std::make_unique<LocalAttention>(options.config, *options.kv)),
      lanes_(options.config.lanes),
      turns_(options.config.lanes,
             /*by_visit=*/plan::IsPartOfLayers(options.config, options.node)) {
  const size_t rows_max = options.config.rows_max + options.config.chunk_tokens_max;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].index = i;
    lanes_[i].nodes.resize(options.config.memory_nodes.size());
    lanes_[i].token_ids.reserve(rows_max);
    lanes_[i].positions.reserve(rows_max);
  }
}

// A transport may read the sources of its puts until the regions' views are gone, and the exchange
// has their windows registered.
StepWorker::~StepWorker() {
  device_.Close();
  peers_.Disconnect();
}

void StepWorker::SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> queries,
                          std::vector<std::unique_ptr<transport::RemoteRegion>> replicas) {
  peers_.Connect(std::move(queries), std::move(replicas));
}

void StepWorker::PushPlan(plan::StepPlan plan) { inbox_.Push(std::move(plan)); }

void StepWorker::Stop() {
  abort_.store(1, std::memory_order_release);
  device_.Abort();
  inbox_.Wake();
}

absl::Status StepWorker::Run() {
  LAMINA_RETURN_IF_ERROR(executor_.device().Begin());
  if (local_ != nullptr) {
    LAMINA_RETURN_IF_ERROR(local_->Begin());
  }
  device_.Open();
  LAMINA_RETURN_IF_ERROR(control::TransportFault(RegisterSources()));
  absl::Status status = control::TransportFault(MeasureLinks(context_, abort_, reporter_));
  if (status.ok()) {
    executor_.SetBetweenOps(BetweenOps());
    status = Loop();
    executor_.SetBetweenOps(nullptr);
  }
  device_.Abort();
  // What it still does goes on in memory that the epoch's end frees.
  status.Update(executor_.device().Synchronize());
  return absl::IsCancelled(status) ? absl::OkStatus() : status;
}

// A transport that carries messages moves them there too.
std::function<void()> StepWorker::BetweenOps() {
  if (transport_.capabilities().one_sided) {
    return [this] { counters_.beat.Raise(); };
  }
  return [this] {
    counters_.beat.Raise();
    transport_.Progress();
  };
}

absl::Status StepWorker::Loop() {
  laps_.Begin();
  while (abort_.load(std::memory_order_acquire) == 0) {
    counters_.beat.Raise();
    TakePlans();
    // A transport that carries messages moves none but here and in waits: those of other lanes must
    // not stay behind a slice.
    transport_.Progress();
    LAMINA_RETURN_IF_ERROR(TakeArrivals());
    LAMINA_RETURN_IF_ERROR(BeginSteps());  // After arrivals: these may have ended a lane's step.
    if (const auto next = turns_.Next(); next.has_value()) {
      const Nanos start = RealClock().Now();
      LAMINA_RETURN_IF_ERROR(RunSlice(lanes_[*next]));
      NoteSlice(lanes_[*next], RealClock().Now() - start);
      continue;
    }
    const auto any_is = [this](LanePhase phase) {
      return std::any_of(lanes_.begin(), lanes_.end(),
                         [phase](const Lane& lane) { return lane.phase == phase; });
    };
    if (any_is(LanePhase::kAhead)) {
      device_.Nap();
    } else if (any_is(LanePhase::kAway) || any_is(LanePhase::kElsewhere)) {
      LAMINA_RETURN_IF_ERROR(WaitForArrivals());
    } else if (peers_.AnyPending()) {
      std::this_thread::yield();  // Nothing would move while it sleeps for a plan.
    } else {
      const ActivityScope idle(counters_.beat, ThreadActivity::kIdle);
      inbox_.WaitForItem(ThreadBeat::kNapMost);
      laps_.Lap(telemetry::WorkPart::kWaitPlan);
    }
  }
  return absl::OkStatus();
}

void StepWorker::TakePlans() {
  if (inbox_.empty()) {
    return;
  }
  taken_.clear();
  inbox_.TakeAll(taken_);
  for (plan::StepPlan& plan : taken_) {
    if (plan.epoch == options_.config.epoch && plan.lane < lanes_.size()) {
      lanes_[plan.lane].plans.push_back(std::move(plan));
    }
  }
}

absl::Status StepWorker::BeginSteps() {
  for (Lane& lane : lanes_) {
    while (lane.phase == LanePhase::kIdle && !lane.plans.empty()) {
      lane.plan = std::move(lane.plans.front());
      lane.plans.erase(lane.plans.begin());
      LAMINA_RETURN_IF_ERROR(BeginStep(lane));
    }
  }
  return absl::OkStatus();
}

absl::Status StepWorker::BeginStep(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(
      sequences_.Apply(lane.plan, options_.vocabulary, options_.config.span_tokens));
  lane.slices_nanos = 0;
  lane.slices_run = 0;
  LAMINA_RETURN_IF_ERROR(LayOut(options_.config, sequences_, lane));
  if (local_ != nullptr) {
    LAMINA_RETURN_IF_ERROR(local_->BeginStep(lane.plan));
  }
  if (lane.positions.empty()) {  // Only leaves: answered at once.
    reporter_.ReportResult(
        {.epoch = lane.plan.epoch, .lane = lane.plan.lane, .step = lane.plan.step});
    return absl::OkStatus();
  }
  lane.by_device = device_.Takes(lane);
  if (context_.Runs(lane)) {
    LAMINA_RETURN_IF_ERROR(executor_.SetRows(lane.inputs(), lane.buffers));
  }
  GoTo(lane, 0);
  laps_.LapOf(lane, telemetry::WorkPart::kLayOut, 0);
  return absl::OkStatus();
}

void StepWorker::SetReady(Lane& lane) {
  lane.phase = LanePhase::kReady;
  if (lane.op > 0) {
    return turns_.SetReady(lane.index);  // In the middle of a slice.
  }
  if (lane.slice == 0 || context_.NodeOf(lane, lane.slice - 1) != options_.node) {
    turns_.BeginVisit(lane.index);
  }
  turns_.SetReady(lane.index);
}

void StepWorker::GoTo(Lane& lane, uint32_t from) {
  lane.slice = from;
  lane.op = 0;
  while (lane.slice < executor_.slice_count() &&
         context_.NodeOf(lane, lane.slice) != options_.node) {
    ++lane.slice;
  }
  lane.away_since = RealClock().Now();
  if (lane.slice == executor_.slice_count()) {
    turns_.End(lane.index);
    lane.phase = LanePhase::kElsewhere;
    return;
  }
  turns_.Begin(lane.index);
  if (lane.slice == 0 || local_ != nullptr) {
    return SetReady(lane);
  }
  if (lane.by_device) {
    device_.Await(lane);
    lane.phase = LanePhase::kAhead;
    return;
  }
  memory_.Await(lane);
  replicas_.AwaitContext(lane);
  lane.phase = LanePhase::kAway;
}

// Steps with prompt chunks say nothing about decode rows.
void StepWorker::NoteSlice(Lane& lane, Nanos elapsed) {
  if (lane.phase == LanePhase::kAhead) {
    return;  // It has been ordered; the exchange hears how long it took.
  }
  lane.slices_nanos += elapsed;
  lane.slices_run += InHead(lane) || lane.reducing ? 0 : 1;
  const bool step_ended = lane.phase == LanePhase::kIdle || lane.phase == LanePhase::kElsewhere;
  if (step_ended && lane.chunks.empty()) {
    slice_times_.Add(lane.decode_rows, ToSeconds(lane.slices_nanos) / lane.slices_run);
    counters_.unit_line.Set(slice_times_.Line(/*proportional=*/false));
  }
}

absl::Status StepWorker::RunSlice(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const bool ordered, device_.TakeIfDue(lane));
  if (ordered && InHead(lane)) {
    // The tail waits for the device, so it waits until the last outputs came.
    lane.phase = LanePhase::kAhead;
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const bool complete, RunOps(lane));
  if (!complete) {
    return absl::OkStatus();
  }
  if (InHead(lane)) {
    if (shards_.shard().index == 0) {
      return RunTail(lane);
    }
    telemetry::AddTo(counters_.units, 1);
    GoTo(lane, executor_.slice_count());
    return absl::OkStatus();
  }
  telemetry::AddTo(counters_.units, 1);
  telemetry::AddTo(counters_.replayed_units, lane.replayed ? 1 : 0);
  LAMINA_RETURN_IF_ERROR(RunAttention(lane));
  transport_.Progress();  // What was sent and is still here.
  executor_.RunAfterSend(lane.slice, lane.buffers);
  laps_.LapOf(lane, telemetry::WorkPart::kBeside, lane.slice);
  if (context_.NodeOf(lane, lane.slice + 1) != options_.node) {
    LAMINA_RETURN_IF_ERROR(replicas_.SendContext(lane));
  }
  GoTo(lane, lane.slice + 1);
  return absl::OkStatus();
}

// Runs the slice's ops on, as far as they go without the other shards' parts; of the last slice
// those that all shards run. Whether all have run.
absl::StatusOr<bool> StepWorker::RunOps(Lane& lane) {
  if (InHead(lane) && lane.op == 0 && executor_.reduces()) {
    LAMINA_RETURN_IF_ERROR(tail_.KeepRows(lane));
  }
  const size_t end = executor_.OpsEnd(lane.slice);
  if (lane.op == end) {
    return true;
  }
  size_t reduce = executor_.NextReduce(lane.slice, lane.op);
  if (lane.positions.empty()) {
    // Nothing is sampled. Shards meet once all the same, so that none ends the step, and the others
    // begin the next one, while another still waits for a reply.
    reduce = lane.op == 0 ? reduce : end;
    if (reduce < end) {
      shards_.BeginEmptySum(lane);
    }
  } else {
    if (reduce < end) {
      shards_.BeginSum(lane, reduce);
    }
    lane.replayed = executor_.Run(lane.slice, lane.op, reduce, lane.buffers);
    if (reduce < end) {
      LAMINA_RETURN_IF_ERROR(
          executor_.PartToHost(lane.slice, reduce, lane.positions.size(), lane.buffers));
    } else if (!InHead(lane) && !lane.by_device) {
      LAMINA_RETURN_IF_ERROR(
          executor_.QkvToHost(lane.slice, lane.positions.size(), lane.decode_rows, lane.buffers));
    }
  }
  lane.op = reduce;
  laps_.LapOf(lane, telemetry::WorkPart::kDense, lane.slice);
  if (reduce == end) {
    return true;
  }
  LAMINA_RETURN_IF_ERROR(shards_.Send(lane));
  lane.reducing = true;
  lane.away_since = RealClock().Now();
  lane.phase = LanePhase::kAway;
  return false;
}

// Sends the slice's rows to where they attend, or attends.
absl::Status StepWorker::RunAttention(Lane& lane) {
  if (local_ != nullptr) {
    return AttendHere(lane);
  }
  if (lane.by_device) {
    return device_.Send(lane);
  }
  LAMINA_RETURN_IF_ERROR(memory_.Send(lane));
  return AttendChunks(lane);
}

// Prompt chunks attend here, over the scratch KV, while decode rows attend at the memory nodes.
absl::Status StepWorker::AttendChunks(Lane& lane) {
  if (lane.chunks.empty()) {
    return absl::OkStatus();
  }
  const uint32_t layer = lane.slice;
  items_.clear();
  for (const ChunkRows& chunk : lane.chunks) {
    items_.push_back({.sequence = chunk.scratch,
                      .first_position = chunk.plan.first_token,
                      .tokens = chunk.plan.tokens,
                      .first_row = chunk.first_row});
  }
  const size_t rows = lane.positions.size();
  LAMINA_RETURN_IF_ERROR(chunks_.Attend(layer - first_layer_, items_,
                                        executor_.DeviceQkvRows(layer, rows, lane.buffers),
                                        executor_.DeviceAttentionRows(layer, rows, lane.buffers)));
  laps_.LapOf(lane, telemetry::WorkPart::kChunks, layer);
  return absl::OkStatus();
}

// Policy local: attention of a slice is a call, not a journey.
absl::Status StepWorker::AttendHere(Lane& lane) {
  const auto qkv = executor_.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  const auto out = executor_.AttentionRows(lane.slice, lane.positions.size(), lane.buffers);
  LAMINA_RETURN_IF_ERROR(local_->Store(lane.index, lane.slice, qkv));
  laps_.LapOf(lane, telemetry::WorkPart::kStore, lane.slice);
  LAMINA_ASSIGN_OR_RETURN(const uint64_t read, local_->Attend(lane.index, lane.slice, qkv, out));
  telemetry::AddTo(counters_.kv_bytes_read, read);
  laps_.LapOf(lane, telemetry::WorkPart::kAttend, lane.slice);
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
