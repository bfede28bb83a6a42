// SPDX-License-Identifier: Apache-2.0
//
// SimWorld: the production scheduler between simulated clients and simulated nodes, on a virtual
// clock. One queue of events ordered by (time, sequence number); everything random comes from the
// seed. After every event, every checker runs.
//
// Two phases. Safety: requests arrive, are cancelled, nodes are lost. Then nothing new happens, and
// everything must end within a bounded simulated time and leave nothing behind (liveness).
//
// Threading: one thread.   Determinism: same options, same trace, hence same trace hash.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/philox.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/step_reports.h"
#include "plan/pipeline_schedule.h"
#include "plan/stages.h"
#include "tests/sim/plan_hash.h"
#include "tests/sim/planted_bug.h"
#include "tests/sim/sim_auditor.h"
#include "tests/sim/sim_nodes.h"
#include "tests/sim/sim_reach.h"
#include "tests/sim/sim_workload.h"

namespace lamina::sim {

struct SimOptions {
  uint64_t seed = 0;
  PlantedBug bug = PlantedBug::kNone;
  core::SchedulerStrategies strategies = {};
  // K and V are kept, and requests often begin as earlier ones, answers included.
  bool prefix_cache = false;
  // Every layer of the model has a window.
  bool windows = false;
  // Many requests are beam searches.
  bool beams = false;
  // K and V are INT8: each node has tails for `running_max` sequences, and blocks are shared whole.
  bool int8 = false;
  // Nodes have spill tiers, which fail at times.
  bool spills = false;
  // Epochs prepare several paths of attention, and requests ask for one of them.
  bool paths = false;
  // One pool: the nodes that hold KV are replicas, whole or in parts, each with lanes of its own.
  bool pool = false;
  // Nodes have slots of two forms of K and V, and requests ask for one of them. Not with `int8`.
  bool forms = false;
  // Nodes have slots of path hybrid alone, next to those of other paths. Not with `paths`, `forms`,
  // `int8`, `pool` or `spans`.
  bool hybrid = false;
  // Sequences are cut into spans over memory nodes.
  bool spans = false;
  // Requests have salts, and find what was kept for those with their own.
  bool salts = false;
  // Many requests come with tokens that they have generated before.
  bool resumed = false;
};

struct SimReport {
  std::string failure;             // Empty: passed.
  std::vector<std::string> trace;  // The last events.
  uint64_t trace_hash = 0;
  uint64_t plan_hash = 0;  // Hash of all plans as the scheduler made them, and of what clients saw.
  uint64_t events = 0;
  SimReach reach;
};

// The model's layers.
inline constexpr uint32_t kLayers = 4;

class SimWorld {
 public:
  explicit SimWorld(const SimOptions& options);
  SimReport Run();

 private:
  struct Event {
    Nanos time = 0;
    uint64_t sequence = 0;
    std::function<void()> happen;
    bool operator<(const Event& other) const {  // For a queue with the earliest on top.
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };
  // A lane as the nodes see it: plans that arrived or are under way, one step running at a time.
  struct LaneLink {
    std::deque<plan::StepPlan> plans;
    bool busy = false;
    Nanos plan_arrival = 0;
    std::vector<Nanos> report_arrivals;  // By compute node; reports of one come in order.
  };

  void At(Nanos time, std::function<void()> happen);
  void Trace(std::string line);
  void Fail(const std::string& what);
  Nanos Delay(Nanos most);

  void ScheduleWorkload();
  void Arrive(const SimArrival& arrival);
  void Cancel(plan::SequenceId sequence);
  void ChangeEpoch();
  void DrawArenas();
  void ChangeReplicas();
  void HaveReplicas(PipelineMode mode);
  void ChangePool();
  void BindLanes();
  void AddReplica(uint32_t nodes, bool shards);
  bool IsPrefillLane(uint32_t lane) const { return lane >= workload_.options.lanes; }
  void ChangeCosts();
  void Plan();
  void Send(plan::StepPlan plan);
  void Observe(const plan::StepPlan& plan);
  void StartStep(uint32_t lane);
  void StartSpills(const plan::StepPlan& plan);
  void StartRead(const plan::SpillIn& spill);
  void ReadAhead(const plan::StepPlan& plan);
  void StartSpill(uint64_t spill, bool early);
  void StartMove(uint64_t spill, uint32_t share, bool early);
  void EndStep(uint32_t lane);
  void TakeReport(uint32_t node, plan::StepResult report);
  void Report(plan::StepResult result);
  void Show(const core::Events& events);
  uint64_t SlotsOfLongest() const;
  std::vector<core::MemoryNodeShare> Shares() const;  // What the nodes are to the scheduler.
  void ObservePrefill(const plan::StepPlan& plan);
  void ObservePaths(const plan::StepPlan& plan);
  void ObserveHomes(const plan::StepPlan& plan);
  void ObserveSpans(const plan::StepPlan& plan);
  void LeaveHoles(plan::StepPlan& plan) const;
  void MakeNodes(core::SchedulerOptions options);
  void Mutate(core::SequenceRequest& request) const;
  // What the scheduler is told of an epoch before which `drained` have left.
  void Mutate(const std::vector<core::MemoryNodeShare>& drained,
              std::vector<core::MemoryNodeShare>& shares, std::vector<std::string>& lost) const;
  void Mutate(plan::StepPlan& plan);
  void MutateCopies(plan::StepPlan& plan) const;
  void Mutate(plan::StepResult& result);
  void Mutate(core::Events& events) const;
  void CheckAll();
  void CheckEnd();

  SimOptions sim_;
  Prng random_;
  SimWorkload workload_;
  core::Scheduler scheduler_;
  Prng replicas_random_;
  Prng costs_random_;
  Prng prefill_random_;
  Prng stages_random_;
  Prng loss_random_;
  Prng arenas_random_;
  Prng members_random_;
  Prng spill_random_;
  SimArenas arenas_;
  uint64_t arenas_drawn_ = 0;
  uint32_t replicas_ = 1;             // Compute nodes of the epoch, those for prompts left out.
  plan::PrefillLanes prefill_lanes_;  // Lanes of the replicas for prompts.
  std::vector<plan::Stage> stages_;   // One for each compute node.
  std::optional<plan::PipelineSchedule> schedule_;
  core::StepReports reports_;
  SimAuditor auditor_;
  std::unique_ptr<SimNodes> nodes_;
  std::vector<LaneLink> links_;
  std::vector<core::MemoryNodeShare> memory_nodes_;
  PlanHash plan_hash_;
  std::map<plan::SequenceId, core::SequenceRequest> requests_;
  std::map<plan::SequenceId, uint64_t> last_row_;  // Step of the last row.
  std::set<plan::SequenceId> left_prefill_;        // Left a prefill lane.
  std::map<plan::SequenceId, TokenId> last_token_;
  std::map<uint32_t, plan::AttentionPath> lane_paths_;  // The path of who joined a lane last.
  std::map<plan::SequenceId, uint32_t> placed_in_;      // Lanes of who has places for activations.
  core::LaneHomes homes_;                               // Lanes of each replica of one pool.
  std::map<plan::SequenceId, uint32_t> home_of_;        // The replica that it joined last.
  std::map<uint32_t, std::vector<plan::SequenceLeave>> leaves_late_;  // By lane; kLeaveLate.
  struct PromptRows {
    uint32_t tokens = 0;  // With which the sequence joined,
    uint32_t next = 0;    // and the one behind the last that was planned.
  };
  std::map<plan::SequenceId, PromptRows> prompts_;  // Where sequences are cut.
  std::vector<plan::DecodeRow> behind_kept_;        // In the last plan.
  std::priority_queue<Event> queue_;
  Nanos now_ = 0;
  Nanos settled_by_ = 0;
  uint64_t event_count_ = 0;
  uint64_t epoch_ = 0;
  uint64_t revoked_before_ = 0;  // Reservations revoked in earlier epochs.
  SimReport report_;
};

}  // namespace lamina::sim
