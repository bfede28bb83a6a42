// SPDX-License-Identifier: Apache-2.0
#include "coordinator/trace_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lamina::coordinator {

void TraceLog::Start(Nanos now, Nanos length) {
  const uint64_t id = id_;
  *this = TraceLog();
  id_ = id + 1;
  began_ = now;
  until_ = now + length;
  ended_ = until_;
}

void TraceLog::Planned(const plan::StepPlan& plan, Nanos now,
                       const std::function<std::string(plan::SequenceId)>& name_of) {
  if (steps_.size() >= kStepsMax) {
    ++dropped_;
    return;
  }
  TracedStep step{.epoch = plan.epoch,
                  .lane = plan.lane,
                  .step = plan.step,
                  .planned = now,
                  .rows = static_cast<uint32_t>(plan.rows.size())};
  const auto add = [&](plan::SequenceId sequence) {
    std::string name = name_of(sequence);
    if (name.empty()) {
      return;  // Its request has ended; the row is discarded.
    }
    const auto [found, is_new] =
        indices_.emplace(std::move(name), static_cast<uint32_t>(names_.size()));
    if (is_new) {
      names_.push_back(found->first);
    }
    if (step.requests.empty() || step.requests.back() != found->second) {
      step.requests.push_back(found->second);
    }
  };
  for (const plan::DecodeRow& row : plan.rows) {
    add(row.sequence);
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    step.chunk_tokens += chunk.tokens;
    add(chunk.sequence);
  }
  steps_.push_back(std::move(step));
}

void TraceLog::Done(uint64_t epoch, uint32_t lane, uint64_t step, Nanos now) {
  if (!on(now)) {
    return;
  }
  // Among the latest: a lane has few steps in flight.
  for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) {
    if (it->epoch == epoch && it->lane == lane && it->step <= step) {
      if (it->step == step) {
        it->done = now;
      }
      return;
    }
  }
}

void TraceLog::Ended(const RequestRecord& record) {
  if (began_ == 0 || record.arrived >= until_) {
    return;
  }
  if (requests_.size() >= kRequestsMax) {
    ++dropped_;
    return;
  }
  requests_.push_back(record);
}

bool TraceLog::TakeClock(const std::string& node, const ClockSample& sample) {
  Clock& clock = clocks_[node];
  const Nanos away = (sample.received - sample.sent) - (sample.node_sent - sample.node_received);
  if (away >= 0 && away / 2 < clock.estimate.error) {
    clock.estimate = {
        .offset = ((sample.node_received - sample.sent) + (sample.node_sent - sample.received)) / 2,
        .error = away / 2};
  }
  return --clock.pings_left > 0;
}

std::optional<uint64_t> TraceLog::Collect(Nanos now) {
  until_ = std::min(until_, now);
  ended_ = std::min(ended_, now);
  if (asked_ != 0 && now - asked_ < kAskInterval) {
    return std::nullopt;
  }
  asked_ = now;
  nodes_.clear();
  return id_;
}

EngineTrace TraceLog::Take(const std::vector<RequestRecord>& running) const {
  EngineTrace trace{.steps = steps_,
                    .names = names_,
                    .requests = requests_,
                    .dropped = dropped_,
                    .began = began_,
                    .ended = ended_};
  trace.requests.insert(trace.requests.end(), running.begin(), running.end());
  return trace;
}

void TraceLog::TakeNode(const std::string& node, control::NodeTrace trace) {
  if (trace.id == id_) {
    nodes_[node] = std::move(trace);
  }
}

absl::StatusOr<TracedNode> TraceLog::NodeOf(const std::string& node) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) {
    return absl::UnavailableError(absl::StrCat("the timeline of ", node, " has not come yet"));
  }
  TracedNode traced{.trace = found->second};
  if (const auto clock = clocks_.find(node); clock != clocks_.end()) {
    traced.clock = clock->second.estimate;
  }
  return traced;
}

}  // namespace lamina::coordinator
