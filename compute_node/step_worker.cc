// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_worker.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/status_macros.h"
#include "control/epoch_shape.h"
#include "control/transport_fault.h"

namespace lamina::compute_node {

StepWorker::StepWorker(const Options& options, SliceExecutor& executor,
                       transport::Transport& transport, transport::Region& region,
                       kernels::ChunkAttention& chunks, ThreadPool& pool,
                       control::NodeReporter& reporter, StepCounters& counters)
    : options_(options),
      layout_(options.shape),
      shard_(control::StageOf(options.config, options.node).shard),
      schedule_(control::ScheduleOf(options.config, shard_.index)),
      executor_(executor),
      transport_(transport),
      region_(region),
      chunks_(chunks),
      first_layer_(control::StageOf(options.config, options.node).first_layer),
      pool_(pool),
      reporter_(reporter),
      counters_(counters),
      local_(options.kv == nullptr ? nullptr
                                   : std::make_unique<LocalAttention>(options.config, *options.kv)),
      lanes_(options.config.lanes),
      turns_(options.config.lanes,
             /*by_visit=*/control::IsPartOfLayers(options.config, options.node)),
      sample_scratch_(pool.threads()),
      folded_(pool.threads()) {
  const size_t rows_max = options.config.rows_max + options.config.chunk_tokens_max;
  const size_t nodes = options.config.memory_nodes.size();
  for (const std::string& name : options.config.memory_nodes) {
    memory_links_.push_back(local_ != nullptr ? nullptr : counters.meter.Link(name));
  }
  for (size_t i = 0; i < options.config.compute_nodes.size(); ++i) {
    const bool own = i == options.node;
    compute_links_.push_back(own ? nullptr : counters.meter.Link(options.config.compute_nodes[i]));
  }
  FindShards();
  for (Lane& lane : lanes_) {
    lane.nodes.resize(nodes);
    lane.headers.resize(nodes);
    lane.token_ids.reserve(rows_max);
    lane.positions.reserve(rows_max);
    if (!Runs(IndexOf(lane))) {
      continue;
    }
    lane.kv_staging.resize(size_t{options.config.chunk_tokens_max} * 2 *
                           control::KvWidthMax(options.config.layers));
    lane.row_staging.resize((by_span() ? nodes : 1) * size_t{options.config.rows_max} *
                            control::QkvWidthMax(options.config.layers));
    for (std::vector<std::byte>& part : lane.parts) {
      part.resize(shard_.count == 1
                      ? 0
                      : sizeof(core::WindowHeader) + rows_max * executor.PartRowBytesMax());
    }
    lane.kept_rows.reserve(rows_max);
    if (options.config.compute_nodes.size() > 1) {
      lane.token_messages.assign(
          options.config.plan_ahead,
          std::vector<std::byte>(sizeof(core::WindowHeader) +
                                 layout_.token_rows_max() * sizeof(core::TokenEntry)));
    }
  }
}

// A transport may read the sources of its puts until the regions' views are gone, and the exchange
// has their windows registered.
StepWorker::~StepWorker() {
  exchange_.reset();
  queries_.clear();
  replicas_.clear();
}

void StepWorker::SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> queries,
                          std::vector<std::unique_ptr<transport::RemoteRegion>> replicas) {
  queries_ = std::move(queries);
  replicas_ = std::move(replicas);
}

void StepWorker::PushPlan(core::StepPlan plan) { inbox_.Push(std::move(plan)); }

void StepWorker::Stop() {
  abort_.store(1, std::memory_order_release);
  if (exchange_ != nullptr) {
    exchange_->Abort();
  }
  inbox_.Wake();
}

absl::Status StepWorker::Run(std::string& blamed) {
  LAMINA_RETURN_IF_ERROR(executor_.device().Begin());
  if (local_ != nullptr) {
    LAMINA_RETURN_IF_ERROR(local_->Begin());
  }
  OpenWindows();
  LAMINA_RETURN_IF_ERROR(control::TransportFault(RegisterSources()));
  absl::Status status = control::TransportFault(MeasureLinks(blamed));
  if (status.ok()) {
    if (!transport_.capabilities().one_sided) {
      executor_.SetBetweenOps([this] { transport_.Progress(); });
    }
    status = Loop(blamed);
    executor_.SetBetweenOps(nullptr);
  }
  if (exchange_ != nullptr) {
    exchange_->Abort();
  }
  // What it still does goes on in memory that the epoch's end frees.
  status.Update(executor_.device().Synchronize());
  return absl::IsCancelled(status) ? absl::OkStatus() : status;
}

Nanos StepWorker::Lap(control::TraceEvent event) {
  event.start = lap_;
  lap_ = counters_.meter.Lap(event);
  return lap_ - event.start;
}

Nanos StepWorker::LapOf(const Lane& lane, control::WorkPart part, uint32_t layer, uint8_t peer,
                        size_t bytes) {
  control::TraceEvent event = EventOf(lane, part, layer, peer);
  event.bytes = static_cast<uint32_t>(bytes);
  return Lap(event);
}

void StepWorker::LapUntil(const Lane& lane, control::WorkPart part, uint32_t layer, Nanos end,
                          uint8_t peer) {
  control::TraceEvent event = EventOf(lane, part, layer, peer);
  event.start = lap_;
  event.end = end;
  lap_ = counters_.meter.LapUntil(event);
}

control::TraceEvent StepWorker::EventOf(const Lane& lane, control::WorkPart part, uint32_t layer,
                                        uint8_t peer) const {
  return {.part = part,
          .lane = static_cast<uint8_t>(IndexOf(lane)),
          .peer = peer,
          .layer = static_cast<uint16_t>(layer),
          .rows = static_cast<uint16_t>(std::min<size_t>(lane.positions.size(), UINT16_MAX)),
          .step = static_cast<uint32_t>(lane.plan.step)};
}

void StepWorker::CountSent(control::LinkCounters& link, size_t bytes, Nanos spent) {
  control::AddTo(counters_.bytes_sent, bytes);
  control::AddTo(link.bytes, bytes);
  control::AddTo(link.puts, 1);
  control::AddTo(link.nanos, static_cast<uint64_t>(spent));
}

absl::Status StepWorker::Loop(std::string& blamed) {
  lap_ = RealClock().Now();
  while (abort_.load(std::memory_order_acquire) == 0) {
    TakePlans();
    // A transport that carries messages moves none but here and in waits: those of other lanes must
    // not stay behind a slice.
    transport_.Progress();
    LAMINA_RETURN_IF_ERROR(TakeArrivals(blamed));
    LAMINA_RETURN_IF_ERROR(BeginSteps());  // After arrivals: these may have ended a lane's step.
    if (const auto next = turns_.Next(); next.has_value()) {
      const Nanos start = RealClock().Now();
      LAMINA_RETURN_IF_ERROR(RunSlice(lanes_[*next], blamed));
      NoteSlice(lanes_[*next], RealClock().Now() - start);
      continue;
    }
    const auto any_is = [this](Phase phase) {
      return std::any_of(lanes_.begin(), lanes_.end(),
                         [phase](const Lane& lane) { return lane.phase == phase; });
    };
    if (any_is(Phase::kAhead)) {
      NapBesideDevice();
    } else if (any_is(Phase::kAway) || any_is(Phase::kElsewhere)) {
      LAMINA_RETURN_IF_ERROR(WaitForArrivals(blamed));
    } else if (AnyPending()) {
      std::this_thread::yield();  // Nothing would move while it sleeps for a plan.
    } else {
      inbox_.WaitForItem();
      Lap(control::WorkPart::kWaitPlan);
    }
  }
  return absl::OkStatus();
}

bool StepWorker::AnyPending() const {
  const auto pending = [this](const std::unique_ptr<transport::RemoteRegion>& peer) {
    return peer != nullptr && transport_.Pending(*peer) > 0;
  };
  return std::any_of(queries_.begin(), queries_.end(), pending) ||
         std::any_of(replicas_.begin(), replicas_.end(), pending);
}

void StepWorker::TakePlans() {
  if (inbox_.empty()) {
    return;
  }
  taken_.clear();
  inbox_.TakeAll(taken_);
  for (core::StepPlan& plan : taken_) {
    if (plan.epoch == options_.config.epoch && plan.lane < lanes_.size()) {
      lanes_[plan.lane].plans.push_back(std::move(plan));
    }
  }
}

void StepWorker::SetReady(Lane& lane) {
  lane.phase = Phase::kReady;
  if (lane.op > 0) {
    return turns_.SetReady(IndexOf(lane));  // In the middle of a slice.
  }
  if (lane.slice == 0 || NodeOf(lane, lane.slice - 1) != options_.node) {
    turns_.BeginVisit(IndexOf(lane));
  }
  turns_.SetReady(IndexOf(lane));
}

void StepWorker::GoTo(Lane& lane, uint32_t from) {
  lane.slice = from;
  lane.op = 0;
  while (lane.slice < executor_.slice_count() && NodeOf(lane, lane.slice) != options_.node) {
    ++lane.slice;
  }
  lane.away_since = RealClock().Now();
  if (lane.slice == executor_.slice_count()) {
    turns_.End(IndexOf(lane));
    lane.phase = Phase::kElsewhere;
    return;
  }
  turns_.Begin(IndexOf(lane));
  if (lane.slice == 0 || local_ != nullptr) {
    return SetReady(lane);
  }
  if (lane.by_device) {
    lane.take_due = true;
    lane.phase = Phase::kAhead;
    return;
  }
  for (NodePart& part : lane.nodes) {
    part.pending = part.involved();
  }
  lane.partials_due = by_span() && lane.decode_rows > 0;
  lane.context_pending = NodeOf(lane, lane.slice - 1) != options_.node;
  lane.phase = Phase::kAway;
}

void StepWorker::EndStep(Lane& lane) {
  turns_.End(IndexOf(lane));
  lane.phase = Phase::kIdle;
}

// Steps with prompt chunks say nothing about decode rows.
void StepWorker::NoteSlice(Lane& lane, Nanos elapsed) {
  if (lane.phase == Phase::kAhead) {
    return;  // It has been ordered; NoteTaken() hears how long it took.
  }
  lane.slices_nanos += elapsed;
  lane.slices_run += InHead(lane) || lane.reducing ? 0 : 1;
  const bool step_ended = lane.phase == Phase::kIdle || lane.phase == Phase::kElsewhere;
  if (step_ended && lane.chunks.empty()) {
    slice_times_.Add(lane.decode_rows, ToSeconds(lane.slices_nanos) / lane.slices_run);
    counters_.unit_line.Set(slice_times_.Line(/*proportional=*/false));
  }
}

absl::Status StepWorker::RunSlice(Lane& lane, std::string& blamed) {
  if (lane.take_due) {
    LAMINA_RETURN_IF_ERROR(TakeByDevice(lane));
    if (InHead(lane)) {  // The tail waits for the device, so it waits until the last outputs came.
      lane.phase = Phase::kAhead;
      return absl::OkStatus();
    }
  }
  LAMINA_ASSIGN_OR_RETURN(const bool complete, RunOps(lane, blamed));
  if (!complete) {
    return absl::OkStatus();
  }
  if (InHead(lane)) {
    if (shard_.index == 0) {
      return RunTail(lane, blamed);
    }
    control::AddTo(counters_.units, 1);
    GoTo(lane, executor_.slice_count());
    return absl::OkStatus();
  }
  control::AddTo(counters_.units, 1);
  control::AddTo(counters_.replayed_units, lane.replayed ? 1 : 0);
  if (local_ != nullptr) {
    LAMINA_RETURN_IF_ERROR(AttendHere(lane));
  } else if (lane.by_device) {
    LAMINA_RETURN_IF_ERROR(SendByDevice(lane));
  } else {
    LAMINA_RETURN_IF_ERROR(Send(lane, blamed));
    LAMINA_RETURN_IF_ERROR(AttendChunks(lane));
  }
  transport_.Progress();  // What was sent and is still here.
  executor_.RunAfterSend(lane.slice, lane.buffers);
  LapOf(lane, control::WorkPart::kBeside, lane.slice);
  if (NodeOf(lane, lane.slice + 1) != options_.node) {
    LAMINA_RETURN_IF_ERROR(SendContext(lane, blamed));
  }
  GoTo(lane, lane.slice + 1);
  return absl::OkStatus();
}

// Runs the slice's ops on, as far as they go without the other shards' parts; of the last slice
// those that all shards run. Whether all have run.
absl::StatusOr<bool> StepWorker::RunOps(Lane& lane, std::string& blamed) {
  if (InHead(lane) && lane.op == 0 && executor_.reduces()) {
    LAMINA_RETURN_IF_ERROR(KeepTailRows(lane));
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
    lane.reductions += reduce < end;
  } else {
    if (reduce < end) {
      ++lane.reductions;
      executor_.PlacePart(lane.slice, reduce, PartOfSum(lane).data() + sizeof(core::WindowHeader),
                          lane.buffers);
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
  LapOf(lane, control::WorkPart::kDense, lane.slice);
  if (reduce == end) {
    return true;
  }
  LAMINA_RETURN_IF_ERROR(SendPart(lane, blamed));
  lane.reducing = true;
  lane.away_since = RealClock().Now();
  lane.phase = Phase::kAway;
  return false;
}

// Prompt chunks attend here, over the scratch KV, while decode rows attend at the memory nodes.
absl::Status StepWorker::AttendChunks(Lane& lane) {
  if (lane.chunks.empty()) {
    return absl::OkStatus();
  }
  const uint32_t layer = lane.slice;
  items_.clear();
  for (const Chunk& chunk : lane.chunks) {
    items_.push_back({.sequence = chunk.scratch,
                      .first_position = chunk.plan.first_token,
                      .tokens = chunk.plan.tokens,
                      .first_row = chunk.first_row});
  }
  const size_t rows = lane.positions.size();
  LAMINA_RETURN_IF_ERROR(chunks_.Attend(layer - first_layer_, items_,
                                        executor_.DeviceQkvRows(layer, rows, lane.buffers),
                                        executor_.DeviceAttentionRows(layer, rows, lane.buffers)));
  LapOf(lane, control::WorkPart::kChunks, layer);
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
