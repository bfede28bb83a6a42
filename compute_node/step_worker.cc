// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace lamina::compute_node {
namespace {

// While lanes are away and others idle, plans of the idle ones are looked for this often.
constexpr Nanos kPlanPoll = Micros(200);

core::WindowShape ShapeOf(const control::EpochConfig& config) {
  return {.compute_nodes = static_cast<uint32_t>(config.compute_nodes.size()),
          .memory_nodes = static_cast<uint32_t>(config.memory_nodes.size()),
          .lanes = config.lanes,
          .rows_max = config.rows_max,
          .kv_rows_max = config.chunk_tokens_max,
          .layers = config.layers};
}

const AttentionDescriptor& Widest(const std::vector<AttentionDescriptor>& layers) {
  return *std::max_element(layers.begin(), layers.end(), [](const auto& a, const auto& b) {
    return std::pair(a.qkv_width(), a.head_dim) < std::pair(b.qkv_width(), b.head_dim);
  });
}

void Add(std::atomic<uint64_t>& counter, uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

template <typename T>
absl::Span<const std::byte> AsBytes(const T* data, size_t count) {
  return {reinterpret_cast<const std::byte*>(data), count * sizeof(T)};
}

}  // namespace

StepWorker::StepWorker(const Options& options, SliceExecutor& executor,
                       transport::Transport& transport, transport::Region& region,
                       kernels::KvArena& scratch, ThreadPool& pool, control::NodeReporter& reporter,
                       StepCounters& counters)
    : options_(options),
      layout_(ShapeOf(options.config)),
      executor_(executor),
      transport_(transport),
      region_(region),
      scratch_(scratch),
      pool_(pool),
      reporter_(reporter),
      counters_(counters),
      lanes_(options.config.lanes),
      tail_buffers_(executor.MakeTailBuffers()),
      attention_scratch_(options.attention->MakeScratch(
          Widest(options.config.layers), std::max<uint32_t>(1, options.config.chunk_tokens_max),
          options.config.sequence_tokens_max, pool.threads())),
      sample_scratch_(pool.threads()) {
  const size_t rows_max = options.config.rows_max + options.config.chunk_tokens_max;
  const size_t nodes = options.config.memory_nodes.size();
  for (Lane& lane : lanes_) {
    lane.buffers = executor.MakeBuffers(rows_max);
    lane.nodes.resize(nodes);
    lane.headers.resize(nodes);
    lane.kv_staging.resize(size_t{options.config.chunk_tokens_max} * 2 *
                           Widest(options.config.layers).kv_width());
    lane.token_ids.reserve(rows_max);
    lane.positions.reserve(rows_max);
  }
}

// A transport may read the sources of its puts until the regions' views are gone.
StepWorker::~StepWorker() { queries_.clear(); }

void StepWorker::SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> queries) {
  queries_ = std::move(queries);
}

void StepWorker::PushPlan(core::StepPlan plan) { inbox_.Push(std::move(plan)); }

void StepWorker::Stop() {
  abort_.store(1, std::memory_order_release);
  inbox_.Wake();
}

absl::Status StepWorker::Run(std::string& blamed) {
  for (Lane& lane : lanes_) {
    for (const absl::Span<std::byte> bytes : lane.buffers.Allocations()) {
      LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(bytes, transport::MemoryKind::kHost));
    }
    LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(
        AsBytes(lane.headers.data(), lane.headers.size()), transport::MemoryKind::kHost));
    LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(
        AsBytes(lane.kv_staging.data(), lane.kv_staging.size()), transport::MemoryKind::kHost));
  }
  while (abort_.load(std::memory_order_acquire) == 0) {
    TakePlans();
    LAMINA_RETURN_IF_ERROR(BeginSteps());
    LAMINA_RETURN_IF_ERROR(TakeReplies(blamed));
    if (Lane* lane = NextReady(); lane != nullptr) {
      const Nanos start = RealClock().Now();
      LAMINA_RETURN_IF_ERROR(RunSlice(*lane, blamed));
      Add(counters_.busy_nanos, static_cast<uint64_t>(RealClock().Now() - start));
      continue;
    }
    const bool any_away = std::any_of(lanes_.begin(), lanes_.end(),
                                      [](const Lane& lane) { return lane.phase == Phase::kAway; });
    if (!any_away) {
      inbox_.WaitForItem();
      continue;
    }
    const absl::Status waited = WaitForReplies(blamed);
    if (absl::IsCancelled(waited)) {
      return absl::OkStatus();
    }
    LAMINA_RETURN_IF_ERROR(waited);
  }
  return absl::OkStatus();
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

absl::Status StepWorker::BeginSteps() {
  for (Lane& lane : lanes_) {
    while (lane.phase == Phase::kIdle && !lane.plans.empty()) {
      lane.plan = std::move(lane.plans.front());
      lane.plans.erase(lane.plans.begin());
      LAMINA_RETURN_IF_ERROR(BeginStep(lane));
    }
  }
  return absl::OkStatus();
}

absl::Status StepWorker::BeginStep(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(sequences_.Apply(lane.plan, options_.vocabulary));
  lane.token_ids.clear();
  lane.positions.clear();
  lane.chunks.clear();
  for (NodePart& part : lane.nodes) {
    part = {};
  }
  LAMINA_RETURN_IF_ERROR(PlaceRows(lane));
  LAMINA_RETURN_IF_ERROR(PlaceChunks(lane));
  if (lane.positions.size() > lane.buffers.rows_max() ||
      lane.decode_rows > options_.config.rows_max) {
    return absl::InternalError(absl::StrCat("plan of lane ", lane.plan.lane, " step ",
                                            lane.plan.step, " has ", lane.positions.size(),
                                            " rows; at most ", lane.buffers.rows_max(), " fit"));
  }
  if (lane.positions.empty()) {  // Only leaves: answered at once.
    reporter_.ReportResult(
        {.epoch = lane.plan.epoch, .lane = lane.plan.lane, .step = lane.plan.step});
    return absl::OkStatus();
  }
  ChooseTailRows(lane);
  lane.slice = 0;
  lane.phase = Phase::kReady;
  // A lane that was idle must not run alone until it has caught up.
  uint64_t least = UINT64_MAX;
  for (const Lane& other : lanes_) {
    if (&other != &lane && other.phase != Phase::kIdle) {
      least = std::min(least, other.units);
    }
  }
  if (least != UINT64_MAX) {
    lane.units = std::max(lane.units, least);
  }
  return absl::OkStatus();
}

// Decode rows, sorted by memory node; their input is the token sampled last.
absl::Status StepWorker::PlaceRows(Lane& lane) {
  std::stable_sort(lane.plan.rows.begin(), lane.plan.rows.end(),
                   [this](const core::DecodeRow& a, const core::DecodeRow& b) {
                     const Sequence* x = sequences_.Find(a.sequence);
                     const Sequence* y = sequences_.Find(b.sequence);
                     return (x == nullptr ? 0 : x->join.memory_node) <
                            (y == nullptr ? 0 : y->join.memory_node);
                   });
  for (const core::DecodeRow& row : lane.plan.rows) {
    const Sequence* sequence = sequences_.Find(row.sequence);
    if (sequence == nullptr || sequence->join.memory_node >= lane.nodes.size() ||
        (!sequence->finished && row.position + 1 != sequence->tokens.size())) {
      return absl::InternalError(absl::StrCat("row of sequence ", row.sequence, " position ",
                                              row.position, " does not follow from the tables"));
    }
    RowRange& range = lane.nodes[sequence->join.memory_node].rows;
    range.first = range.count == 0 ? static_cast<uint32_t>(lane.positions.size()) : range.first;
    ++range.count;
    lane.token_ids.push_back(static_cast<uint32_t>(sequence->tokens.back()));
    lane.positions.push_back(row.position);
  }
  lane.decode_rows = static_cast<uint32_t>(lane.positions.size());
  return absl::OkStatus();
}

absl::Status StepWorker::PlaceChunks(Lane& lane) {
  for (const core::PrefillChunk& chunk : lane.plan.chunks) {
    const Sequence* sequence = sequences_.Find(chunk.sequence);
    const uint64_t end = uint64_t{chunk.first_token} + chunk.tokens;
    if (sequence == nullptr || sequence->join.memory_node >= lane.nodes.size() ||
        chunk.tokens == 0 || end > sequence->join.tokens.size() ||
        chunk.scratch_offset + end > scratch_.slots()) {
      return absl::InternalError(absl::StrCat("chunk [", chunk.first_token, ", +", chunk.tokens,
                                              ") of sequence ", chunk.sequence,
                                              " does not follow from the tables"));
    }
    lane.chunks.push_back(
        {.plan = chunk,
         .first_row = static_cast<uint32_t>(lane.positions.size()),
         .scratch = {.first_slot = chunk.scratch_offset, .tokens = static_cast<uint32_t>(end)},
         .scratch_new = {.first_slot = chunk.scratch_offset + chunk.first_token,
                         .tokens = chunk.tokens}});
    for (uint32_t i = 0; i < chunk.tokens; ++i) {
      lane.token_ids.push_back(static_cast<uint32_t>(sequence->tokens[chunk.first_token + i]));
      lane.positions.push_back(chunk.first_token + i);
    }
  }
  // Staging rows: node by node, in the order of chunks.
  uint32_t row = 0;
  for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
    lane.nodes[node].kv_rows.first = row;
    for (Chunk& chunk : lane.chunks) {
      if (sequences_.Find(chunk.plan.sequence)->join.memory_node == node) {
        chunk.first_kv_row = row;
        row += chunk.plan.tokens;
      }
    }
    lane.nodes[node].kv_rows.count = row - lane.nodes[node].kv_rows.first;
  }
  if (row > options_.config.chunk_tokens_max) {
    return absl::InternalError(absl::StrCat("plan has ", row, " chunk tokens; at most ",
                                            options_.config.chunk_tokens_max, " fit"));
  }
  return absl::OkStatus();
}

// Decode rows that are not dead, the last token of last chunks, and every token that is scored.
void StepWorker::ChooseTailRows(Lane& lane) {
  lane.tail.clear();
  for (uint32_t row = 0; row < lane.decode_rows; ++row) {
    const core::SequenceId id = lane.plan.rows[row].sequence;
    if (!sequences_.Find(id)->finished) {
      lane.tail.push_back({.row = row, .sequence = id, .position = lane.positions[row]});
    }
  }
  for (const Chunk& chunk : lane.chunks) {
    const core::PrefillChunk& plan = chunk.plan;
    const Sequence& sequence = *sequences_.Find(plan.sequence);
    if (sequence.join.score) {
      for (uint32_t i = 0; i < plan.tokens; ++i) {
        if (plan.first_token + i + 1 < sequence.tokens.size()) {
          lane.tail.push_back({.row = chunk.first_row + i,
                               .sequence = plan.sequence,
                               .position = plan.first_token + i,
                               .score = true});
        }
      }
    } else if (plan.last) {
      const uint32_t row = chunk.first_row + plan.tokens - 1;
      const uint32_t position = plan.first_token + plan.tokens - 1;
      lane.tail.push_back({.row = row, .sequence = plan.sequence, .position = position});
      for (const core::SequenceId child : sequence.children) {
        if (sequences_.Find(child) != nullptr) {
          lane.tail.push_back({.row = row, .sequence = child, .position = position});
        }
      }
    }
  }
}

StepWorker::Lane* StepWorker::NextReady() {
  Lane* next = nullptr;
  for (Lane& lane : lanes_) {
    if (lane.phase == Phase::kReady && (next == nullptr || lane.units < next->units)) {
      next = &lane;
    }
  }
  return next;
}

uint64_t StepWorker::UnitValue(const Lane& lane) const {
  return layout_.SignalValue(lane.plan.step, lane.slice);
}

absl::Status StepWorker::RunSlice(Lane& lane, std::string& blamed) {
  ++lane.units;
  Add(counters_.units, 1);
  if (lane.slice + 1 == executor_.slice_count()) {
    RunTail(lane);
    lane.phase = Phase::kIdle;
    return absl::OkStatus();
  }
  executor_.RunBeforeSend(lane.slice, Rows(lane), lane.buffers);
  LAMINA_RETURN_IF_ERROR(Send(lane, blamed));
  AttendChunks(lane);
  executor_.RunAfterSend(lane.slice, Rows(lane), lane.buffers);
  lane.phase = Phase::kAway;
  lane.away_since = RealClock().Now();
  return absl::OkStatus();
}

absl::Status StepWorker::Send(Lane& lane, std::string& blamed) {
  StageChunks(lane);
  for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
    if (lane.nodes[node].involved()) {
      const absl::Status sent = SendTo(lane, node);
      if (!sent.ok()) {
        blamed = options_.config.memory_nodes[node];
        return sent;
      }
      lane.nodes[node].pending = true;
    }
  }
  return absl::OkStatus();
}

// Gathers k and v of the chunks' rows into the staging, as they lie in query windows.
void StepWorker::StageChunks(Lane& lane) {
  if (lane.chunks.empty()) {
    return;
  }
  const AttentionDescriptor& shape = options_.config.layers[lane.slice];
  const size_t kv_width = 2 * size_t{shape.kv_width()};
  const auto qkv = executor_.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  for (const Chunk& chunk : lane.chunks) {
    for (uint32_t i = 0; i < chunk.plan.tokens; ++i) {
      std::memcpy(lane.kv_staging.data() + (chunk.first_kv_row + i) * kv_width,
                  qkv.row(chunk.first_row + i) + shape.q_width(), kv_width * sizeof(BFloat16));
    }
  }
}

absl::Status StepWorker::SendTo(Lane& lane, uint32_t node) {
  const AttentionDescriptor& shape = options_.config.layers[lane.slice];
  const NodePart& part = lane.nodes[node];
  const uint64_t value = UnitValue(lane);
  const size_t window = layout_.QueryWindow(options_.node, IndexOf(lane), value);
  const transport::SignalUpdate signal{.word = layout_.query_word(options_.node, IndexOf(lane)),
                                       .value = value};
  core::WindowHeader& header = lane.headers[node];
  header = {.lane = IndexOf(lane),
            .epoch = options_.config.epoch,
            .step = lane.plan.step,
            .layer = lane.slice,
            .rows = part.rows.count,
            .kv_rows = part.kv_rows.count,
            .sender = options_.node};
  LAMINA_RETURN_IF_ERROR(PutAll(node, window, AsBytes(&header, 1), nullptr));
  const auto qkv = executor_.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  const auto rows = AsBytes(qkv.row(part.rows.first), part.rows.count * qkv.cols);
  size_t offset = window + sizeof(header);
  LAMINA_RETURN_IF_ERROR(PutAll(node, offset, rows, part.kv_rows.count == 0 ? &signal : nullptr));
  size_t bytes = sizeof(header) + rows.size();
  if (part.kv_rows.count > 0) {
    offset += rows.size();
    const size_t kv_width = 2 * size_t{shape.kv_width()};
    const auto kv = AsBytes(lane.kv_staging.data() + part.kv_rows.first * kv_width,
                            part.kv_rows.count * kv_width);
    LAMINA_RETURN_IF_ERROR(PutAll(node, offset, kv, &signal));
    bytes += kv.size();
  }
  Add(counters_.bytes_sent, bytes);
  return absl::OkStatus();
}

// A Put, in pieces if the backend asks for them, retried while its queue is full.
absl::Status StepWorker::PutAll(uint32_t node, size_t offset, absl::Span<const std::byte> source,
                                const transport::SignalUpdate* signal) {
  const Nanos deadline = RealClock().Now() + options_.peer_deadline;
  const size_t piece_max = transport_.capabilities().put_bytes_max;
  do {
    const absl::Span<const std::byte> piece = source.first(std::min(source.size(), piece_max));
    const bool is_last = piece.size() == source.size();
    const absl::Status put =
        transport_.Put(*queries_[node], offset, piece, is_last ? signal : nullptr);
    if (absl::IsResourceExhausted(put)) {
      if (RealClock().Now() > deadline) {
        return absl::DeadlineExceededError("the transport took no query");
      }
      transport_.Progress();
      continue;
    }
    LAMINA_RETURN_IF_ERROR(put);
    offset += piece.size();
    source.remove_prefix(piece.size());
  } while (!source.empty());
  return absl::OkStatus();
}

// Prompt chunks attend here, over the scratch KV, while decode rows attend at the memory nodes.
void StepWorker::AttendChunks(Lane& lane) {
  if (lane.chunks.empty()) {
    return;
  }
  const uint32_t layer = lane.slice;
  const AttentionDescriptor& shape = options_.config.layers[layer];
  const auto qkv = executor_.QkvRows(layer, lane.positions.size(), lane.buffers);
  const auto out = executor_.AttentionRows(layer, lane.positions.size(), lane.buffers);
  items_.clear();
  for (const Chunk& chunk : lane.chunks) {
    const BFloat16* k = qkv.row(chunk.first_row) + shape.q_width();
    kernels::StoreKv(shape, k, k + shape.kv_width(), qkv.stride, {&chunk.scratch_new, 1},
                     scratch_.k(layer), scratch_.v(layer), scratch_.head_stride(layer));
    items_.push_back({.extents = {&chunk.scratch, 1},
                      .first_position = chunk.plan.first_token,
                      .query_tokens = chunk.plan.tokens,
                      .q = qkv.row(chunk.first_row),
                      .q_stride = qkv.stride,
                      .out = out.row(chunk.first_row),
                      .out_stride = out.stride});
  }
  options_.attention->Attend(shape, scratch_.View(layer), items_, *attention_scratch_, pool_);
}

// Takes every reply that has arrived; lanes with none pending become ready.
absl::Status StepWorker::TakeReplies(std::string& blamed) {
  for (Lane& lane : lanes_) {
    if (lane.phase != Phase::kAway) {
      continue;
    }
    bool pending = false;
    for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
      if (!lane.nodes[node].pending) {
        continue;
      }
      if (region_.LoadSignal(layout_.reply_word(node, IndexOf(lane))) < UnitValue(lane)) {
        pending = true;
        continue;
      }
      const absl::Status taken = TakeReply(lane, node);
      if (!taken.ok()) {
        blamed = options_.config.memory_nodes[node];
        return taken;
      }
      lane.nodes[node].pending = false;
    }
    if (!pending) {
      ++lane.slice;
      lane.phase = Phase::kReady;
    }
  }
  return absl::OkStatus();
}

absl::Status StepWorker::TakeReply(Lane& lane, uint32_t node) {
  const RowRange& rows = lane.nodes[node].rows;
  const std::byte* window =
      region_.bytes().data() + layout_.ReplyWindow(node, IndexOf(lane), UnitValue(lane));
  core::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  const absl::Status checked = core::CheckHeader(header, {.lane = IndexOf(lane),
                                                          .epoch = options_.config.epoch,
                                                          .step = lane.plan.step,
                                                          .layer = lane.slice,
                                                          .rows = rows.count,
                                                          .sender = node});
  if (!checked.ok()) {
    Add(counters_.refused_messages, 1);
    LogWarning("refused a reply window of ", options_.config.memory_nodes[node], " ",
               checked.message());
    return checked;
  }
  const auto out = executor_.AttentionRows(lane.slice, lane.positions.size(), lane.buffers);
  const size_t bytes = rows.count * out.cols * sizeof(BFloat16);
  std::memcpy(out.row(rows.first), window + sizeof(header), bytes);
  Add(counters_.bytes_received, sizeof(header) + bytes);
  return absl::OkStatus();
}

absl::Status StepWorker::WaitForReplies(std::string& blamed) {
  conditions_.clear();
  Nanos deadline = INT64_MAX;
  bool any_idle = false;
  for (Lane& lane : lanes_) {
    any_idle = any_idle || lane.phase == Phase::kIdle;
    if (lane.phase != Phase::kAway) {
      continue;
    }
    deadline = std::min(deadline, lane.away_since + options_.peer_deadline);
    for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
      if (lane.nodes[node].pending) {
        conditions_.push_back(
            {.word = layout_.reply_word(node, IndexOf(lane)), .at_least = UnitValue(lane)});
        blamed = options_.config.memory_nodes[node];
      }
    }
  }
  const Nanos poll = any_idle ? RealClock().Now() + kPlanPoll : INT64_MAX;
  const absl::StatusOr<size_t> ready = transport_.Wait(
      region_, conditions_, {.deadline = std::min(deadline, poll), .abort = &abort_});
  if (absl::IsDeadlineExceeded(ready.status()) && RealClock().Now() < deadline) {
    return absl::OkStatus();
  }
  if (absl::IsDeadlineExceeded(ready.status())) {
    return absl::DeadlineExceededError(absl::StrCat("no attention from ", blamed, " for ",
                                                    ToSeconds(options_.peer_deadline), " s"));
  }
  if (ready.ok()) {
    blamed.clear();
  }
  return ready.status();
}

// Runs the last slice in blocks of rows, samples and scores, and reports the step.
void StepWorker::RunTail(Lane& lane) {
  core::StepResult result{.epoch = lane.plan.epoch, .lane = lane.plan.lane, .step = lane.plan.step};
  std::vector<uint32_t> chosen;
  for (size_t first = 0; first < lane.tail.size(); first += SliceExecutor::kTailRows) {
    const size_t count = std::min(SliceExecutor::kTailRows, lane.tail.size() - first);
    chosen.clear();
    for (size_t i = 0; i < count; ++i) {
      chosen.push_back(lane.tail[first + i].row);
    }
    const auto logits = executor_.RunTail(Rows(lane), lane.buffers, chosen, tail_buffers_);
    std::vector<core::SampledToken> sampled(count);
    std::vector<float> scored(count);
    pool_.Run(count, [&](size_t i, size_t worker) {
      const TailRow& row = lane.tail[first + i];
      Sequence& sequence = *sequences_.Find(row.sequence);
      const absl::Span<const float> values(logits.row(i), logits.cols);
      if (row.score) {
        scored[i] = kernels::LogProbability(values, sequence.tokens[row.position + 1]);
      } else {
        sampled[i] = SampleNext(values, sequence, sample_scratch_[worker]);
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
    }
  }
  reporter_.ReportResult(std::move(result));
}

}  // namespace lamina::compute_node
