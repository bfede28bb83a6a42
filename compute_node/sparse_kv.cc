// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_kv.h"

#include <algorithm>
#include <bit>

#include "common/status_macros.h"

namespace lamina::compute_node {

SparseKv::SparseKv(const WorkerContext& context, const TokenChoice& choice, SparseSums& sums,
                   SparsePieces& form)
    : context_(context),
      choice_(choice),
      sums_(sums),
      form_(form),
      windows_(context),
      node_sums_(NodeSums::Of(context.config)),
      lanes_(context.config.lanes) {
  for (LaneState& lane : lanes_) {
    lane.streams.resize(context.config.memory_nodes.size());
  }
}

void SparseKv::BeginStep(const Lane& lane) {
  windows_.BeginStep(lane);
  LaneState& state = lanes_[lane.index];
  state.in_turn = false;
  for (uint32_t node = 0; node < state.streams.size(); ++node) {
    Stream& stream = state.streams[node];
    stream.weighed.clear();
    for (const RowRun& run : choice_.part(lane, node).rows) {
      stream.weighed.push_back(sums_.Weighed(*context_.sequences.Find(run.sequence), run));
      state.in_turn = state.in_turn || (node_sums_->in_turn() && stream.weighed.back() > 0);
    }
  }
}

void SparseKv::BeginLayer(const Lane& lane) {
  LaneState& state = lanes_[lane.index];
  state.layer = lane.slice;
  for (uint32_t node = 0; node < state.streams.size(); ++node) {
    Stream& stream = state.streams[node];
    const TokenChoice::Part& part = choice_.part(lane, node);
    stream.runs.clear();
    stream.first_weight.clear();
    size_t weights = 0;
    for (uint32_t run = 0; run < part.rows.size(); ++run) {
      const plan::FetchRun& come = stream.runs.emplace_back(
          form_.RunOf(part.runs[run], choice_.Set(lane, node, state.layer, run),
                      choice_.Kept(lane, node, state.layer, run)));
      stream.first_weight.push_back(weights);
      weights += size_t{stream.weighed[run]} * (come.before + come.tokens);
    }
    stream.weights.assign(node_sums_->SummedIn(node) == node ? weights : 0, 0.0f);
    windows_.BeginLayer(lane, node, state.layer, stream.runs);
  }
}

absl::StatusOr<bool> SparseKv::Poll(Lane& lane) {
  const auto attend = [&](uint32_t node) { Attend(lane, node); };
  const auto ended = [&](uint32_t node) {
    if (node_sums_->Complete(windows_, lane)) {
      EndLayer(lane, node_sums_->SummedIn(node));
    }
  };
  for (uint32_t node = 0; node < lanes_[lane.index].streams.size(); ++node) {
    if (IsTurnOf(lane, node)) {
      LAMINA_RETURN_IF_ERROR(windows_.AttendNext(lane, node, attend, ended));
    }
  }
  return windows_.Ended(lane);
}

void SparseKv::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  for (uint32_t node = 0; node < lanes_[lane.index].streams.size(); ++node) {
    if (IsTurnOf(lane, node)) {
      windows_.AppendAwaited(lane, node, awaited);
    }
  }
}

bool SparseKv::IsTurnOf(const Lane& lane, uint32_t node) const {
  for (uint32_t before = 0; lanes_[lane.index].in_turn && before < node; ++before) {
    if (!windows_.Ended(lane, before)) {
      return false;
    }
  }
  return true;
}

float* SparseKv::WeightsOf(const Lane& lane, uint32_t node, uint32_t run) {
  Stream& stream = lanes_[lane.index].streams[node_sums_->SummedIn(node)];
  return stream.weights.data() + stream.first_weight[run];
}

void SparseKv::Attend(Lane& lane, uint32_t node) {
  const LaneState& state = lanes_[lane.index];
  const Stream& stream = state.streams[node];
  const plan::FetchPiece& piece = windows_.piece(lane, node);
  runs_.clear();
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    runs_.push_back({.tokens = stream.runs[i],
                     .rows = choice_.part(lane, node).rows[i],
                     .come = choice_.Set(lane, node, state.layer, i),
                     .kept = choice_.KeptSet(lane, node, state.layer, i),
                     .weighed = stream.weighed[i],
                     .weights = WeightsOf(lane, node, i)});
  }
  form_.Attend(state.layer, windows_.RowsOf(lane, node), piece,
               reinterpret_cast<std::byte*>(windows_.elements(lane, node)), runs_);
}

// All heads have been attended: the weights of the rows are complete.
void SparseKv::EndLayer(const Lane& lane, uint32_t node) {
  const uint32_t layer = lanes_[lane.index].layer;
  const Stream& stream = lanes_[lane.index].streams[node];
  for (uint32_t i = 0; i < stream.runs.size(); ++i) {
    const RowRun& run = choice_.part(lane, node).rows[i];
    const absl::Span<const uint64_t> come = choice_.Set(lane, node, layer, i);
    const absl::Span<const uint64_t> kept = choice_.KeptSet(lane, node, layer, i);
    tokens_.clear();
    for (uint32_t word = 0; word < come.size(); ++word) {
      for (uint64_t left = come[word] | kept[word]; left != 0; left &= left - 1) {
        tokens_.push_back(word * 64 + static_cast<uint32_t>(std::countr_zero(left)));
      }
    }
    for (uint32_t own = 0; own < run.tokens; ++own) {
      tokens_.push_back(run.first_token + own);
    }
    const uint32_t plain = run.tokens - stream.weighed[i];
    for (uint32_t row = 0; row < stream.weighed[i]; ++row) {
      const size_t seen = size_t{stream.runs[i].before} + plain + row + 1;
      sums_.Of(run.sequence, layer)
          .Add(run.first_token + plain + row, absl::MakeConstSpan(tokens_).first(seen),
               {stream.weights.data() + stream.first_weight[i] + row * tokens_.size(), seen});
    }
  }
}

}  // namespace lamina::compute_node
