// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/step_reports.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::core {
namespace {

absl::Status CheckToken(TokenId token, uint32_t vocabulary) {
  if (token < 0 || static_cast<uint32_t>(token) >= vocabulary) {
    return absl::InternalError(
        absl::StrCat("token ", token, " is not in the vocabulary of ", vocabulary, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status CheckTop(const std::vector<plan::TokenLogprob>& top, uint32_t vocabulary) {
  for (const plan::TokenLogprob& one : top) {
    LAMINA_RETURN_IF_ERROR(CheckToken(one.token, vocabulary));
  }
  return absl::OkStatus();
}

absl::Status CheckRank(const plan::TokenRank& rank, uint32_t vocabulary) {
  if (rank.rank == 0 || rank.rank > vocabulary) {
    return absl::InternalError(
        absl::StrCat("rank ", rank.rank, " in a vocabulary of ", vocabulary, " tokens"));
  }
  return CheckTop(rank.top, vocabulary);
}

}  // namespace

absl::Status CheckTokens(const plan::StepResult& report, uint32_t vocabulary) {
  if (vocabulary == 0) {
    return absl::OkStatus();
  }
  for (const plan::SampledToken& token : report.tokens) {
    LAMINA_RETURN_IF_ERROR(CheckToken(token.token, vocabulary));
    LAMINA_RETURN_IF_ERROR(CheckTop(token.top, vocabulary));
  }
  for (const plan::ScoredTokens& score : report.scores) {
    for (const plan::TokenRank& rank : score.ranks) {
      LAMINA_RETURN_IF_ERROR(CheckRank(rank, vocabulary));
    }
  }
  return absl::OkStatus();
}

void StepReports::Reset(uint32_t nodes, uint32_t lanes, const plan::PipelineSchedule& schedule) {
  lanes_.assign(lanes, {.steps = std::vector<uint64_t>(nodes, 0)});
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    for (uint32_t node = 0; node < nodes; ++node) {
      lanes_[lane].steps[node] = schedule.TakesPart(node, lane) ? 0 : kNoPart;
    }
  }
}

absl::StatusOr<std::optional<plan::StepResult>> StepReports::Add(uint32_t node,
                                                                 plan::StepResult report) {
  if (report.lane >= lanes_.size() || node >= lanes_[report.lane].steps.size() ||
      lanes_[report.lane].steps[node] == kNoPart) {
    return absl::InternalError(absl::StrCat("compute node ", node, " reports lane ", report.lane,
                                            ": there is no such, or it has no part in it"));
  }
  LaneReports& lane = lanes_[report.lane];
  if (report.step != lane.steps[node] + 1) {
    return absl::InternalError(absl::StrCat("compute node ", node, " reports step ", report.step,
                                            " of lane ", report.lane, " where step ",
                                            lane.steps[node] + 1, " is next"));
  }
  lane.steps[node] = report.step;
  if (lane.open.empty() || report.step > lane.open.back().step) {
    lane.open.push_back(std::move(report));
  } else {
    plan::StepResult& whole = lane.open[report.step - lane.open.front().step];
    std::move(report.tokens.begin(), report.tokens.end(), std::back_inserter(whole.tokens));
    std::move(report.scores.begin(), report.scores.end(), std::back_inserter(whole.scores));
  }
  const uint64_t done = *std::min_element(lane.steps.begin(), lane.steps.end());
  if (lane.open.front().step > done) {
    return std::optional<plan::StepResult>();
  }
  std::optional<plan::StepResult> whole = std::move(lane.open.front());
  lane.open.pop_front();
  return whole;
}

}  // namespace lamina::core
