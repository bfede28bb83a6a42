// SPDX-License-Identifier: Apache-2.0
#include "memory_node/attention_worker.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/epoch_shape.h"
#include "control/transport_fault.h"
#include "transport/link_probe.h"
#include "transport/put_all.h"

namespace lamina::memory_node {
namespace {

// How long an idle worker sleeps before it looks for plans of steps without rows here.
constexpr Nanos kIdleWait = Millis(50);
// For all compute nodes to have measured their links, one after the other. Longer than each waits
// for an answer, so that it is they who say which link does not work.
constexpr Nanos kMeasuringMax = Seconds(60);

}  // namespace

AttentionWorker::AttentionWorker(const Options& options, transport::Transport& transport,
                                 transport::Region& region, kernels::KvArena& arena,
                                 ThreadPool& pool, WorkerCounters& counters)
    : options_(options),
      layers_(control::LayersOf(options.config, options.node)),
      layout_(control::WindowShapeOf(options.config)),
      schedule_(control::ScheduleOf(options.config)),
      transport_(transport),
      region_(region),
      arena_(arena),
      pool_(pool),
      counters_(counters),
      lanes_(options.config.lanes),
      scratch_(options.kernel->MakeScratch(control::WidestQueries(layers_), 1,
                                           options.config.sequence_tokens_max, pool.threads())),
      reply_(layout_.reply_window_bytes()) {
  items_.reserve(options.config.rows_max * std::max(1u, layout_.shape().spans_max));
  for (const std::string& name : options.config.compute_nodes) {
    links_.push_back(counters.meter.Link(name));
  }
  conditions_.resize(layout_.query_words());
}

// A transport may read the source of a put until the view of its target is gone.
AttentionWorker::~AttentionWorker() { replies_.clear(); }

void AttentionWorker::SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> replies) {
  replies_ = std::move(replies);
}

void AttentionWorker::PushPlan(core::StepPlan plan) { inbox_.Push(std::move(plan)); }

void AttentionWorker::Stop() {
  abort_.store(1, std::memory_order_release);
  inbox_.Wake();
}

Nanos AttentionWorker::Lap(control::WorkPart part, uint32_t lane, uint64_t value, uint32_t replica,
                           size_t bytes) {
  const Nanos start = lap_;
  lap_ = counters_.meter.Lap({.start = start,
                              .part = part,
                              .lane = static_cast<uint8_t>(lane),
                              .peer = static_cast<uint8_t>(replica),
                              .layer = static_cast<uint16_t>(layout_.LayerOf(value)),
                              .rows = static_cast<uint16_t>(lanes_[lane].rows.size()),
                              .step = static_cast<uint32_t>(layout_.StepOf(value)),
                              .bytes = static_cast<uint32_t>(std::min<size_t>(bytes, UINT32_MAX))});
  return lap_ - start;
}

absl::Status AttentionWorker::Run(std::string& blamed) {
  LAMINA_RETURN_IF_ERROR(
      control::TransportFault(transport_.RegisterSource(reply_, transport::MemoryKind::kHost)));
  if (absl::Status answered = AnswerLinks(blamed); !answered.ok()) {
    return absl::IsCancelled(answered) ? absl::OkStatus() : control::TransportFault(answered);
  }
  lap_ = RealClock().Now();
  while (abort_.load(std::memory_order_acquire) == 0) {
    const absl::StatusOr<size_t> ready = WaitForQueries();
    if (!ready.ok()) {
      if (absl::IsDeadlineExceeded(ready.status())) {
        lap_ = counters_.meter.Lap({.start = lap_, .part = control::WorkPart::kWaitQuery});
        LAMINA_RETURN_IF_ERROR(TakePlans());
        continue;
      }
      return absl::IsCancelled(ready.status()) ? absl::OkStatus() : ready.status();
    }
    const uint32_t replica = static_cast<uint32_t>(*ready / options_.config.lanes);
    const uint32_t lane = static_cast<uint32_t>(*ready % options_.config.lanes);
    const Nanos waited = Lap(control::WorkPart::kWaitQuery, lane, lanes_[lane].value + 1, replica);
    control::AddTo(links_[replica]->waited_nanos, static_cast<uint64_t>(waited));
    const Nanos start = RealClock().Now();
    const absl::Status status = ServeUnit(replica, lane);
    NoteUnit(lanes_[lane], RealClock().Now() - start);
    if (absl::IsCancelled(status)) {
      return absl::OkStatus();
    }
    if (!status.ok()) {
      blamed = options_.config.compute_nodes[replica];
      return status;
    }
  }
  return absl::OkStatus();
}

// Attentions without chunks, of the middle of a step: its first may have waited for the plan, its
// last applies the next one.
void AttentionWorker::NoteUnit(const Lane& lane, Nanos elapsed) {
  if (lane.step == 0 || lane.rows.empty() || lane.chunk_tokens > 0 ||
      layout_.LayerOf(lane.value) == 0 ||
      layout_.LayerOf(lane.value) + 1 == layout_.layer_count()) {
    return;
  }
  uint64_t context = 0;
  for (const Row& row : lane.rows) {
    context += row.position + 1;
  }
  unit_times_.Add(static_cast<double>(context), ToSeconds(elapsed));
  counters_.unit_line.Set(unit_times_.Line(/*proportional=*/true));
}

// Compute nodes measure their links before they send anything else.
absl::Status AttentionWorker::AnswerLinks(std::string& blamed) {
  std::vector<transport::LinkAnswerer> answerers;
  for (uint32_t node = 0; node < replies_.size(); ++node) {
    answerers.push_back({.peer = replies_[node].get(),
                         .ask_word = layout_.query_probe_word(node),
                         .answer_word = layout_.memory_probe_word(options_.node)});
  }
  size_t late = 0;
  const absl::Status status = transport::AnswerLinks(
      transport_, region_, answerers,
      {.deadline = RealClock().Now() + kMeasuringMax, .abort = &abort_}, late);
  if (!status.ok()) {
    blamed = options_.config.compute_nodes[late];
    return absl::Status(status.code(), absl::StrCat("link to ", blamed, ": ", status.message()));
  }
  return absl::OkStatus();
}

// Waits for the next value of any (compute node, lane). The one served last is looked at last.
absl::StatusOr<size_t> AttentionWorker::WaitForQueries() {
  const size_t count = conditions_.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t which = (first_condition_ + i) % count;
    conditions_[i] = {.word = static_cast<uint32_t>(which),
                      .at_least = lanes_[which % options_.config.lanes].value + 1};
  }
  LAMINA_ASSIGN_OR_RETURN(
      const size_t index,
      transport_.Wait(region_, conditions_,
                      {.deadline = RealClock().Now() + kIdleWait, .abort = &abort_}));
  const size_t which = (first_condition_ + index) % count;
  first_condition_ = (which + 1) % count;
  return which;
}

absl::Status AttentionWorker::ServeUnit(uint32_t replica, uint32_t lane_index) {
  Lane& lane = lanes_[lane_index];
  const uint64_t value = region_.LoadSignal(layout_.query_word(replica, lane_index));
  const uint32_t layer = layout_.LayerOf(value);
  const std::byte* window =
      region_.bytes().data() + layout_.QueryWindow(replica, lane_index, value);
  core::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  core::WindowHeader expected{.lane = lane_index,
                              .epoch = options_.config.epoch,
                              .step = layout_.StepOf(value),
                              .layer = layer,
                              .rows = header.rows,
                              .kv_rows = header.kv_rows,
                              .sender = replica};
  // What the signal alone tells, before a plan is waited for that may never come.
  LAMINA_RETURN_IF_ERROR(CheckWindow(header, expected));
  if (lane.step == 0) {
    LAMINA_RETURN_IF_ERROR(AwaitPlan(lane));
    Lap(control::WorkPart::kWaitPlan, lane_index, value, replica);
  }
  expected.step = lane.step;
  expected.rows = static_cast<uint32_t>(lane.rows.size());
  expected.kv_rows = lane.chunk_tokens;
  if (const uint32_t turn = schedule_.ReplicaOf(lane_index, lane.step, layer, lane.pinned);
      turn != replica) {
    counters_.refusals.Count(control::Refusal::kSchedule);
    return absl::InternalError(absl::StrCat("a window of lane ", lane_index, " step ", lane.step,
                                            " layer ", layer, " comes from compute node ", replica,
                                            " where the schedule says ", turn));
  }
  LAMINA_RETURN_IF_ERROR(CheckWindow(header, expected));
  Store(lane, layer, window);
  Lap(control::WorkPart::kStore, lane_index, value, replica);
  const uint64_t read = Attend(lane, layer, window);
  Lap(control::WorkPart::kAttend, lane_index, value, replica, read);
  LAMINA_RETURN_IF_ERROR(Reply(lane_index, value));
  lane.value = value;
  const AttentionDescriptor& shape = layers_[layer];
  size_t elements = size_t{lane.chunk_tokens} * 2 * shape.kv_width();
  for (const Row& row : lane.rows) {
    elements += RowWidth(row, shape);
  }
  control::AddTo(counters_.bytes_received, sizeof(header) + elements * sizeof(BFloat16));
  control::AddTo(counters_.units, 1);
  if (layer + 1 < layout_.layer_count()) {
    return absl::OkStatus();
  }
  lane.step = 0;
  const absl::Status advanced = Advance(lane);
  Lap(control::WorkPart::kTables, lane_index, value, replica);
  return advanced;
}

// A raised signal over a header of the past means that somebody wrote who should not have: the rows
// cannot be trusted, nor the signal. So a stale window ends the epoch as any other wrong one does.
absl::Status AttentionWorker::CheckWindow(const core::WindowHeader& header,
                                          const core::WindowHeader& expected) {
  absl::Status checked = core::CheckHeader(header, expected);
  if (!checked.ok()) {
    counters_.refusals.Count(control::RefusalOf(header, expected));
    LogWarning("refused a query window of ", options_.config.compute_nodes[expected.sender], " ",
               checked.message());
  }
  return checked;
}

// Takes what has come, in the order of its coming: a sequence may leave one lane and join another.
absl::Status AttentionWorker::TakePlans() {
  taken_.clear();
  inbox_.TakeAll(taken_);
  for (core::StepPlan& plan : taken_) {
    if (plan.epoch == options_.config.epoch && plan.lane < lanes_.size()) {
      Lane& lane = lanes_[plan.lane];
      lane.plans.push_back(std::move(plan));
      LAMINA_RETURN_IF_ERROR(Advance(lane));
    }
  }
  return absl::OkStatus();
}

// Applies plans of a lane whose step is done, up to the next one that has rows here.
absl::Status AttentionWorker::Advance(Lane& lane) {
  size_t applied = 0;
  while (lane.step == 0 && applied < lane.plans.size()) {
    const core::StepPlan& plan = lane.plans[applied++];
    LAMINA_RETURN_IF_ERROR(ApplyTables(plan));
    LAMINA_RETURN_IF_ERROR(CollectRows(plan, lane));
    if (!lane.rows.empty() || lane.chunk_tokens > 0) {
      lane.step = plan.step;
      lane.pinned = !plan.chunks.empty();
    }
  }
  lane.plans.erase(lane.plans.begin(), lane.plans.begin() + static_cast<std::ptrdiff_t>(applied));
  return absl::OkStatus();
}

// Waits until the lane is in a step: shared memory outruns gRPC, so a window may come before its
// plan.
absl::Status AttentionWorker::AwaitPlan(const Lane& lane) {
  LAMINA_RETURN_IF_ERROR(TakePlans());
  while (lane.step == 0) {
    inbox_.WaitForItem();
    if (abort_.load(std::memory_order_acquire) != 0) {
      return absl::CancelledError("stopped while waiting for a plan");
    }
    LAMINA_RETURN_IF_ERROR(TakePlans());
  }
  return absl::OkStatus();
}

void AttentionWorker::AppendExtent(std::vector<Extent>& extents, const Extent& extent) {
  if (!extents.empty() && extents.back().first_slot + extents.back().tokens == extent.first_slot) {
    extents.back().tokens += extent.tokens;
  } else {
    extents.push_back(extent);
  }
}

absl::Status AttentionWorker::ApplyTables(const core::StepPlan& plan) {
  for (const core::SequenceId id : plan.leaves) {
    sequences_.erase(id);
  }
  for (const core::SequenceJoin& join : plan.joins) {
    if (control::Holds(options_.config, options_.node, join.memory_node)) {
      sequences_[join.id] = {};
    }
  }
  for (const core::SlotGrant& grant : plan.grants) {
    const auto found = sequences_.find(grant.sequence);
    if (found == sequences_.end()) {
      continue;  // Of another node.
    }
    const Extent& extent = grant.extent;
    if (spans() && grant.memory_node != options_.node) {
      LAMINA_RETURN_IF_ERROR(GrantToSpan(found->second, grant));
      continue;
    }
    if (extent.tokens == 0 || extent.first_slot >= arena_.slots() ||
        extent.tokens > arena_.slots() - extent.first_slot) {
      return absl::InternalError(absl::StrCat("plan grants slots [", extent.first_slot, ", +",
                                              extent.tokens, ") of an arena of ", arena_.slots()));
    }
    if (spans()) {
      LAMINA_RETURN_IF_ERROR(GrantToSpan(found->second, grant));
      continue;
    }
    AppendExtent(found->second.extents, extent);
    found->second.tokens += extent.tokens;
  }
  return absl::OkStatus();
}

absl::Status AttentionWorker::CollectRows(const core::StepPlan& plan, Lane& lane) {
  lane.rows.clear();
  lane.chunks.clear();
  lane.chunk_tokens = 0;
  for (const core::DecodeRow& row : plan.rows) {
    const auto found = sequences_.find(row.sequence);
    if (found == sequences_.end()) {
      continue;
    }
    if (spans()) {
      LAMINA_RETURN_IF_ERROR(CollectSpanRow(found->second, row.position, lane));
      continue;
    }
    const Sequence& sequence = found->second;
    LAMINA_ASSIGN_OR_RETURN(const std::vector<Extent> slot,
                            SlotsOf(sequence.extents, sequence.tokens, row.position, 1));
    lane.rows.push_back({.sequence = &found->second, .position = row.position, .slot = slot[0]});
  }
  for (const core::PrefillChunk& chunk : plan.chunks) {
    const auto found = sequences_.find(chunk.sequence);
    if (found == sequences_.end()) {
      continue;
    }
    const Sequence& sequence = found->second;
    LAMINA_ASSIGN_OR_RETURN(
        std::vector<Extent> slots,
        spans() ? SpanSlotsOf(sequence, chunk.first_token, chunk.tokens)
                : SlotsOf(sequence.extents, sequence.tokens, chunk.first_token, chunk.tokens));
    const uint32_t tokens =
        std::accumulate(slots.begin(), slots.end(), 0u,
                        [](uint32_t sum, const Extent& extent) { return sum + extent.tokens; });
    lane.chunks.push_back({.tokens = tokens, .slots = std::move(slots)});
    lane.chunk_tokens += tokens;
  }
  std::stable_partition(lane.rows.begin(), lane.rows.end(), [](const Row& row) { return row.own; });
  if (lane.rows.size() > options_.config.rows_max ||
      lane.chunk_tokens > options_.config.chunk_tokens_max) {
    return absl::InternalError(absl::StrCat("plan has ", lane.rows.size(), " rows and ",
                                            lane.chunk_tokens, " chunk tokens for a window of ",
                                            options_.config.rows_max, " and ",
                                            options_.config.chunk_tokens_max));
  }
  return absl::OkStatus();
}

// The slots of tokens [first, first + tokens) of `held`.
absl::StatusOr<std::vector<Extent>> AttentionWorker::SlotsOf(const std::vector<Extent>& extents,
                                                             uint32_t held, uint32_t first,
                                                             uint32_t tokens) {
  if (first > held || tokens > held - first) {
    return absl::InternalError(absl::StrCat("plan uses tokens [", first, ", +", tokens,
                                            ") of a sequence with slots for ", held));
  }
  std::vector<Extent> slots;
  uint32_t skip = first;
  for (const Extent& extent : extents) {
    if (tokens == 0) {
      break;
    }
    if (skip >= extent.tokens) {
      skip -= extent.tokens;
      continue;
    }
    const uint32_t count = std::min(tokens, extent.tokens - skip);
    slots.push_back({.first_slot = extent.first_slot + skip, .tokens = count});
    tokens -= count;
    skip = 0;
  }
  return slots;
}

// Copies k and v of all rows and chunk tokens from the window into their slots.
void AttentionWorker::Store(const Lane& lane, uint32_t layer, const std::byte* window) {
  const AttentionDescriptor& shape = layers_[layer];
  const auto* row = reinterpret_cast<const BFloat16*>(window + sizeof(core::WindowHeader));
  for (const Row& r : lane.rows) {
    const BFloat16* k = row + shape.q_width();
    if (r.own) {
      kernels::StoreKv(shape, k, k + shape.kv_width(), shape.qkv_width(), {&r.slot, 1},
                       arena_.k(layer), arena_.v(layer), arena_.head_stride(layer));
    }
    row += RowWidth(r, shape);
  }
  for (const Chunk& chunk : lane.chunks) {
    kernels::StoreKv(shape, row, row + shape.kv_width(), 2 * shape.kv_width(), chunk.slots,
                     arena_.k(layer), arena_.v(layer), arena_.head_stride(layer));
    row += size_t{chunk.tokens} * 2 * shape.kv_width();
  }
}

// Returns how many bytes of KV it has read.
uint64_t AttentionWorker::Attend(const Lane& lane, uint32_t layer, const std::byte* window) {
  const AttentionDescriptor& shape = layers_[layer];
  const auto* q = reinterpret_cast<const BFloat16*>(window + sizeof(core::WindowHeader));
  auto* out = reinterpret_cast<BFloat16*>(reply_.data() + sizeof(core::WindowHeader));
  auto* partial = reinterpret_cast<float*>(reply_.data() + sizeof(core::WindowHeader));
  items_.clear();
  uint64_t context = 0;
  for (const Row& row : lane.rows) {
    if (spans()) {
      CollectSpanItems(row, q, RowWidth(row, shape), shape, partial);
      q += RowWidth(row, shape);
      context +=
          items_.back().first_position + 1 + (row.partials - 1) * options_.config.span_tokens;
      continue;
    }
    items_.push_back({.extents = row.sequence->extents,
                      .first_position = row.position,
                      .query_tokens = 1,
                      .q = q,
                      .q_stride = shape.qkv_width(),
                      .out = out,
                      .out_stride = shape.q_width()});
    q += shape.qkv_width();
    out += shape.q_width();
    context += row.position + 1;
  }
  const uint64_t bytes = context * 2 * shape.kv_width() * sizeof(BFloat16);
  if (!items_.empty()) {
    options_.kernel->Attend(shape, arena_.View(layer), items_, *scratch_, pool_);
    control::AddTo(counters_.kv_bytes_read, bytes);
  }
  return bytes;
}

// To the replica that runs the next slice.
absl::Status AttentionWorker::Reply(uint32_t lane_index, uint64_t value) {
  const Lane& lane = lanes_[lane_index];
  const uint32_t layer = layout_.LayerOf(value);
  const core::WindowHeader header{.lane = lane_index,
                                  .epoch = options_.config.epoch,
                                  .step = layout_.StepOf(value),
                                  .layer = layer,
                                  .rows = static_cast<uint32_t>(lane.rows.size()),
                                  .sender = options_.node};
  std::memcpy(reply_.data(), &header, sizeof(header));
  const size_t partial_bytes =
      layers_[layer].query_heads * kernels::PartialWidth(layers_[layer]) * sizeof(float);
  size_t bytes = sizeof(header);
  for (const Row& row : lane.rows) {
    bytes += spans() ? row.partials * partial_bytes : layers_[layer].q_width() * sizeof(BFloat16);
  }
  const transport::SignalUpdate signal{.word = layout_.reply_word(options_.node, lane_index),
                                       .value = value};
  const transport::WaitOptions wait{.deadline = RealClock().Now() + options_.peer_deadline,
                                    .abort = &abort_};
  const uint32_t replica = schedule_.ReplicaOf(lane_index, lane.step, layer + 1, lane.pinned);
  transport::RemoteRegion& peer = *replies_[replica];
  absl::Status sent =
      transport::PutAll(transport_, peer, layout_.ReplyWindow(options_.node, lane_index, value),
                        {reply_.data(), bytes}, &signal, wait);
  // The buffer is reused for the next unit: wait until the backend has read it.
  sent.Update(sent.ok() ? transport::DrainPuts(transport_, peer, wait) : absl::OkStatus());
  control::LinkCounters& link = *links_[replica];
  if (!sent.ok()) {
    control::AddTo(link.failures, absl::IsCancelled(sent) ? 0 : 1);
    return sent;
  }
  control::AddTo(counters_.bytes_sent, bytes);
  control::AddTo(link.bytes, bytes);
  control::AddTo(link.puts, 1);
  control::AddTo(link.nanos, static_cast<uint64_t>(Lap(control::WorkPart::kReply, lane_index, value,
                                                       replica, bytes)));
  return absl::OkStatus();
}

}  // namespace lamina::memory_node
