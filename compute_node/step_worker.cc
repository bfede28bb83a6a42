// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_worker.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/status_macros.h"
#include "compute_node/link_measurement.h"
#include "compute_node/prompt_work.h"
#include "compute_node/step_layout.h"
#include "control/transport_fault.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_ring.h"

namespace lamina::compute_node {
namespace {

std::unique_ptr<plan::SliceOrder> MakeOrder(const plan::EpochConfig& config, uint32_t node) {
  if (plan::IsPartOfLayers(config, node)) {
    return std::make_unique<plan::OldestVisitFirst>(config.lanes);
  }
  return std::make_unique<plan::FewestSlicesFirst>(config.lanes);
}

}  // namespace

StepWorker::StepWorker(const Options& options, SliceExecutor& executor,
                       transport::Transport& transport, transport::Region& region,
                       absl::Span<PathMaker* const> paths, ThreadPool& pool,
                       control::NodeReporter& reporter, StepCounters& counters)
    : options_(options),
      executor_(executor),
      transport_(transport),
      region_(region),
      reporter_(reporter),
      counters_(counters),
      windows_(region, options.window_memory),
      intervals_(counters.meter),
      pieces_taken_(options.config.lanes,
                    std::vector<plan::FetchRing>(options.config.memory_nodes.size())),
      peers_(options_.config, options.node, options.peer_deadline, transport, abort_, counters),
      context_{.config = options_.config,
               .node = options.node,
               .layout = plan::WindowLayout(options.shape),
               .schedule = plan::ScheduleOf(
                   options.config, plan::StageOf(options.config, options.node).shard.index),
               .peer_deadline = options.peer_deadline,
               .executor = executor,
               .pool = pool,
               .transport = transport,
               .region = region,
               .windows = windows_,
               .peers = peers_,
               .sequences = sequences_,
               .intervals = intervals_,
               .counters = counters,
               .pieces_taken = pieces_taken_},
      paths_(context_, paths),
      replicas_(context_, sequences_, options.vocabulary),
      shards_(context_),
      tail_(context_, sequences_, pool, options.grammars),
      lanes_(options.config.lanes),
      starts_(MakeStepStarts(executor.weight_source().comes_in_order(), options.config.lanes)),
      order_(MakeOrder(options.config, options.node)),
      wait_(context_, paths_, replicas_, shards_) {
  const size_t rows_max = plan::StepRowsMax(options.config);
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].index = i;
    lanes_[i].paths.resize(paths_.count());
    lanes_[i].token_ids.reserve(rows_max);
    lanes_[i].positions.reserve(rows_max);
  }
}

// A transport may read the sources of its puts until the regions' views are gone, and a path may
// have their windows registered.
StepWorker::~StepWorker() {
  for (Lane& lane : lanes_) {
    ReleaseWeights(lane);
  }
  paths_.Close();
  peers_.Disconnect();
}

void StepWorker::SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> queries,
                          std::vector<std::unique_ptr<transport::RemoteRegion>> replicas) {
  peers_.Connect(std::move(queries), std::move(replicas));
}

void StepWorker::PushPlan(plan::StepPlan plan) { inbox_.Push(std::move(plan)); }

void StepWorker::Stop() {
  abort_.store(1, std::memory_order_release);
  paths_.Abort();
  inbox_.Wake();
}

absl::Status StepWorker::Run() {
  LAMINA_RETURN_IF_ERROR(executor_.device().Begin());
  LAMINA_RETURN_IF_ERROR(paths_.Open());
  LAMINA_RETURN_IF_ERROR(control::TransportFault(RegisterSources()));
  absl::Status status = control::TransportFault(MeasureLinks(context_, abort_, reporter_));
  if (status.ok()) {
    executor_.SetBetweenOps(BetweenOps());
    status = Loop();
    executor_.SetBetweenOps(nullptr);
  }
  paths_.Abort();
  // What it still does goes on in memory that the epoch's end frees.
  status.Update(executor_.device().Synchronize());
  return absl::IsCancelled(status) ? absl::OkStatus() : status;
}

absl::Status StepWorker::Loop() {
  intervals_.Begin();
  while (abort_.load(std::memory_order_acquire) == 0) {
    counters_.beat.Raise();
    TakePlans();
    // A transport that carries messages moves none but here and in waits: those of other lanes must
    // not stay behind a slice.
    transport_.Progress();
    LAMINA_RETURN_IF_ERROR(TakeArrivals());
    LAMINA_RETURN_IF_ERROR(BeginSteps());  // After arrivals: these may have ended a lane's step.
    if (const auto next = order_->Next(); next.has_value()) {
      const Nanos start = RealClock().Now();
      LAMINA_RETURN_IF_ERROR(wait_.WhileOthersRun(lanes_, start));
      LAMINA_RETURN_IF_ERROR(RunSlice(lanes_[*next]));
      NoteSlice(lanes_[*next], RealClock().Now() - start);
      continue;
    }
    const bool waiting = std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
      return lane.phase == LanePhase::kWaiting;
    });
    if (waiting) {
      LAMINA_RETURN_IF_ERROR(wait_.Run(lanes_, abort_));
    } else if (peers_.AnyPending()) {
      std::this_thread::yield();  // Nothing would move while it sleeps for a plan.
    } else {
      const ActivityScope idle(counters_.beat, ThreadActivity::kIdle);
      inbox_.WaitForItem(starts_->Nap(lanes_, RealClock().Now(), ThreadBeat::kNapMost));
      intervals_.EndInterval(telemetry::WorkKind::kWaitPlan);
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
  if (!starts_->MayBegin(lanes_, RealClock().Now())) {
    return absl::OkStatus();
  }
  for (Lane& lane : lanes_) {
    while (lane.phase == LanePhase::kIdle && !lane.plans.empty()) {
      lane.plan = std::move(lane.plans.front());
      lane.plans.erase(lane.plans.begin());
      LAMINA_RETURN_IF_ERROR(BeginStep(lane));
    }
  }
  starts_->Began(lanes_);
  return absl::OkStatus();
}

absl::Status StepWorker::BeginStep(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(
      sequences_.Apply(lane.plan, options_.vocabulary, options_.config.span_tokens));
  LAMINA_RETURN_IF_ERROR(paths_.Apply(lane.plan));
  lane.slices_nanos = 0;
  lane.slices_run = 0;
  const auto path_of = [this](const Sequence& sequence) {
    return paths_.IndexOf(sequence.join.path);
  };
  LAMINA_RETURN_IF_ERROR(LayOut(options_.config, sequences_, path_of, lane));
  lane.prompts = PromptWorkOf(lane.plan);
  lane.rows_from_elsewhere = paths_.RowsFromElsewhere(lane);
  LAMINA_RETURN_IF_ERROR(paths_.BeginStep(lane));
  if (lane.positions.empty()) {  // Only leaves: answered at once.
    reporter_.ReportResult(
        {.epoch = lane.plan.epoch, .lane = lane.plan.lane, .step = lane.plan.step});
    return absl::OkStatus();
  }
  if (context_.Runs(lane)) {
    LAMINA_RETURN_IF_ERROR(executor_.SetRows(lane.inputs(), lane.buffers));
  }
  GoTo(lane, 0);
  intervals_.EndIntervalOf(lane, telemetry::WorkKind::kLayOut, 0);
  return absl::OkStatus();
}

void StepWorker::SetReady(Lane& lane) {
  lane.phase = LanePhase::kReady;
  if (lane.op == 0 &&  // Else it is in the middle of a slice.
      (lane.slice == 0 || context_.NodeOf(lane, lane.slice - 1) != options_.node)) {
    order_->BeginVisit(lane.index);
  }
  order_->SetReady(lane.index);
}

void StepWorker::GoTo(Lane& lane, uint32_t from) {
  ReleaseWeights(lane);
  lane.slice = from;
  lane.op = 0;
  while (lane.slice < executor_.slice_count() &&
         context_.NodeOf(lane, lane.slice) != options_.node) {
    ++lane.slice;
  }
  lane.away_since = RealClock().Now();
  lane.awaits = {};
  if (lane.slice == executor_.slice_count()) {
    order_->End(lane.index);
    lane.awaits.Add(Awaited::kTokens);
  } else {
    order_->Begin(lane.index);
    if (lane.slice > 0 && paths_.Await(lane)) {
      lane.awaits.Add(Awaited::kAttention);
    }
    if (lane.slice > 0 && replicas_.AwaitContext(lane)) {
      lane.awaits.Add(Awaited::kContext);
    }
  }
  if (lane.awaits.empty()) {
    return SetReady(lane);
  }
  lane.phase = LanePhase::kWaiting;
}

// Steps with prompt chunks say nothing about decode rows.
void StepWorker::NoteSlice(Lane& lane, Nanos elapsed) {
  const bool step_ended = lane.phase == LanePhase::kIdle || lane.awaits.Has(Awaited::kTokens);
  if (!step_ended && lane.phase == LanePhase::kWaiting && paths_.TimesSlices(lane)) {
    return;  // It has been ordered; the path hears how long it took.
  }
  lane.slices_nanos += elapsed;
  if (step_ended && lane.chunks.empty()) {
    slice_times_.Add(lane.decode_rows, ToSeconds(lane.slices_nanos) / lane.slices_run);
    counters_.unit_line.Set(slice_times_.Line(/*proportional=*/false));
  }
}

// Whether the weights of the lane's slice are here; they stay until it has run.
absl::StatusOr<bool> StepWorker::HoldWeights(Lane& lane) {
  if (!lane.weights_held) {
    executor_.weight_source().SetEarliest(StepStarts::Earliest(lanes_));
    LAMINA_ASSIGN_OR_RETURN(const WeightWait weights, executor_.weight_source().Ask(lane.slice));
    lane.weights_held = weights.here;
    lane.weights_look_again = weights.look_again;
  }
  return lane.weights_held;
}

void StepWorker::ReleaseWeights(Lane& lane) {
  if (std::exchange(lane.weights_held, false)) {
    executor_.weight_source().Release(lane.slice);
  }
}

absl::Status StepWorker::RunSlice(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const bool weights, HoldWeights(lane));
  if (!weights) {
    lane.awaits = {Awaited::kWeights};
    lane.phase = LanePhase::kWaiting;
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const bool may_run, paths_.BeforeSlice(lane));
  if (!may_run) {
    lane.awaits = {Awaited::kAttention};
    lane.phase = LanePhase::kWaiting;
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
    ++lane.slices_run;
    GoTo(lane, executor_.slice_count());
    return absl::OkStatus();
  }
  telemetry::AddTo(counters_.units, 1);
  telemetry::AddTo(counters_.replayed_units, lane.replayed ? 1 : 0);
  lane.slices_run += paths_.TimesSlices(lane) ? 0 : 1;
  LAMINA_RETURN_IF_ERROR(paths_.Attend(lane));
  transport_.Progress();  // What was sent and is still here.
  executor_.RunAfterSend(lane.slice, lane.buffers);
  intervals_.EndIntervalOf(lane, telemetry::WorkKind::kOverlapped, lane.slice);
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
    }
  }
  lane.op = reduce;
  intervals_.EndIntervalOf(lane, telemetry::WorkKind::kDense, lane.slice);
  if (reduce == end) {
    return true;
  }
  LAMINA_RETURN_IF_ERROR(shards_.Send(lane));
  lane.away_since = RealClock().Now();
  lane.awaits = {Awaited::kSum};
  lane.phase = LanePhase::kWaiting;
  return false;
}

// Lanes take turns at the LM head, one step's at a time: runs the next chunk of it. Behind the last
// one it tells everybody, and the step ends.
absl::Status StepWorker::RunTail(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const StepTail::Outcome outcome, tail_.Run(lane));
  if (outcome == StepTail::Outcome::kOccupied) {
    lane.awaits = {Awaited::kHead};
    lane.phase = LanePhase::kWaiting;
    return absl::OkStatus();
  }
  if (outcome == StepTail::Outcome::kMore) {
    SetReady(lane);
    return absl::OkStatus();
  }
  WakeHeads();
  plan::StepResult result = tail_.TakeResult();
  LAMINA_RETURN_IF_ERROR(replicas_.SendTokens(lane, result));
  reporter_.ReportResult(std::move(result));
  ++lane.slices_run;
  EndStep(lane);
  return absl::OkStatus();
}

// Lanes that came to the head meanwhile take their turns again. Had they kept them, one whose turn
// is always first, as that of the oldest visit on a stage is, would have kept the head from its
// end.
void StepWorker::WakeHeads() {
  for (Lane& lane : lanes_) {
    if (lane.phase == LanePhase::kWaiting && lane.awaits.Has(Awaited::kHead)) {
      lane.awaits = {};
      lane.phase = LanePhase::kReady;
      order_->SetReady(lane.index);  // Its visit goes on.
    }
  }
}

void StepWorker::EndStep(Lane& lane) {
  ReleaseWeights(lane);
  paths_.EndStep(lane);
  ForgetPrefilled(lane);
  order_->End(lane.index);
  lane.awaits = {};
  lane.phase = LanePhase::kIdle;
}

// A node for prefill only is not told of what becomes of them.
void StepWorker::ForgetPrefilled(const Lane& lane) {
  if (!context_.schedule.IsPrefillLane(lane.index) || !context_.Runs(lane)) {
    return;
  }
  for (const ChunkRows& chunk : lane.chunks) {
    if (!chunk.plan.last) {
      continue;
    }
    for (const plan::SequenceId child : sequences_.Find(chunk.plan.sequence)->children) {
      const Sequence* fork = sequences_.Find(child);
      if (fork != nullptr && fork->join.parent == chunk.plan.sequence) {
        sequences_.Erase(child);
      }
    }
    sequences_.Erase(chunk.plan.sequence);
  }
}

// Takes everything that has arrived; lanes that wait for nothing more become ready, or idle.
absl::Status StepWorker::TakeArrivals() {
  for (Lane& lane : lanes_) {
    if (lane.phase != LanePhase::kWaiting) {
      continue;
    }
    if (lane.awaits.Has(Awaited::kTokens)) {
      LAMINA_RETURN_IF_ERROR(TakeTokens(lane));
    } else {
      LAMINA_RETURN_IF_ERROR(TakeInputs(lane));
    }
  }
  return absl::OkStatus();
}

// Ends the step here, if its tokens have come.
absl::Status StepWorker::TakeTokens(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const bool taken, replicas_.TakeTokens(lane));
  if (taken) {
    reporter_.ReportResult(
        {.epoch = lane.plan.epoch, .lane = lane.plan.lane, .step = lane.plan.step});
    EndStep(lane);
  }
  return absl::OkStatus();
}

absl::Status StepWorker::TakeInputs(Lane& lane) {
  AwaitedSet& awaits = lane.awaits;
  if (awaits.Has(Awaited::kSum)) {
    LAMINA_ASSIGN_OR_RETURN(const bool summed, shards_.Take(lane));
    if (summed) {
      awaits.Remove(Awaited::kSum);
      ++lane.op;
    }
  }
  if (awaits.Has(Awaited::kAttention)) {
    LAMINA_ASSIGN_OR_RETURN(const bool attended, paths_.Poll(lane));
    if (attended) {
      awaits.Remove(Awaited::kAttention);
    }
  }
  if (awaits.Has(Awaited::kContext)) {
    LAMINA_ASSIGN_OR_RETURN(const bool context, replicas_.TakeContext(lane));
    if (context) {
      awaits.Remove(Awaited::kContext);
      lane.away_since = RealClock().Now();  // Memory nodes have their queries only now.
    }
  }
  if (awaits.Has(Awaited::kWeights) && RealClock().Now() >= lane.weights_look_again) {
    LAMINA_ASSIGN_OR_RETURN(const bool weights, HoldWeights(lane));
    if (weights) {
      intervals_.EndIntervalOf(lane, telemetry::WorkKind::kWaitWeights, lane.slice);
      awaits.Remove(Awaited::kWeights);
    } else {
      LAMINA_RETURN_IF_ERROR(paths_.WhileWeightsCome(lane));
    }
  }
  if (awaits.empty()) {
    SetReady(lane);
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
