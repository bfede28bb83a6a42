// SPDX-License-Identifier: Apache-2.0
#include "planner/sim_nodes.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace lamina::planner {

SimNodes::SimNodes(const SimNodesOptions& options, SimEvents& events)
    : options_(options),
      events_(events),
      schedule_(PipelineMode::kRotational, options.stages, options.layers, 0, options.prefill),
      lanes_(options.lanes),
      memory_(options.memory_nodes),
      stage_work_(options.stages.size()),
      memory_work_(options.memory_nodes) {
  for (size_t i = 0; i < options.stages.size(); ++i) {
    Stage& stage = stages_.emplace_back();
    if (options.several_stages) {
      stage.order = std::make_unique<plan::OldestVisitFirst>(options.lanes);
    } else {
      stage.order = std::make_unique<plan::FewestSlicesFirst>(options.lanes);
    }
  }
}

void SimNodes::Push(SimEventKind kind, Nanos time, uint32_t subject) {
  events_.Push({.time = time,
                .epoch = options_.epoch,
                .cell = options_.cell,
                .subject = subject,
                .kind = kind});
}

void SimNodes::Send(uint32_t lane, SimStep step, Nanos arrival) {
  lanes_[lane].sent.push_back(std::move(step));
  Push(SimEventKind::kPlan, arrival, lane);
}

SimStep SimNodes::TakeReported(uint32_t lane) {
  SimStep step = std::move(lanes_[lane].reported.front());
  lanes_[lane].reported.pop_front();
  return step;
}

void SimNodes::OnEvent(const SimEvent& event) {
  if (event.kind == SimEventKind::kPlan) {
    SimLane& lane = lanes_[event.subject];
    lane.waiting.push_back(std::move(lane.sent.front()));
    lane.sent.pop_front();
    if (!lane.running) {
      Start(event.subject, event.time);
    }
  } else if (event.kind == SimEventKind::kReady) {
    SetReady(event.subject, event.time);
  } else {
    LAMINA_CHECK(event.kind == SimEventKind::kSliceDone);
    OnSliceDone(event.subject, event.time);
  }
}

// The lane's next step, if it has come. A plan of leaves alone takes no time.
void SimNodes::Start(uint32_t index, Nanos now) {
  SimLane& lane = lanes_[index];
  if (lane.waiting.empty()) {
    return;
  }
  lane.running = true;
  lane.slice = 0;
  lane.head_pieces_done = 0;
  lane.new_visit = true;
  if (lane.waiting.front().work_rows == 0) {
    return EndStep(index, now);
  }
  SetReady(index, now);
}

void SimNodes::SetReady(uint32_t index, Nanos now) {
  SimLane& lane = lanes_[index];
  const SimStep& step = lane.waiting.front();
  lane.stage = lane.slice < options_.layers
                   ? schedule_.NodeOf(index, step.result.step, lane.slice, step.pinned)
                   : schedule_.HeadNodeOf(index, step.result.step, step.pinned);
  plan::SliceOrder& order = *stages_[lane.stage].order;
  order.Begin(index);
  if (lane.new_visit) {
    order.BeginVisit(index);
    lane.new_visit = false;
  }
  order.SetReady(index);
  RunNext(lane.stage, now);
}

void SimNodes::RunNext(uint32_t index, Nanos now) {
  Stage& stage = stages_[index];
  if (stage.lane.has_value()) {
    return;
  }
  stage.lane = stage.order->Next();
  if (!stage.lane.has_value()) {
    return;
  }
  const SimLane& lane = lanes_[*stage.lane];
  const SimStep& step = lane.waiting.front();
  const Nanos time = lane.slice < options_.layers ? step.slice : step.head_piece;
  stage_work_[index].Add(ToSeconds(time), step.input_share, step.cached_share);
  Push(SimEventKind::kSliceDone, now + time, index);
}

void SimNodes::OnSliceDone(uint32_t index, Nanos now) {
  const uint32_t lane_index = *stages_[index].lane;
  stages_[index].lane.reset();
  SimLane& lane = lanes_[lane_index];
  const SimStep& step = lane.waiting.front();
  Nanos ready = now;
  if (lane.slice < options_.layers) {
    ready = Attend(step, index, now);
    ++lane.slice;
  } else {
    ++lane.head_pieces_done;
  }
  if (lane.slice == options_.layers && lane.head_pieces_done >= step.head_pieces) {
    stages_[index].order->End(lane_index);
    EndStep(lane_index, now);
  } else {
    const uint32_t next =
        lane.slice < options_.layers
            ? schedule_.NodeOf(lane_index, step.result.step, lane.slice, step.pinned)
            : schedule_.HeadNodeOf(lane_index, step.result.step, step.pinned);
    if (next != index) {
      stages_[index].order->End(lane_index);
      lane.new_visit = true;
      // With attention away the residual travels meanwhile.
      ready = std::max(ready, now + step.hop);
    }
    Push(SimEventKind::kReady, ready, lane_index);
  }
  RunNext(index, now);
}

// Sends a layer's rows to their memory nodes; returns when the last output is back. K and V of
// prompts leave on the same link, and nobody waits for them.
Nanos SimNodes::Attend(const SimStep& step, uint32_t index, Nanos now) {
  Stage& stage = stages_[index];
  if (step.out == 0) {
    return now;
  }
  stage.out_free = std::max(stage.out_free, now) + step.out;
  if (step.attentions.empty()) {
    return now;
  }
  Nanos done = now;
  for (const SimStep::Attention& attention : step.attentions) {
    Memory& memory = memory_[attention.node];
    memory.link_free = std::max(memory.link_free, now) + attention.arrive;
    const Nanos arrived = std::max(stage.out_free, memory.link_free) + step.latency;
    memory.free = std::max(memory.free, arrived) + attention.attend;
    memory_work_[attention.node].Add(ToSeconds(attention.attend), attention.input_share,
                                     attention.cached_share);
    done = std::max(done, memory.free);
  }
  stage.in_free = std::max(stage.in_free, done) + step.back;
  return stage.in_free + step.latency;
}

std::optional<Nanos> SimNodes::HiddenBehind(uint32_t index) const {
  std::optional<Nanos> least;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lane != index && lanes_[lane].running) {
      const Nanos slice = lanes_[lane].waiting.front().slice;
      least = std::min({slice, lanes_[index].waiting.front().slice, least.value_or(slice)});
    }
  }
  return least;
}

void SimNodes::EndStep(uint32_t index, Nanos now) {
  SimLane& lane = lanes_[index];
  const SimStep& step = lane.waiting.front();
  if (const auto hidden = HiddenBehind(index);
      hidden.has_value() && step.border > 0 && step.work_rows > 0) {
    // What was measured is what a compute node waits for, behind the slice that it runs meanwhile.
    for (Memory& memory : memory_) {
      memory.free = std::max(memory.free, now) + step.border + *hidden;
    }
  }
  lane.reported.push_back(std::move(lane.waiting.front()));
  lane.waiting.pop_front();
  lane.running = false;
  Push(SimEventKind::kReport, now + options_.message, index);
  Start(index, now);
}

}  // namespace lamina::planner
