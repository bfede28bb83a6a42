// SPDX-License-Identifier: Apache-2.0
//
// Engine::Impl: what stands behind Engine: requests and steps, between the clients, the scheduler
// and the members of the cluster, all on one event loop. engine.cc posts to it from any thread;
// its own methods are in engine_impl.cc.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster_members.h"
#include "coordinator/core/burst_wait.h"
#include "coordinator/core/prompt_rate.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/step_reports.h"
#include "coordinator/departures.h"
#include "coordinator/engine.h"
#include "coordinator/event_loop.h"
#include "coordinator/member_changes.h"
#include "coordinator/member_trial.h"
#include "coordinator/request_table.h"
#include "coordinator/restore_times.h"
#include "coordinator/token_rate.h"
#include "coordinator/token_work.h"
#include "coordinator/trace_log.h"
#include "plan/pipeline_schedule.h"

namespace lamina::coordinator {

struct Engine::Impl final : public EpochOwner {
  Impl(const EngineOptions& o, const model::Tokenizer& tokenizer, const Clock& c);

  const EngineOptions options;
  const Clock& clock;

  // Touched by the loop's thread only.
  core::Scheduler scheduler;
  RequestTable requests;
  RestoreTimes restores{requests.metrics()};
  TraceLog trace;
  ClusterMembers members;
  const MemberTrial trial;
  MemberChanges changes;
  Departures departures;
  const StatusBuilder status_builder;
  std::optional<plan::PipelineSchedule> schedule;  // Who runs which lane in the epoch.
  core::StepReports reports;                       // Steps that some compute nodes have done.
  std::string shares_by;    // By what new sequences are shared out, as status tells it.
  uint32_t lanes_told = 0;  // Lanes of the last choice that was logged.
  std::vector<plan::StepPlan> plans;
  // Chunks of planned steps that are not the last of their prompts, oldest first, for each lane.
  std::vector<std::deque<std::pair<uint64_t, plan::PrefillChunk>>> chunks_planned;
  uint64_t prompts_planned = 0;  // Steps with rows of prompts, or more.
  TokenRate token_rate;
  core::PromptRate prompt_rate;
  core::BurstWait burst_wait;
  TokenWork token_work;
  std::function<void()> drained;
  bool draining = false;

  EventLoop loop;  // Last: it uses all the others.

  // An event of a node, dropped unless the node is accepted over that port when its turn comes.
  void PostOf(const NodeSource& from, std::function<void(Impl&)> event);
  void EndTurn();
  // Nodes that ask for it.
  void LetGo();
  // Any thread.
  void NoteRefused(const std::string& request_id, const absl::Status& status);

  // --- Requests ---
  void Submit(GenerateSpec spec, uint64_t key, const std::shared_ptr<RequestSink>& sink);
  // The policy of a request; null: it names none, and there is one for all. Errors:
  // kInvalidArgument  epochs prepare none of that name; says which.
  absl::StatusOr<const PreparedPolicy*> PolicyOf(const GenerateSpec& spec) const;
  absl::Status CheckServing() const;
  void Deliver(core::Events& events);
  void EndRequest(uint64_t key, const absl::Status& status);

  // --- Epochs (EpochOwner) ---
  void BeginEpoch(const FormedEpoch& epoch, const std::vector<std::string>& lost) override;
  void EpochServes(const FormedEpoch& epoch) override;
  std::vector<uint64_t> ArenasOf(const FormedEpoch& epoch) const;
  void StopServing(const absl::Status& status) override;

  // --- Steps ---
  void PlanSteps();
  void SendPlan(plan::StepPlan& plan);
  void StepDone(const std::string& name, plan::StepResult report);
  // The result, once all nodes have reported the step. Errors: what the node did wrong.
  absl::Status TakeReport(uint32_t node, plan::StepResult report, core::Events& events);
  void ReportChunks(const plan::StepResult& result);
  // What the nodes have measured of late.
  void UseCosts();
  double KeptShare(const FormedEpoch& epoch) const;

  EngineStatus Status();
  EngineTrace TakeTrace();
};

}  // namespace lamina::coordinator
