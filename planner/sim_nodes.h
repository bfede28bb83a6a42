// SPDX-License-Identifier: Apache-2.0
//
// SimNodes: the compute and memory nodes of a cell in one epoch, in virtual time. Lanes go through
// their slices as plan/pipeline_schedule.h says, a stage runs what plan/slice_order.h picks among
// the lanes that are ready, and memory nodes attend in the order in which rows arrive.
//
// Each stage, memory node and link does one thing at a time. Shards of a stage are one: they run
// the same slices. Not in it: chunks of rows that overlap transfers with attention, variance of
// times.
//
// Threading: one thread.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "plan/pipeline_schedule.h"
#include "plan/slice_order.h"
#include "planner/sim_events.h"
#include "planner/sim_step.h"

namespace lamina::planner {

// What a node was busy with, in seconds; the rest is output's.
struct SimWork {
  double busy = 0;
  double input = 0;
  double cached = 0;

  SimWork& operator+=(const SimWork& other) {
    busy += other.busy;
    input += other.input;
    cached += other.cached;
    return *this;
  }
  void Add(double seconds, double input_share, double cached_share) {
    busy += seconds;
    input += seconds * input_share;
    cached += seconds * cached_share;
  }
};

struct SimNodesOptions {
  uint32_t cell = 0;
  uint64_t epoch = 0;
  uint32_t layers = 1;
  uint32_t lanes = 1;  // Prefill lanes included.
  uint32_t memory_nodes = 0;
  Nanos message = 0;                // From a node to the coordinator, one way.
  std::vector<plan::Stage> stages;  // Stages of all replicas; those for prompts last.
  bool several_stages = false;      // Some replica has several.
  plan::PipelineSchedule::Prefill prefill;
};

class SimNodes {
 public:
  SimNodes(const SimNodesOptions& options, SimEvents& events);

  // The lane's next step reaches the nodes at `arrival`. In the order of steps.
  void Send(uint32_t lane, SimStep step, Nanos arrival);

  // kPlan, kReady and kSliceDone of this epoch. A step that is done is reported by a kReport.
  void OnEvent(const SimEvent& event);

  // The oldest step of the lane that is reported and not taken yet.
  SimStep TakeReported(uint32_t lane);

  const std::vector<SimWork>& stages() const { return stage_work_; }
  const std::vector<SimWork>& memory() const { return memory_work_; }

 private:
  struct SimLane {
    std::deque<SimStep> sent;     // On their way.
    std::deque<SimStep> waiting;  // Arrived; the first one runs if `running`.
    std::deque<SimStep> reported;
    bool running = false;
    uint32_t slice = 0;  // The next one, or the one that runs.
    uint32_t head_pieces_done = 0;
    uint32_t stage = 0;     // The stage that runs it.
    bool new_visit = true;  // The visit to `stage` has just begun.
  };
  struct Stage {
    std::unique_ptr<plan::SliceOrder> order;
    std::optional<uint32_t> lane;  // The lane that it runs now.
    Nanos out_free = 0;            // When its outgoing link is free.
    Nanos in_free = 0;
  };
  struct Memory {
    Nanos free = 0;
    Nanos link_free = 0;
  };

  void Push(SimEventKind kind, Nanos time, uint32_t subject);
  void Start(uint32_t lane, Nanos now);
  void SetReady(uint32_t lane, Nanos now);
  void RunNext(uint32_t stage, Nanos now);
  void OnSliceDone(uint32_t stage, Nanos now);
  Nanos Attend(const SimStep& step, uint32_t stage, Nanos now);
  // The shortest slice of the step that has ended and of those that run in other lanes; nothing
  // where no other runs.
  std::optional<Nanos> HiddenBehind(uint32_t lane) const;
  void EndStep(uint32_t lane, Nanos now);

  SimNodesOptions options_;
  SimEvents& events_;
  plan::PipelineSchedule schedule_;
  std::vector<SimLane> lanes_;
  std::vector<Stage> stages_;
  std::vector<Memory> memory_;
  std::vector<SimWork> stage_work_;
  std::vector<SimWork> memory_work_;
};

}  // namespace lamina::planner
