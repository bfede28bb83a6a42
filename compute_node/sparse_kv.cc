// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_kv.h"

#include <algorithm>
#include <bit>

#include "common/kv_form.h"
#include "common/status_macros.h"
#include "plan/token_sets.h"

namespace lamina::compute_node {

SparseKv::SparseKv(const WorkerContext& context, const TokenChoice& choice, SparseSums& sums,
                   const ResidentKv& resident, WeighedAttention& attention)
    : context_(context),
      choice_(choice),
      sums_(sums),
      resident_(resident),
      attention_(attention),
      windows_(context),
      node_sums_(NodeSums::Of(context.config)),
      lanes_(context.config.lanes),
      has_int8_(context.config.int8_tails > 0),
      int8_(attention, context.config.rows_max) {
  extents_.reserve(3 * size_t{context.config.rows_max});  // Items point into it.
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
    stream.chosen.clear();
    stream.first_chosen.clear();
    size_t weights = 0;
    for (uint32_t run = 0; run < part.rows.size(); ++run) {
      const absl::Span<const uint64_t> set = choice_.Set(lane, node, state.layer, run);
      const plan::FetchRun& come = stream.runs.emplace_back(plan::ChosenRun(
          part.runs[run], set, choice_.Kept(lane, node, state.layer, run), has_int8_));
      stream.first_weight.push_back(weights);
      weights += size_t{stream.weighed[run]} * (come.before + come.tokens);
      stream.first_chosen.push_back(stream.chosen.size());
      const size_t closed = come.chosen ? part.runs[run].int8_fetched() / kInt8BlockTokens : 0;
      for (const uint64_t block : set.first(closed)) {
        if (block != 0) {
          stream.chosen.push_back(static_cast<uint32_t>(std::popcount(block)));
        }
      }
    }
    stream.first_chosen.push_back(stream.chosen.size());
    stream.weights.assign(node_sums_->SummedIn(node) == node ? weights : 0, 0.0f);
    windows_.BeginLayer(lane, node, state.layer, stream.runs);
  }
}

absl::StatusOr<bool> SparseKv::Poll(Lane& lane) {
  const auto attend = [&](uint32_t node) {
    has_int8_ ? AttendInt8(lane, node) : Attend(lane, node);
  };
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
  const Stream& stream = lanes_[lane.index].streams[node];
  const plan::FetchPiece& piece = windows_.piece(lane, node);
  const PieceRows rows = windows_.RowsOf(lane, node);
  extents_.clear();
  items_.clear();
  const uint32_t layer = lanes_[lane.index].layer;
  uint32_t filled = 0;
  uint32_t slot = piece.filled;
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    const plan::FetchRun& run = stream.runs[i];
    const RowRun& row = choice_.part(lane, node).rows[i];
    const size_t first_extent = extents_.size();
    const Extent own{.first_slot = slot + run.fetched(), .tokens = run.tokens};
    rows.Store(row.first_row, own);
    if (run.kept > 0) {
      kept_.clear();
      resident_.AppendSlots(row.sequence, choice_.KeptSet(lane, node, layer, i), kept_);
      rows.Fill(resident_.View(layer), kept_, {.first_slot = filled, .tokens = run.kept});
      // Tokens that stay are later ones than those that come.
      extents_.push_back({.first_slot = slot, .tokens = run.fetched()});
      extents_.push_back({.first_slot = filled, .tokens = run.kept});
      extents_.push_back(own);
    } else {
      extents_.push_back({.first_slot = slot, .tokens = run.fetched() + run.tokens});
    }
    AddItems(lane, node, i, rows, absl::MakeConstSpan(extents_).subspan(first_extent));
    filled += run.filled_slots();
    slot += run.slots();
  }
  attention_.Attend(rows.part(), rows.View(), items_);
}

void SparseKv::AttendInt8(Lane& lane, uint32_t node) {
  const Stream& stream = lanes_[lane.index].streams[node];
  const plan::FetchPiece& piece = windows_.piece(lane, node);
  int8_runs_.clear();
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    const size_t first = stream.first_chosen[i];
    int8_runs_.push_back(
        {.tokens = stream.runs[i],
         .row = choice_.part(lane, node).rows[i].first_row,
         .chosen =
             absl::MakeConstSpan(stream.chosen).subspan(first, stream.first_chosen[i + 1] - first),
         .weighed = stream.weighed[i],
         .weights = WeightsOf(lane, node, i)});
  }
  int8_.Attend(windows_.RowsOf(lane, node), piece,
               reinterpret_cast<std::byte*>(windows_.elements(lane, node)), int8_runs_);
}

void SparseKv::AddItems(const Lane& lane, uint32_t node, uint32_t run, const PieceRows& rows,
                        absl::Span<const Extent> slots) {
  const Stream& stream = lanes_[lane.index].streams[node];
  const plan::FetchRun& tokens = stream.runs[run];
  const uint32_t row = choice_.part(lane, node).rows[run].first_row;
  const auto add = [&](uint32_t first, uint32_t count, float* weights) {
    if (count > 0) {
      items_.push_back({.attention = {.extents = slots,
                                      .first_position = tokens.before + first,
                                      .query_tokens = count,
                                      .q = rows.q(row + first),
                                      .q_stride = rows.qkv_stride(),
                                      .out = rows.out(row + first),
                                      .out_stride = rows.out_stride()},
                        .weights = weights,
                        .stride = tokens.before + tokens.tokens});
    }
  };
  const uint32_t plain = tokens.tokens - stream.weighed[run];
  add(0, plain, nullptr);
  add(plain, stream.weighed[run], WeightsOf(lane, node, run));
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
