// SPDX-License-Identifier: Apache-2.0
#include "compute_node/fetched_kv.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "compute_node/spanned_kv.h"
#include "compute_node/weight_source.h"
#include "compute_node/whole_kv.h"
#include "plan/activation_part.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {
namespace {

// Whether some of runs [first, end) have tokens whose K and V are made of activations here.
bool AnyRemade(absl::Span<const plan::FetchRun> runs, size_t first, size_t end) {
  return first < end && std::any_of(runs.begin() + first, runs.begin() + end,
                                    [](const plan::FetchRun& run) { return run.remade > 0; });
}

void NoteMade(uint32_t tokens, Nanos spent, MakingLine& making, StepCounters& counters) {
  making.Add(tokens, ToSeconds(spent));
  if (const auto fitted = making.Fit(); fitted.has_value()) {
    counters.making.Set(
        {.fixed = fitted->line.fixed, .slope = fitted->line.slope, .r_squared = fitted->r_squared});
  }
}

// The profile that the coordinator splits by until recomputations tell more.
absl::Status TimeRecomputation(KvRecompute& recompute, MakingLine& making, StepCounters& counters) {
  for (const size_t rows : {KvRecompute::kRows / 4, KvRecompute::kRows / 2, KvRecompute::kRows}) {
    const Nanos start = RealClock().Now();
    LAMINA_RETURN_IF_ERROR(recompute.Try(rows));
    const Nanos end = RealClock().Now();
    counters.meter.EndInterval({.start = start, .part = telemetry::WorkKind::kRecompute});
    telemetry::AddTo(counters.recomputed_tokens, rows);
    NoteMade(static_cast<uint32_t>(rows), end - start, making, counters);
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<kernels::AttentionScratch> MakePieceScratch(const WorkerContext& context,
                                                            const kernels::AttentionKernel& kernel,
                                                            uint32_t query_tokens,
                                                            uint32_t tokens) {
  const std::vector<AttentionDescriptor>& layers = context.config.layers;
  const auto widest =
      std::max_element(layers.begin(), layers.end(),
                       [](const auto& a, const auto& b) { return a.q_width() < b.q_width(); });
  return kernel.MakeScratch(*widest, query_tokens, tokens, context.pool.threads());
}

FetchedKv::FetchedKv(const WorkerContext& context, plan::AttentionPath kind,
                     std::unique_ptr<FetchSplits> splits, const kernels::AttentionKernel& kernel,
                     const ResidentActivations& resident, const KeptKv* kept,
                     std::unique_ptr<kernels::AttentionScratch> scratch)
    : context_(context),
      activation_width_(plan::ActivationWidthOf(context.config, kind)),
      kernel_(kernel),
      scratch_(std::move(scratch)),
      resident_(resident),
      kept_(kept),
      recompute_(context.config, context.executor),
      splits_(std::move(splits)),
      windows_(context),
      lanes_(context.config.lanes) {
  const plan::EpochConfig& config = context.config;
  for (uint32_t node = 0; node < config.memory_nodes.size(); ++node) {
    widths_.push_back(plan::ActivationPartOf(config, node).count);
  }
  planes_.reserve(config.memory_nodes.size());
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
  const absl::Status timed = TimeRecomputation(recompute_, making_, context_.counters);
  weights.Release(0);
  return timed;
}

absl::Status FetchedKv::BeginStep(const Lane& lane, absl::Span<const RowRun> runs) {
  LaneState& state = lanes_[lane.index];
  state.begun_ahead = false;
  windows_.BeginStep(lane);
  for (FetchedRuns& stream : state.streams) {
    stream.Clear();
  }
  for (const RowRun& run : runs) {
    LAMINA_RETURN_IF_ERROR(AddRun(lane, run, *splits_));
  }
  size_t extents = 0;
  size_t made_most = 0;  // Tokens of one memory node.
  for (const FetchedRuns& stream : state.streams) {
    size_t made = 0;
    for (size_t run = 0; run < stream.runs.size(); ++run) {
      extents += stream.stretches[run].size() + 1;
      made += stream.runs[run].made();
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

void FetchedKv::Add(const Lane& lane, uint32_t node, const RowRun& run, plan::FetchSplit split,
                    uint32_t start) {
  const plan::ResidentTokens kept = split.run.remade > 0
                                        ? context_.sequences.Find(run.sequence)->join.resident
                                        : plan::ResidentTokens();
  lanes_[lane.index].streams[node].Add(run, std::move(split), start, kept);
}

std::vector<uint32_t> FetchedKv::Senders(const Lane& lane) const {
  const std::vector<FetchedRuns>& streams = lanes_[lane.index].streams;
  std::vector<uint32_t> senders;
  for (uint32_t node = 0; node < streams.size(); ++node) {
    if (!streams[node].runs.empty()) {
      senders.push_back(node);
    }
  }
  return senders;
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
  state.ended = false;
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
  const std::vector<FetchedRuns>& streams = lanes_[lane.index].streams;
  for (uint32_t node = 0; node < streams.size(); ++node) {
    const FetchedRuns& stream =
        streams[GroupOf(lane, node).first];  // Which counts for all of them.
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
    NoteMade(std::exchange(state.made_tokens, 0), state.made_nanos, making_, context_.counters);
  }
  if (!std::exchange(state.ended, true)) {
    EndLayer(lane);
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
  LAMINA_RETURN_IF_ERROR(Attend(lane, node));
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
  StreamOf(lane, nodes.first)
      .CollectMade(windows_.piece(lane, nodes.first), /*here=*/false, positions_, recomputed_);
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
  const FetchedRuns& stream = lanes_[lane.index].streams[nodes.first];
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
  FetchedRuns& stream = state.streams[nodes.first];
  const size_t behind = BehindActivations(lane, nodes.first);
  const plan::FetchPiece& piece = windows_.piece(lane, nodes.first, behind);
  stream.remade_runs = piece.runs_end;
  stream.CollectMade(piece, /*here=*/true, positions_, recomputed_);
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

void FetchedKv::FillKept(const Lane& lane, const RunOfNode& which, const PieceRows& rows,
                         uint32_t slot) const {
  const FetchedRuns& stream = StreamOf(lane, which.node);
  uint32_t first = stream.starts[which.run];
  for (const plan::FetchStretch& stretch : stream.stretches[which.run]) {
    if (stretch.here && !stretch.activations) {
      break;
    }
    first += stretch.tokens;
  }
  kept_->Fill(lane, LayerOf(lane), stream.rows[which.run],
              {.first = first, .tokens = stream.runs[which.run].kept},
              {.rows = rows,
               .piece = windows_.piece(lane, which.node),
               .data = reinterpret_cast<std::byte*>(windows_.elements(lane, which.node)),
               .slot = slot});
}

absl::Status FetchedKv::Attend(Lane& lane, uint32_t node) {
  const FetchedRuns& stream = StreamOf(lane, node);
  const plan::FetchPiece& piece = windows_.piece(lane, node);
  const PieceRows rows = windows_.RowsOf(lane, node);
  extents_.clear();
  items_.clear();
  uint32_t recomputed = 0;
  uint32_t slot = piece.filled;
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    const plan::FetchRun& run = stream.runs[i];
    const uint32_t own = run.all_recomputed() ? recomputed + run.made() : slot + run.fetched();
    if (run.tokens > 0) {
      const uint32_t before_own = stream.starts[i] + run.before - stream.rows[i].first_token;
      rows.Store(stream.rows[i].first_row + before_own, {.first_slot = own, .tokens = run.tokens});
    }
    if (run.kept > 0) {
      FillKept(lane, {.node = node, .run = i}, rows, recomputed);
    }
    const size_t first_extent = extents_.size();
    stream.AppendExtents(i, recomputed, slot, extents_);
    AddItems(lane, {.node = node, .run = i}, rows,
             absl::MakeConstSpan(extents_).subspan(first_extent), items_);
    recomputed += run.filled_slots();
    slot += run.slots();
  }
  if (!items_.empty()) {
    kernel_.Attend(rows.part(), rows.View(), items_, *scratch_, context_.pool);
  }
  return absl::OkStatus();
}

std::unique_ptr<FetchedKv> MakeFetchedKv(const WorkerContext& context, plan::AttentionPath kind,
                                         const kernels::AttentionKernel& kernel,
                                         const ResidentActivations& resident, const KeptKv* kept) {
  auto splits = MakeFetchSplits(context.config, kind, context.sequences);
  if (BySpan(context.config)) {
    return std::make_unique<SpannedKv>(context, kind, std::move(splits), kernel, resident, kept);
  }
  return std::make_unique<WholeKv>(context, kind, std::move(splits), kernel, resident, kept);
}

}  // namespace lamina::compute_node
