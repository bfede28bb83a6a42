// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_worker.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/status_macros.h"
#include "control/epoch_shape.h"
#include "control/transport_fault.h"
#include "transport/put_all.h"

namespace lamina::compute_node {

StepWorker::StepWorker(const Options& options, SliceExecutor& executor,
                       transport::Transport& transport, transport::Region& region,
                       kernels::KvArena& scratch, ThreadPool& pool, control::NodeReporter& reporter,
                       StepCounters& counters)
    : options_(options),
      layout_(options.shape),
      shard_(control::StageOf(options.config, options.node).shard),
      schedule_(control::ScheduleOf(options.config, shard_.index)),
      executor_(executor),
      transport_(transport),
      region_(region),
      scratch_(scratch),
      first_layer_(control::StageOf(options.config, options.node).first_layer),
      pool_(pool),
      reporter_(reporter),
      counters_(counters),
      local_(options.kv == nullptr ? nullptr
                                   : std::make_unique<LocalAttention>(options.config, *options.kv)),
      lanes_(options.config.lanes),
      turns_(options.config.lanes,
             /*by_visit=*/control::IsPartOfLayers(options.config, options.node)),
      tail_buffers_(executor.MakeTailBuffers()),
      attention_scratch_(
          options.attention->MakeScratch(control::WidestQueries(options.config.layers),
                                         std::max<uint32_t>(1, options.config.chunk_tokens_max),
                                         options.config.sequence_tokens_max, pool.threads())),
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
    lane.buffers = executor.MakeBuffers(rows_max);
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

// A transport may read the sources of its puts until the regions' views are gone.
StepWorker::~StepWorker() {
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
  inbox_.Wake();
}

absl::Status StepWorker::Run(std::string& blamed) {
  if (local_ != nullptr) {
    LAMINA_RETURN_IF_ERROR(local_->Begin());
  }
  LAMINA_RETURN_IF_ERROR(control::TransportFault(RegisterSources()));
  absl::Status status = control::TransportFault(MeasureLinks(blamed));
  if (status.ok()) {
    if (!transport_.capabilities().one_sided) {
      executor_.SetBetweenOps([this] { transport_.Progress(); });
    }
    status = Loop(blamed);
    executor_.SetBetweenOps(nullptr);
  }
  return absl::IsCancelled(status) ? absl::OkStatus() : status;
}

absl::Status StepWorker::RegisterSources() {
  for (Lane& lane : lanes_) {
    if (!Runs(IndexOf(lane))) {
      continue;
    }
    for (const absl::Span<std::byte> bytes : lane.buffers.Allocations()) {
      LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(bytes, transport::MemoryKind::kHost));
    }
    LAMINA_RETURN_IF_ERROR(
        transport_.RegisterSource(transport::AsBytes(lane.headers.data(), lane.headers.size()),
                                  transport::MemoryKind::kHost));
    LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(
        transport::AsBytes(lane.kv_staging.data(), lane.kv_staging.size()),
        transport::MemoryKind::kHost));
    LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(
        transport::AsBytes(lane.row_staging.data(), lane.row_staging.size()),
        transport::MemoryKind::kHost));
    LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(transport::AsBytes(&lane.context_header, 1),
                                                     transport::MemoryKind::kHost));
    for (const std::vector<std::byte>& part : lane.parts) {
      LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(part, transport::MemoryKind::kHost));
    }
    for (const std::vector<std::byte>& message : lane.token_messages) {
      LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(message, transport::MemoryKind::kHost));
    }
  }
  return absl::OkStatus();
}

Nanos StepWorker::Lap(control::TraceEvent event) {
  event.start = lap_;
  lap_ = counters_.meter.Lap(event);
  return lap_ - event.start;
}

Nanos StepWorker::LapOf(const Lane& lane, control::WorkPart part, uint32_t layer, uint8_t peer,
                        size_t bytes) {
  return Lap({.part = part,
              .lane = static_cast<uint8_t>(IndexOf(lane)),
              .peer = peer,
              .layer = static_cast<uint16_t>(layer),
              .rows = static_cast<uint16_t>(std::min<size_t>(lane.positions.size(), UINT16_MAX)),
              .step = static_cast<uint32_t>(lane.plan.step),
              .bytes = static_cast<uint32_t>(bytes)});
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
    const bool any_waits = std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
      return lane.phase == Phase::kAway || lane.phase == Phase::kElsewhere;
    });
    if (any_waits) {
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
  lane.slices_nanos += elapsed;
  lane.slices_run += InHead(lane) || lane.reducing ? 0 : 1;
  const bool step_ended = lane.phase == Phase::kIdle || lane.phase == Phase::kElsewhere;
  if (step_ended && lane.chunks.empty()) {
    slice_times_.Add(lane.decode_rows, ToSeconds(lane.slices_nanos) / lane.slices_run);
    counters_.unit_line.Set(slice_times_.Line(/*proportional=*/false));
  }
}

absl::Status StepWorker::RunSlice(Lane& lane, std::string& blamed) {
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
  if (local_ != nullptr) {
    LAMINA_RETURN_IF_ERROR(AttendHere(lane));
  } else {
    LAMINA_RETURN_IF_ERROR(Send(lane, blamed));
    AttendChunks(lane);
  }
  transport_.Progress();  // What was sent and is still here.
  executor_.RunAfterSend(lane.slice, Rows(lane), lane.buffers);
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
    KeepTailRows(lane);
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
    executor_.Run(lane.slice, lane.op, reduce, Rows(lane), lane.buffers);
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
void StepWorker::AttendChunks(Lane& lane) {
  if (lane.chunks.empty()) {
    return;
  }
  const uint32_t layer = lane.slice;
  const uint32_t plane = layer - first_layer_;
  const AttentionDescriptor& shape = options_.config.layers[layer];
  const auto qkv = executor_.QkvRows(layer, lane.positions.size(), lane.buffers);
  const auto out = executor_.AttentionRows(layer, lane.positions.size(), lane.buffers);
  items_.clear();
  for (const Chunk& chunk : lane.chunks) {
    const BFloat16* k = qkv.row(chunk.first_row) + shape.q_width();
    kernels::StoreKv(shape, k, k + shape.kv_width(), qkv.stride, {&chunk.scratch_new, 1},
                     scratch_.k(plane), scratch_.v(plane), scratch_.head_stride(plane));
    items_.push_back({.extents = {&chunk.scratch, 1},
                      .first_position = chunk.plan.first_token,
                      .query_tokens = chunk.plan.tokens,
                      .q = qkv.row(chunk.first_row),
                      .q_stride = qkv.stride,
                      .out = out.row(chunk.first_row),
                      .out_stride = out.stride});
  }
  options_.attention->Attend(shape, scratch_.View(plane), items_, *attention_scratch_, pool_);
  LapOf(lane, control::WorkPart::kChunks, layer);
}

// Runs the last slice in blocks of rows, samples and scores, and tells everybody.
absl::Status StepWorker::RunTail(Lane& lane, std::string& blamed) {
  if (tail_lane_ != nullptr && tail_lane_ != &lane) {
    SetReady(lane);  // The logits of another lane are not complete; it is ready too, and next.
    return absl::OkStatus();
  }
  if (tail_lane_ == nullptr) {
    tail_lane_ = &lane;
    lane.tail_done = 0;
    lane.head_columns = 0;
    lane.result = {.epoch = lane.plan.epoch, .lane = lane.plan.lane, .step = lane.plan.step};
    control::AddTo(counters_.units, 1);
  }
  const size_t count = std::min(SliceExecutor::kTailRows, lane.tail.size() - lane.tail_done);
  if (count > 0) {
    if (lane.head_columns == 0) {
      uint32_t chosen[SliceExecutor::kTailRows];
      for (size_t i = 0; i < count; ++i) {
        chosen[i] = lane.tail[lane.tail_done + i].row;
      }
      executor_.BeginTail(Rows(lane), lane.buffers, {chosen, count}, tail_buffers_);
    }
    lane.head_columns = executor_.RunHead(count, lane.head_columns, tail_buffers_);
    if (lane.head_columns == executor_.Logits(count, tail_buffers_).cols) {
      SampleTail(lane, count);
      lane.tail_done += count;
      lane.head_columns = 0;
    }
  }
  LapOf(lane, control::WorkPart::kHead, lane.slice);
  if (lane.tail_done < lane.tail.size()) {
    SetReady(lane);
    return absl::OkStatus();
  }
  tail_lane_ = nullptr;
  LAMINA_RETURN_IF_ERROR(SendTokens(lane, lane.result, blamed));
  reporter_.ReportResult(std::move(lane.result));
  ForgetPrefilled(lane);
  EndStep(lane);
  return absl::OkStatus();
}

// A node for prompts alone is not told of what becomes of them.
void StepWorker::ForgetPrefilled(const Lane& lane) {
  if (!schedule_.IsPrefillLane(IndexOf(lane)) || !Runs(IndexOf(lane))) {
    return;
  }
  for (const Chunk& chunk : lane.chunks) {
    if (!chunk.plan.last) {
      continue;
    }
    for (const core::SequenceId child : sequences_.Find(chunk.plan.sequence)->children) {
      const Sequence* fork = sequences_.Find(child);
      if (fork != nullptr && fork->join.parent == chunk.plan.sequence) {
        sequences_.Erase(child);
      }
    }
    sequences_.Erase(chunk.plan.sequence);
  }
}

// Samples or scores the next `count` rows, whose logits are complete.
void StepWorker::SampleTail(Lane& lane, size_t count) {
  const auto logits = executor_.Logits(count, tail_buffers_);
  const size_t first = lane.tail_done;
  core::StepResult& result = lane.result;
  std::vector<core::SampledToken> sampled(count);
  std::vector<float> scored(count);
  std::vector<core::TokenRank> ranks(count);
  pool_.Run(count, [&](size_t i, size_t worker) {
    const TailRow& row = lane.tail[first + i];
    Sequence& sequence = *sequences_.Find(row.sequence);
    const absl::Span<const float> values(logits.row(i), logits.cols);
    if (row.score) {
      const TokenId token = sequence.tokens[row.position + 1];
      scored[i] = kernels::LogProbability(values, token);
      ranks[i] = RankOf(values, token, sequence, sample_scratch_[worker]);
    } else {
      sampled[i] = SampleNext(values, sequence, *options_.grammars, sample_scratch_[worker]);
    }
  });
  for (size_t i = 0; i < count; ++i) {
    const TailRow& row = lane.tail[first + i];
    if (!row.score) {
      result.tokens.push_back(std::move(sampled[i]));
      continue;
    }
    if (result.scores.empty() || result.scores.back().sequence != row.sequence) {
      result.scores.push_back({.sequence = row.sequence, .first_token = row.position + 1});
    }
    result.scores.back().logprobs.push_back(scored[i]);
    if (ranks[i].rank > 0) {
      result.scores.back().ranks.push_back(std::move(ranks[i]));
    }
  }
}

}  // namespace lamina::compute_node
