// SPDX-License-Identifier: Apache-2.0
//
// The end of a step: logits of the rows that are sampled or scored, and what comes of them.

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "compute_node/step_worker.h"

namespace lamina::compute_node {

// Runs the last slice in blocks of rows, samples and scores, and tells everybody.
absl::Status StepWorker::RunTail(Lane& lane, std::string& blamed) {
  if (tail_lane_ != nullptr && tail_lane_ != &lane) {
    lane.head_due = true;  // The logits of another lane are not complete; it is ready too.
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
      executor_.BeginTail(lane.buffers, {chosen, count}, tail_buffers_);
    }
    lane.head_columns = executor_.RunHead(count, lane.head_columns, tail_buffers_);
    if (lane.head_columns == executor_.head_width()) {
      LAMINA_RETURN_IF_ERROR(SampleTail(lane, count));
      lane.tail_done += count;
      lane.head_columns = 0;
    }
  }
  LapOf(lane, control::WorkPart::kHead, lane.slice);
  if (lane.tail_done < lane.tail.size()) {
    SetReady(lane);
    return absl::OkStatus();
  }
  EndHead();
  LAMINA_RETURN_IF_ERROR(SendTokens(lane, lane.result, blamed));
  reporter_.ReportResult(std::move(lane.result));
  ForgetPrefilled(lane);
  EndStep(lane);
  return absl::OkStatus();
}

// Lanes that came to the head meanwhile take their turns again. Had they kept them, one whose turn
// is always first, as that of the oldest visit on a stage is, would have kept the head from its end.
void StepWorker::EndHead() {
  tail_lane_ = nullptr;
  for (Lane& lane : lanes_) {
    if (std::exchange(lane.head_due, false)) {
      turns_.SetReady(IndexOf(lane));
    }
  }
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

// Has the device sample those of the next `count` rows that it takes, and brings the logits of the
// others to the host.
absl::Status StepWorker::SampleOnDevice(const Lane& lane, size_t count) {
  device_samples_.assign(count, {});
  host_rows_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    const TailRow& row = lane.tail[lane.tail_done + i];
    const Sequence& sequence = *sequences_.Find(row.sequence);
    const core::SequenceJoin& join = sequence.join;
    if (row.score || sampler_ == nullptr || !sampler_->Takes(join.sampling)) {
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
        sampler_->Sample(executor_.DeviceLogits(count, tail_buffers_), device_samples_));
  }
  return executor_.LogitsToHost(host_rows_, tail_buffers_);
}

// Samples or scores the next `count` rows, whose logits are complete.
absl::Status StepWorker::SampleTail(Lane& lane, size_t count) {
  LAMINA_RETURN_IF_ERROR(SampleOnDevice(lane, count));
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
    if (device_samples_[i].params != nullptr) {
      sampled[i] = AppendSampled(sampler_->tokens()[i], sequence);
    } else if (row.score) {
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
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
