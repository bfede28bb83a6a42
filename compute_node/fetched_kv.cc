// SPDX-License-Identifier: Apache-2.0
#include "compute_node/fetched_kv.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "compute_node/weight_source.h"
#include "plan/activation_part.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {
namespace {

// Whether some of runs [first, end) have tokens whose K and V are made of activations here.
bool AnyRemade(absl::Span<const plan::FetchRun> runs, size_t first, size_t end) {
  return first < end && std::any_of(runs.begin() + first, runs.begin() + end,
                                    [](const plan::FetchRun& run) { return run.remade > 0; });
}

}  // namespace

FetchedKv::FetchedKv(const WorkerContext& context, plan::AttentionPath kind,
                     const kernels::AttentionKernel& kernel, const ResidentActivations& resident,
                     const TokenRows* tokens)
    : context_(context),
      activation_width_(plan::ActivationWidthOf(context.config, kind)),
      kernel_(kernel),
      resident_(resident),
      tokens_(tokens),
      recompute_(context.config, context.executor),
      splits_(MakeFetchSplits(context.config, kind, context.sequences)),
      windows_(context),
      lanes_(context.config.lanes) {
  const plan::EpochConfig& config = context.config;
  // Scratch of the layer with most to a row serves all.
  const auto widest =
      std::max_element(config.layers.begin(), config.layers.end(),
                       [](const auto& a, const auto& b) { return a.q_width() < b.q_width(); });
  if (config.int8_tails > 0) {
    int8_ = std::make_unique<Int8Window>(*widest, config.sequence_tokens_max, kernel, context.pool);
  } else {
    scratch_ = kernel.MakeScratch(*widest, config.rows_max, config.sequence_tokens_max,
                                  context.pool.threads());
  }
  for (uint32_t node = 0; node < config.memory_nodes.size(); ++node) {
    widths_.push_back(plan::ActivationPartOf(config, node).count);
  }
  planes_.reserve(config.memory_nodes.size());
  runs_.reserve(config.rows_max);
  items_.reserve(config.rows_max);
  for (LaneState& lane : lanes_) {
    lane.streams.resize(config.memory_nodes.size());
  }
}

absl::Status FetchedKv::Prepare() {
  if (activation_width_ == 0) {
    return absl::OkStatus();
  }
  LAMINA_RETURN_IF_ERROR(recompute_.Prepare());
  LAMINA_RETURN_IF_ERROR(recompute_.Try(KvRecompute::kRows));  // Weights and caches are warm then.
  // Weights that come for others stay meanwhile: what is timed is no way of theirs.
  WeightSource& weights = context_.executor.weight_source();
  LAMINA_RETURN_IF_ERROR(AskAndWait(weights, 0));
  const absl::Status timed = TimeRecomputation();
  weights.Release(0);
  return timed;
}

// The profile that the coordinator splits by until recomputations tell more.
absl::Status FetchedKv::TimeRecomputation() {
  for (const size_t rows : {KvRecompute::kRows / 4, KvRecompute::kRows / 2, KvRecompute::kRows}) {
    const Nanos start = RealClock().Now();
    LAMINA_RETURN_IF_ERROR(recompute_.Try(rows));
    const Nanos end = RealClock().Now();
    context_.counters.meter.EndInterval({.start = start, .part = telemetry::WorkKind::kRecompute});
    telemetry::AddTo(context_.counters.recomputed_tokens, rows);
    NoteMade(static_cast<uint32_t>(rows), end - start);
  }
  return absl::OkStatus();
}

void FetchedKv::NoteMade(uint32_t tokens, Nanos spent) {
  making_.Add(tokens, ToSeconds(spent));
  if (const auto fitted = making_.Fit(); fitted.has_value()) {
    context_.counters.making.Set(
        {.fixed = fitted->line.fixed, .slope = fitted->line.slope, .r_squared = fitted->r_squared});
  }
}

absl::Status FetchedKv::BeginStep(const Lane& lane, absl::Span<const RowRun> runs) {
  LaneState& state = lanes_[lane.index];
  state.begun_ahead = false;
  windows_.BeginStep(lane);
  size_t extents = 0;
  size_t made_most = 0;  // Tokens of one memory node.
  for (uint32_t node = 0; node < state.streams.size(); ++node) {
    Stream& stream = state.streams[node];
    stream.rows.clear();
    stream.runs.clear();
    stream.stretches.clear();
    stream.resident.clear();
    size_t made = 0;
    for (const RowRun& run : runs) {
      if (plan::Holds(context_.config, node, run.memory_node)) {
        LAMINA_ASSIGN_OR_RETURN(plan::FetchSplit split, splits_->Of(run, lane.plan));
        stream.rows.push_back(run);
        stream.runs.push_back(split.run);
        extents += split.stretches.size() + 1;
        stream.stretches.push_back(std::move(split.stretches));
        stream.resident.push_back(split.run.remade > 0
                                      ? context_.sequences.Find(run.sequence)->join.resident
                                      : plan::ResidentTokens());
        made += split.run.made();
      }
    }
    made_most = std::max(made_most, made);
  }
  state.together = ByHead(context_.config) && made_most > 0;
  extents_.reserve(extents);
  recomputed_.reserve(extents);
  positions_.reserve(made_most);
  from_.reserve(made_most * (state.together ? state.streams.size() : 1));
  return absl::OkStatus();
}

FetchedKv::~FetchedKv() {
  for (LaneState& lane : lanes_) {
    ReleaseWeights(lane);
  }
}

void FetchedKv::ReleaseWeights(LaneState& state) {
  if (std::exchange(state.holds_weights, false)) {
    context_.executor.weight_source().Release(state.layer);
  }
}

void FetchedKv::BeginPieces(const Lane& lane) {
  LaneState& state = lanes_[lane.index];
  state.layer = lane.slice;
  state.made_tokens = 0;
  state.made_nanos = 0;
  for (uint32_t node = 0; node < state.streams.size(); ++node) {
    state.streams[node].remade_runs = 0;
    windows_.BeginLayer(lane, node, state.layer, state.streams[node].runs);
  }
}

// All pieces of the layer before have been given back, so that the piece behind the activations is
// this side's to write, as it is behind the slice. Tokens before a run are of steps before this
// one: activations of these that stay have been stored.
absl::Status FetchedKv::MakeAhead(Lane& lane) {
  if (activation_width_ == 0 || lane.slice == context_.config.layers.size()) {
    return absl::OkStatus();
  }
  LaneState& state = lanes_[lane.index];
  if (!std::exchange(state.begun_ahead, true)) {
    BeginPieces(lane);
  }
  for (uint32_t node = 0; node < state.streams.size(); ++node) {
    const bool come = MayTake(lane, node) && windows_.piece(lane, node).activations();
    if (!come && !RemakesNext(lane, node)) {
      continue;
    }
    if (!context_.executor.weight_source().KvHere(state.layer,
                                                  recompute_.first_column(state.layer))) {
      return absl::OkStatus();
    }
    context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kWaitWeights, state.layer);
    // One piece's, since weights may have come when it has been made.
    return come ? TakePiece(lane, node) : Remake(lane, node);
  }
  return absl::OkStatus();
}

absl::Status FetchedKv::BeginLayer(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  if (!std::exchange(state.begun_ahead, false)) {
    BeginPieces(lane);
  }
  if (IsToMake(lane)) {
    // They are here: the slice has just run with them.
    LAMINA_ASSIGN_OR_RETURN(const WeightWait weights,
                            context_.executor.weight_source().Ask(state.layer));
    LAMINA_CHECK(weights.here);
    state.holds_weights = true;
  }
  const Nanos made_before = state.made_nanos;
  for (uint32_t node = 0; node < state.streams.size(); ++node) {
    LAMINA_RETURN_IF_ERROR(Remake(lane, node));
  }
  // It is no part of what a slice takes: the coordinator knows of it by itself.
  lane.slices_nanos -= state.made_nanos - made_before;
  if (state.holds_weights && !IsToMake(lane)) {
    ReleaseWeights(state);  // Others may come in their place while K and V do.
  }
  return absl::OkStatus();
}

bool FetchedKv::IsToMake(const Lane& lane) const {
  const std::vector<Stream>& streams = lanes_[lane.index].streams;
  for (uint32_t node = 0; node < streams.size(); ++node) {
    const Stream& stream = streams[GroupOf(lane, node).first];  // Which counts for all of them.
    if (windows_.AwaitsActivations(lane, node) ||
        AnyRemade(stream.runs, stream.remade_runs, stream.runs.size())) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<bool> FetchedKv::Poll(Lane& lane) {
  for (uint32_t node = 0; node < context_.config.memory_nodes.size(); ++node) {
    if (MayTake(lane, node)) {
      LAMINA_RETURN_IF_ERROR(TakePiece(lane, node));
      LAMINA_RETURN_IF_ERROR(Remake(lane, node));
    }
  }
  LaneState& state = lanes_[lane.index];
  if (state.holds_weights && !IsToMake(lane)) {
    ReleaseWeights(state);
  }
  if (!windows_.Ended(lane)) {
    return false;
  }
  if (state.made_tokens > 0) {
    NoteMade(std::exchange(state.made_tokens, 0), state.made_nanos);
  }
  return true;
}

FetchedKv::Nodes FetchedKv::GroupOf(const Lane& lane, uint32_t node) const {
  const LaneState& state = lanes_[lane.index];
  return state.together ? Nodes{.first = 0, .end = static_cast<uint32_t>(state.streams.size())}
                        : Nodes{.first = node, .end = node + 1};
}

size_t FetchedKv::GivenBackByAll(const Lane& lane, Nodes nodes) const {
  size_t least = windows_.GivenBack(lane, nodes.first);
  for (uint32_t node = nodes.first; node < nodes.end; ++node) {
    least = std::min(least, windows_.GivenBack(lane, node));
  }
  return least;
}

// Nodes that go together have as many pieces, each of the same kind as the others' one.
bool FetchedKv::MayTake(const Lane& lane, uint32_t node) const {
  if (windows_.Ended(lane, node) || !windows_.HasCome(lane, node)) {
    return false;
  }
  const Nodes nodes = GroupOf(lane, node);
  if (windows_.GivenBack(lane, node) > GivenBackByAll(lane, nodes)) {
    return false;
  }
  bool all = true;  // None of them is further: activations are given back together.
  for (uint32_t i = nodes.first; i < nodes.end && windows_.piece(lane, node).activations(); ++i) {
    all = all && windows_.HasCome(lane, i);
  }
  return all;
}

// Who is ahead of others waits for these, and not for its next piece, which may be here. What may
// be taken by now is no more waited for.
void FetchedKv::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  if (!lanes_[lane.index].together) {
    windows_.AppendAwaited(lane, awaited);
    return;
  }
  const Nodes nodes = GroupOf(lane, 0);
  const size_t turn = GivenBackByAll(lane, nodes);
  for (uint32_t node = nodes.first; node < nodes.end; ++node) {
    if (!windows_.Ended(lane, node) && windows_.GivenBack(lane, node) == turn &&
        (!windows_.HasCome(lane, node) || MayTake(lane, node))) {
      windows_.AppendAwaited(lane, node, awaited);
    }
  }
}

absl::Status FetchedKv::TakePiece(Lane& lane, uint32_t node) {
  if (windows_.piece(lane, node).activations()) {
    return TakeActivations(lane, GroupOf(lane, node));
  }
  LAMINA_ASSIGN_OR_RETURN(const size_t bytes, windows_.Take(lane, node));
  if (int8_ != nullptr) {
    LAMINA_RETURN_IF_ERROR(AttendInt8(lane, node));
  } else {
    Attend(lane, node);
  }
  telemetry::AddTo(context_.counters.kv_bytes_read, bytes);
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kAttend, lanes_[lane.index].layer,
                                   MemoryPeer(node), bytes);
  return windows_.GiveBack(lane, node);
}

absl::Status FetchedKv::TakeActivations(Lane& lane, Nodes nodes) {
  LaneState& state = lanes_[lane.index];
  const uint32_t tokens = windows_.piece(lane, nodes.first).recomputed;
  size_t bytes = 0;
  for (uint32_t node = nodes.first; node < nodes.end; ++node) {
    LAMINA_ASSIGN_OR_RETURN(const size_t part, windows_.Take(lane, node));
    bytes += part;
  }
  LAMINA_RETURN_IF_ERROR(Recompute(lane, nodes));
  telemetry::AddTo(context_.counters.recomputed_tokens, tokens);
  state.made_tokens += tokens;
  state.made_nanos += context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kRecompute,
                                                       state.layer, MemoryPeer(nodes.first), bytes);
  for (uint32_t node = nodes.first; node < nodes.end; ++node) {
    LAMINA_RETURN_IF_ERROR(windows_.GiveBack(lane, node));
  }
  return absl::OkStatus();
}

void FetchedKv::CollectMade(const Stream& stream, const plan::FetchPiece& piece, bool here) {
  positions_.clear();
  recomputed_.clear();
  uint32_t first_slot = 0;
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    uint32_t position = 0;
    uint32_t slot = first_slot;
    for (const plan::FetchStretch& stretch : stream.stretches[i]) {
      if (stretch.activations && stretch.here == here) {
        recomputed_.push_back({.first_slot = slot, .tokens = stretch.tokens});
        for (uint32_t token = 0; token < stretch.tokens; ++token) {
          positions_.push_back(position + token);
        }
      }
      slot += stretch.activations ? stretch.tokens : 0;
      position += stretch.tokens;
    }
    first_slot += stream.runs[i].filled_slots();
  }
}

absl::Status FetchedKv::Make(const Lane& lane, Nodes nodes, size_t behind,
                             absl::Span<const uint32_t> widths) {
  const uint32_t layer = lanes_[lane.index].layer;
  const uint32_t head_dim = context_.config.layers[layer].head_dim;
  planes_.clear();
  for (uint32_t node = nodes.first; node < nodes.end; ++node) {
    const plan::FetchPiece& piece = windows_.piece(lane, node, behind);
    BFloat16* const k = windows_.elements(lane, node, behind);
    planes_.push_back({.heads = context_.HeadsOf(layer, node),
                       .k = k,
                       .v = k + piece.elements(head_dim),
                       .head_stride = size_t{piece.slots} * head_dim});
  }
  return recompute_.Run(
      layer,
      {.widths = widths, .activations = from_, .positions = positions_, .slots = recomputed_},
      planes_);
}

// Into the first slots of the pieces behind, which are this side's to write: what lay there has
// been used up, and memory nodes write none of these slots.
absl::Status FetchedKv::Recompute(const Lane& lane, Nodes nodes) {
  CollectMade(lanes_[lane.index].streams[nodes.first], windows_.piece(lane, nodes.first),
              /*here=*/false);
  const size_t parts = nodes.end - nodes.first;
  from_.resize(positions_.size() * parts);
  for (size_t part = 0; part < parts; ++part) {
    const auto node = static_cast<uint32_t>(nodes.first + part);
    const BFloat16* come = windows_.elements(lane, node);
    for (size_t i = part; i < from_.size(); i += parts) {
      from_[i] = come;
      come += widths_[node];
    }
  }
  return Make(lane, nodes, /*behind=*/1, absl::MakeConstSpan(widths_).subspan(nodes.first, parts));
}

// Where nodes go together, once it is the turn of all of them, before any takes it.
bool FetchedKv::RemakesNext(const Lane& lane, uint32_t node) const {
  const Nodes nodes = GroupOf(lane, node);
  const size_t turn = windows_.GivenBack(lane, nodes.first);
  for (uint32_t i = nodes.first; i < nodes.end; ++i) {
    if (windows_.GivenBack(lane, i) != turn) {
      return false;
    }
  }
  if (!resident_.any() || windows_.Ended(lane, nodes.first)) {
    return false;
  }
  const Stream& stream = lanes_[lane.index].streams[nodes.first];
  const plan::FetchPiece& piece =
      windows_.piece(lane, nodes.first, BehindActivations(lane, nodes.first));
  return AnyRemade(stream.runs, stream.remade_runs, piece.runs_end);
}

absl::Status FetchedKv::Remake(const Lane& lane, uint32_t node) {
  if (!RemakesNext(lane, node)) {
    return absl::OkStatus();
  }
  const Nodes nodes = GroupOf(lane, node);
  LaneState& state = lanes_[lane.index];
  Stream& stream = state.streams[nodes.first];
  const size_t behind = BehindActivations(lane, nodes.first);
  const plan::FetchPiece& piece = windows_.piece(lane, nodes.first, behind);
  stream.remade_runs = piece.runs_end;
  CollectMade(stream, piece, /*here=*/true);
  from_.clear();
  size_t next = 0;
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    const plan::ResidentTokens& resident = stream.resident[i];
    for (const size_t end = next + stream.runs[i].remade; next < end; ++next) {
      from_.push_back(
          resident_.Row(state.layer, resident.place + positions_[next] - resident.first));
    }
  }
  LAMINA_RETURN_IF_ERROR(Make(lane, nodes, behind, {&activation_width_, 1}));
  telemetry::AddTo(context_.counters.recomputed_tokens, positions_.size());
  state.made_tokens += static_cast<uint32_t>(positions_.size());
  state.made_nanos +=
      context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kRecompute, state.layer);
  return absl::OkStatus();
}

// Extents that touch are one: tiles are read whole.
void FetchedKv::AppendExtents(const Stream& stream, uint32_t run, uint32_t recomputed_slot,
                              uint32_t slot) {
  const size_t first = extents_.size();
  const auto append = [&](uint32_t from, uint32_t tokens) {
    if (extents_.size() > first && extents_.back().first_slot + extents_.back().tokens == from) {
      extents_.back().tokens += tokens;
    } else if (tokens > 0) {
      extents_.push_back({.first_slot = from, .tokens = tokens});
    }
  };
  for (const plan::FetchStretch& stretch : stream.stretches[run]) {
    if (stretch.hidden) {  // Slots that are not looked at: tokens keep their numbers.
      append(0, stretch.tokens);
      continue;
    }
    uint32_t& from = stretch.activations || stretch.here ? recomputed_slot : slot;
    append(from, stretch.tokens);
    from += stretch.tokens;
  }
  append(stream.runs[run].all_recomputed() ? recomputed_slot : slot, stream.runs[run].tokens);
}

void FetchedKv::Attend(Lane& lane, uint32_t node) {
  const Stream& stream = lanes_[lane.index].streams[node];
  const plan::FetchPiece& piece = windows_.piece(lane, node);
  const PieceRows rows = windows_.RowsOf(lane, node);
  auto* const data = reinterpret_cast<std::byte*>(windows_.elements(lane, node));
  extents_.clear();
  items_.clear();
  uint32_t recomputed = 0;
  uint32_t slot = piece.filled;
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    const plan::FetchRun& run = stream.runs[i];
    const uint32_t row = stream.rows[i].first_row;
    const uint32_t own = run.all_recomputed() ? recomputed + run.made() : slot + run.fetched();
    rows.Store(row, {.first_slot = own, .tokens = run.tokens});
    if (run.kept > 0) {
      tokens_->Fill(lane, stream.rows[i],
                    {.rows = rows, .piece = piece, .data = data, .slot = recomputed});
    }
    const auto first_extent = extents_.size();
    AppendExtents(stream, i, recomputed, slot);
    recomputed += run.filled_slots();
    items_.push_back({.extents = absl::MakeConstSpan(extents_).subspan(first_extent),
                      .first_position = run.before,
                      .query_tokens = run.tokens,
                      .q = rows.q(row),
                      .q_stride = rows.qkv_stride(),
                      .out = rows.out(row),
                      .out_stride = rows.out_stride()});
    slot += run.slots();
  }
  kernel_.Attend(rows.part(), rows.View(), items_, *scratch_, context_.pool);
}

// Block by block, as the memory node does with its own rows: one that the run's rows fill becomes
// INT8 here for those behind it. Blocks that were made from token numbers have the piece's first
// slots.
absl::Status FetchedKv::AttendInt8(Lane& lane, uint32_t node) {
  const Stream& stream = lanes_[lane.index].streams[node];
  const plan::FetchPiece& piece = windows_.piece(lane, node);
  const PieceRows rows = windows_.RowsOf(lane, node);
  auto* const data = reinterpret_cast<std::byte*>(windows_.elements(lane, node));
  extents_.clear();
  extents_.reserve(2 * (piece.runs_end - piece.first_run));  // Runs point into it.
  runs_.clear();
  uint32_t made_slot = 0;
  uint32_t int8_slot = piece.filled;
  uint32_t slot = 0;
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    const plan::FetchRun& run = stream.runs[i];
    const uint32_t row = stream.rows[i].first_row;
    const uint32_t others = run.int8_slots() - run.kept;
    const size_t first_extent = extents_.size();
    if (run.kept > 0) {
      tokens_->Fill(lane, stream.rows[i],
                    {.rows = rows, .piece = piece, .data = data, .slot = made_slot});
      extents_.push_back({.first_slot = made_slot, .tokens = run.kept});
    }
    if (others > 0) {
      extents_.push_back({.first_slot = int8_slot, .tokens = others});
    }
    runs_.push_back({.slots = absl::MakeConstSpan(extents_).subspan(first_extent),
                     .tail_slot = slot,
                     .first_token = run.before,
                     .tokens = run.tokens,
                     .k = rows.k(row),
                     .v = rows.v(row),
                     .kv_stride = rows.qkv_stride(),
                     .q = rows.q(row),
                     .q_stride = rows.qkv_stride(),
                     .out = rows.out(row),
                     .out_stride = rows.out_stride()});
    made_slot += run.kept;
    int8_slot += others;
    slot += run.tail_slots();
  }
  int8_->SetPiece(rows.part(), piece, data);
  return int8_runs_.Run(*int8_, 0, AllHeads(rows.part()), runs_);
}

}  // namespace lamina::compute_node
