// SPDX-License-Identifier: Apache-2.0
#include "compute_node/token_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "compute_node/weight_source.h"
#include "plan/fetch_split.h"

namespace lamina::compute_node {

TokenRows::TokenRows(const WorkerContext& context, const kernels::AttentionKernel& kernel)
    : context_(context),
      slots_(context.config.made_tokens_max),
      form_(context.config.KvFormOf(plan::AttentionPath::kRecompute)),
      kv_(MakeMadeKv(context, form_, kernel, kRows)),
      lanes_(context.config.lanes) {}

absl::Status TokenRows::Prepare() {
  const plan::EpochConfig& config = context_.config;
  const SliceExecutor& executor = context_.executor;
  LAMINA_ASSIGN_OR_RETURN(buffers_, executor.MakeBuffers(kRows));
  kv_bytes_ = kv_->bytes();
  uint32_t output_width = 0;
  for (const AttentionDescriptor& layer : config.layers) {
    output_width = std::max(output_width, layer.q_width());
  }
  carried_bytes_ = executor.program().ContextRowBytesMax() + output_width * sizeof(BFloat16);
  for (LaneState& lane : lanes_) {
    auto memory = kernels::ArenaMemory::Create(kv_bytes_ + slots_ * carried_bytes_);
    if (!memory.ok()) {
      return {memory.status().code(),
              absl::StrCat("fetch.recompute_tokens_max: ", memory.status().message())};
    }
    lane.memory = *std::move(memory);
  }
  // Positions behind the longest sequence's have no places in tables, nor in scratch.
  const uint32_t most = std::min({kRows, slots_, config.sequence_tokens_max});
  LAMINA_RETURN_IF_ERROR(Try(most));  // Weights and caches are warm then.
  making_ = {};
  for (const uint32_t rows : {kRows / 4, kRows / 2, kRows}) {
    LAMINA_RETURN_IF_ERROR(Try(std::min(rows, most)));
  }
  return absl::OkStatus();
}

uint64_t TokenRows::bytes() const {
  uint64_t bytes = buffers_.bytes();
  for (const LaneState& lane : lanes_) {
    bytes += lane.memory.bytes();
  }
  return bytes;
}

// Times tokens of a sequence of their own through the second layer's slice, which has the first
// one's MLP: the profile that the coordinator plans by until steps tell more.
absl::Status TokenRows::Try(uint32_t rows) {
  LaneState& state = lanes_.front();
  state.parts.assign(1, Part{.tokens = rows});
  state.ids.assign(rows, 0);
  state.positions.resize(rows);
  std::iota(state.positions.begin(), state.positions.end(), 0);
  const auto layers = static_cast<uint32_t>(std::min<size_t>(2, context_.config.layers.size()));
  Nanos dense = 0;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    LAMINA_RETURN_IF_ERROR(AskAndWait(context_.executor.weight_source(), layer));
    dense = 0;
    Nanos end = RealClock().Now();
    const absl::Status run = RunLayer(state, layer, [&](telemetry::WorkKind part) {
      const Nanos start = std::exchange(end, RealClock().Now());
      dense += part == telemetry::WorkKind::kRecompute ? end - start : 0;
    });
    context_.executor.weight_source().Release(layer);
    LAMINA_RETURN_IF_ERROR(run);
  }
  state.parts.clear();
  const Nanos now = RealClock().Now();
  context_.counters.meter.EndIntervalAt(
      {.start = now - dense, .end = now, .part = telemetry::WorkKind::kRecompute});
  telemetry::AddTo(context_.counters.recomputed_tokens, rows);
  NoteMade(rows, dense);
  return absl::OkStatus();
}

void TokenRows::NoteMade(uint32_t tokens, Nanos spent) {
  making_.Add(tokens, ToSeconds(spent));
  if (const auto fitted = making_.Fit(); fitted.has_value()) {
    context_.counters.making.Set(
        {.fixed = fitted->line.fixed, .slope = fitted->line.slope, .r_squared = fitted->r_squared});
  }
}

absl::Status TokenRows::BeginStep(Lane& lane, absl::Span<const RowRun> runs) {
  LaneState& state = lanes_[lane.index];
  state.parts.clear();
  state.ids.clear();
  state.positions.clear();
  for (const RowRun& run : runs) {
    const Sequence* const sequence = context_.sequences.Find(run.sequence);
    if (sequence == nullptr) {
      return absl::InternalError(absl::StrCat("plan of lane ", lane.plan.lane, " step ",
                                              lane.plan.step, " has rows of sequence ",
                                              run.sequence, ", which is not in the tables"));
    }
    const uint32_t made =
        plan::MadeFromTokens(run.first_token, lane.plan.recomputed, sequence->released, form_);
    if (made == 0) {
      continue;
    }
    if (state.ids.size() + made > slots_) {
      return absl::InternalError(
          absl::StrCat("plan of lane ", lane.plan.lane, " step ", lane.plan.step,
                       " makes K and V of ", state.ids.size() + made,
                       " tokens or more from their numbers, and there is room for ", slots_));
    }
    state.parts.push_back({.sequence = run.sequence,
                           .before = run.first_token,
                           .first = static_cast<uint32_t>(state.ids.size()),
                           .tokens = made});
    for (uint32_t token = 0; token < made; ++token) {
      // Rows of one that has finished are discarded, and may be behind its end.
      state.ids.push_back(static_cast<uint32_t>(
          token < sequence->tokens.size() ? sequence->tokens[token] : sequence->tokens.back()));
      state.positions.push_back(token);
    }
    lane.prompts += PromptWork{.tokens = made, .pairs = int64_t{made} * made};
  }
  return absl::OkStatus();
}

absl::Status TokenRows::Make(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  if (state.parts.empty()) {
    return absl::OkStatus();
  }
  Nanos all = 0;
  Nanos dense = 0;
  LAMINA_RETURN_IF_ERROR(RunLayer(state, lane.slice, [&](telemetry::WorkKind part) {
    const Nanos spent = context_.intervals.EndIntervalOf(lane, part, lane.slice);
    all += spent;
    dense += part == telemetry::WorkKind::kRecompute ? spent : 0;
  }));
  lane.slices_nanos -= all;  // It is no part of what a slice takes.
  telemetry::AddTo(context_.counters.recomputed_tokens, state.ids.size());
  NoteMade(static_cast<uint32_t>(state.ids.size()), dense);
  return absl::OkStatus();
}

// Blocks run in the order of the rows: K and V that a block's rows attend to are its own, or have
// been stored by those before it. What is behind the last K and V nobody needs.
absl::Status TokenRows::RunLayer(LaneState& state, uint32_t layer,
                                 absl::FunctionRef<void(telemetry::WorkKind)> ended) {
  SliceExecutor& executor = context_.executor;
  const bool is_last = layer + 1 == context_.config.layers.size();
  const auto all = static_cast<uint32_t>(state.ids.size());
  state.layer = layer;
  for (uint32_t first = 0; first < all; first += kRows) {
    const Block block{.first = first, .rows = std::min(kRows, all - first)};
    LAMINA_RETURN_IF_ERROR(executor.SetRows(
        {.token_ids = absl::MakeConstSpan(state.ids).subspan(first, block.rows),
         .positions = absl::MakeConstSpan(state.positions).subspan(first, block.rows),
         .slots = {}},
        buffers_));
    if (layer > 0) {
      Restore(state, layer - 1, block);
    }
    executor.RunBeforeSend(layer, buffers_);
    const MadeKv::Layer values = Collect(state, block);
    if (is_last) {
      LAMINA_RETURN_IF_ERROR(kv_->Store(values, rows_));
      ended(telemetry::WorkKind::kRecompute);
      continue;
    }
    executor.RunAfterSend(layer, buffers_);
    ended(telemetry::WorkKind::kRecompute);
    LAMINA_RETURN_IF_ERROR(kv_->StoreAndAttend(values, rows_));
    Keep(state, layer, block);
    ended(telemetry::WorkKind::kChunks);
  }
  return absl::OkStatus();
}

void TokenRows::Fill(const Lane& lane, uint32_t layer, const RowRun& run,
                     const plan::TokenSpan& tokens, const MadeKv::Into& into) const {
  const LaneState& state = lanes_[lane.index];
  const auto part = std::find_if(state.parts.begin(), state.parts.end(), [&run](const Part& one) {
    return one.sequence == run.sequence && one.before == run.first_token;
  });
  LAMINA_CHECK(part != state.parts.end() && tokens.first + tokens.tokens <= part->tokens &&
               layer == state.layer);
  kv_->Fill(layer, state.memory.data(),
            {.first_slot = part->first + tokens.first, .tokens = tokens.tokens}, into);
}

// Parts of INT8 are whole blocks, and so is a block of rows but for the last one.
MadeKv::Layer TokenRows::Collect(const LaneState& state, const Block& block) {
  rows_.clear();
  for (const Part& part : state.parts) {
    const uint32_t first = std::max(part.first, block.first);
    const uint32_t end = std::min(part.first + part.tokens, block.first + block.rows);
    if (first < end) {
      rows_.push_back({.first_slot = part.first,
                       .before = first - part.first,
                       .tokens = end - first,
                       .row = first - block.first});
    }
  }
  return {.index = state.layer,
          .memory = state.memory.data(),
          .qkv = context_.executor.QkvRows(state.layer, block.rows, buffers_),
          .out = context_.executor.AttentionRows(state.layer, block.rows, buffers_)};
}

std::vector<absl::Span<std::byte>> TokenRows::CarriedOf(uint32_t layer, const Block& block) {
  const SliceExecutor& executor = context_.executor;
  std::vector<absl::Span<std::byte>> values;
  for (size_t i = 0; i < executor.context_count(layer); ++i) {
    values.push_back(executor.ContextRows(layer, i, block.rows, buffers_));
  }
  const auto out = executor.AttentionRows(layer, block.rows, buffers_);
  values.emplace_back(reinterpret_cast<std::byte*>(out.row(0)),
                      size_t{block.rows} * out.cols * sizeof(BFloat16));
  return values;
}

void TokenRows::Keep(LaneState& state, uint32_t layer, const Block& block) {
  std::byte* to = CarriedAt(state, block);
  for (const absl::Span<std::byte> value : CarriedOf(layer, block)) {
    std::memcpy(to, value.data(), value.size());
    to += value.size();
  }
}

void TokenRows::Restore(LaneState& state, uint32_t layer, const Block& block) {
  const std::byte* from = CarriedAt(state, block);
  for (const absl::Span<std::byte> value : CarriedOf(layer, block)) {
    std::memcpy(value.data(), from, value.size());
    from += value.size();
  }
}

}  // namespace lamina::compute_node
