// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_tail.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {

StepTail::StepTail(const WorkerContext& context, SequenceTable& sequences, ThreadPool& pool,
                   model::GrammarCache* grammars)
    : context_(context),
      sequences_(sequences),
      pool_(pool),
      grammars_(grammars),
      scratch_(pool.threads()) {}

absl::Status StepTail::Prepare(uint32_t vocabulary) {
  SliceExecutor& executor = context_.executor;
  const plan::EpochConfig& config = context_.config;
  LAMINA_ASSIGN_OR_RETURN(buffers_, executor.head().MakeBuffers());
  LAMINA_ASSIGN_OR_RETURN(
      sampler_, executor.device().MakeSampler({.vocabulary = vocabulary,
                                               .rows_max = LmHead::kRows,
                                               .sequence_tokens_max = config.sequence_tokens_max}));
  device_samples_.reserve(LmHead::kRows);
  host_rows_.reserve(LmHead::kRows);
  kept_rows_.reserve(plan::StepRowsMax(config));
  return absl::OkStatus();
}

absl::Status StepTail::KeepRows(Lane& lane) {
  kept_rows_.clear();
  for (TailRow& row : lane.tail) {
    if (kept_rows_.empty() || kept_rows_.back() != row.row) {
      kept_rows_.push_back(row.row);
    }
    row.row = static_cast<uint32_t>(kept_rows_.size() - 1);
  }
  context_.executor.KeepRows(kept_rows_, lane.buffers);
  for (size_t i = 0; i < kept_rows_.size(); ++i) {
    lane.token_ids[i] = lane.token_ids[kept_rows_[i]];
    lane.positions[i] = lane.positions[kept_rows_[i]];
  }
  lane.token_ids.resize(kept_rows_.size());
  lane.positions.resize(kept_rows_.size());
  lane.slots.clear();  // No k and v are made any more.
  return context_.executor.SetRows(lane.inputs(), lane.buffers);
}

absl::StatusOr<StepTail::Outcome> StepTail::Run(Lane& lane) {
  if (lane_ != nullptr && lane_ != &lane) {
    return Outcome::kOccupied;
  }
  SliceExecutor& executor = context_.executor;
  if (lane_ == nullptr) {
    lane_ = &lane;
    done_ = 0;
    columns_ = 0;
    result_ = {.epoch = lane.plan.epoch, .lane = lane.plan.lane, .step = lane.plan.step};
    telemetry::AddTo(context_.counters.units, 1);
  }
  const size_t count = std::min(LmHead::kRows, lane.tail.size() - done_);
  if (count > 0) {
    if (columns_ == 0) {
      uint32_t chosen[LmHead::kRows];
      for (size_t i = 0; i < count; ++i) {
        chosen[i] = lane.tail[done_ + i].row;
      }
      executor.head().Begin(lane.buffers, {chosen, count}, buffers_);
    }
    columns_ = executor.head().Run(count, columns_, buffers_);
    if (columns_ == executor.head().width()) {
      LAMINA_RETURN_IF_ERROR(Sample(lane, count));
      done_ += count;
      columns_ = 0;
    }
  }
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kHead, lane.slice);
  if (done_ < lane.tail.size()) {
    return Outcome::kMore;
  }
  lane_ = nullptr;
  return Outcome::kEnded;
}

// Has the device sample those of the next `count` rows that it takes, and brings the logits of the
// others to the host.
absl::Status StepTail::SampleOnDevice(const Lane& lane, size_t count) {
  device_samples_.assign(count, {});
  host_rows_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    const TailRow& row = lane.tail[done_ + i];
    const Sequence& sequence = *sequences_.Find(row.sequence);
    const plan::SequenceJoin& join = sequence.join;
    if (row.score || sampler_ == nullptr || !sampler_->Takes(join.sampling) ||
        sequence.may_not_end()) {
      host_rows_.push_back(i);
      continue;
    }
    const absl::Span<const TokenId> tokens = sequence.tokens;
    device_samples_[i] = {.params = &join.sampling,
                          .prompt = tokens.first(join.prompt_tokens),
                          .output = tokens.subspan(join.prompt_tokens),
                          .position = tokens.size()};
  }
  if (host_rows_.size() < count) {
    LAMINA_RETURN_IF_ERROR(
        sampler_->Sample(context_.executor.head().DeviceLogits(count, buffers_), device_samples_));
  }
  return context_.executor.head().LogitsToHost(host_rows_, buffers_);
}

// Grammars of the next `count` rows that are still being compiled are waited for here, where the
// thread beats, and not in the pool; and here they follow tokens that are there already, maybe
// many.
void StepTail::AwaitGrammars(const Lane& lane, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const TailRow& row = lane.tail[done_ + i];
    Sequence& sequence = *sequences_.Find(row.sequence);
    const OutputForm& form = sequence.join.sampling.form;
    if (!row.score && !form.any() && sequence.grammar == nullptr) {
      // An error is met again where the row is sampled.
      if (grammars_->Get(form, &context_.counters.beat).ok()) {
        FollowGrammar(sequence, *grammars_, &context_.counters.beat);
      }
    }
  }
}

// Samples or scores the next `count` rows, whose logits are complete.
absl::Status StepTail::Sample(const Lane& lane, size_t count) {
  LAMINA_RETURN_IF_ERROR(SampleOnDevice(lane, count));
  AwaitGrammars(lane, count);
  const auto logits = context_.executor.head().Logits(count, buffers_);
  const size_t first = done_;
  std::vector<plan::SampledToken> sampled(count);
  std::vector<float> scored(count);
  std::vector<plan::TokenRank> ranks(count);
  pool_.Run(count, [&](size_t i, size_t worker) {
    const TailRow& row = lane.tail[first + i];
    Sequence& sequence = *sequences_.Find(row.sequence);
    const absl::Span<const float> values(logits.row(i), logits.cols);
    if (device_samples_[i].params != nullptr) {
      sampled[i] = AppendSampled(sampler_->tokens()[i], sequence);
    } else if (row.score) {
      const TokenId token = sequence.tokens[row.position + 1];
      scored[i] = kernels::LogProbability(values, token);
      ranks[i] = RankOf(values, token, sequence, scratch_[worker]);
    } else {
      sampled[i] = SampleNext(values, sequence, *grammars_, scratch_[worker]);
    }
  });
  for (size_t i = 0; i < count; ++i) {
    const TailRow& row = lane.tail[first + i];
    if (!row.score) {
      result_.tokens.push_back(std::move(sampled[i]));
      continue;
    }
    if (result_.scores.empty() || result_.scores.back().sequence != row.sequence) {
      result_.scores.push_back({.sequence = row.sequence, .first_token = row.position + 1});
    }
    result_.scores.back().logprobs.push_back(scored[i]);
    if (ranks[i].rank > 0) {
      result_.scores.back().ranks.push_back(std::move(ranks[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
