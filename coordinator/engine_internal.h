// SPDX-License-Identifier: Apache-2.0
//
// Engine::Impl: the state behind Engine, shared by the files engine*.cc. engine.cc holds the
// thread, its queue, requests and what outsiders call; engine_membership.cc who takes part;
// engine_liveness.cc who is alive; engine_stages.cc how replicas are split; engine_policy.cc where
// KV is with policy auto; engine_steps.cc plans, results and status; engine_trace.cc timelines.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/core/head_shares.h"
#include "coordinator/core/sequence_kv.h"
#include "coordinator/core/serving_bandwidth.h"
#include "coordinator/core/silence.h"
#include "coordinator/core/step_reports.h"
#include "coordinator/core/thread_watch.h"
#include "coordinator/core/transport_choice.h"
#include "coordinator/engine.h"
#include "coordinator/request_table.h"
#include "plan/pipeline_schedule.h"
#include "plan/stages.h"

namespace lamina::coordinator {

struct Engine::Impl {
  Impl(const EngineOptions& o, const model::Tokenizer& tokenizer, const Clock& c);

  struct Node {
    NodeHello hello;
    std::shared_ptr<NodePort> port;
    double busy_share = 0;
    telemetry::NodeCounters counters;
    std::vector<control::LinkReport> links;  // Of the current epoch,
    std::string windows;                     // and this.
    core::AttentionRate attention_rate;      // Memory nodes.
    uint32_t slots = 0;
    bool loading = false;  // A stage that takes part when it has its layers.
  };

  const EngineOptions options;
  const Clock& clock;
  const uint64_t slot_bytes;

  // The queue of the thread. Guarded by mutex.
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> queue;
  bool stopping = false;

  // Engine's thread only, from here on.
  core::Membership membership;
  core::TransportChoice transport;
  core::Scheduler scheduler;
  std::optional<plan::PipelineSchedule> schedule;  // Of the epoch: who runs which lane,
  uint32_t window_heads = 1;                       // and the fewest KV heads of rows in a window.
  core::StepReports reports;                       // Of steps that some compute nodes have done.
  RequestTable requests;
  TraceLog trace;
  std::map<std::string, Node> nodes;      // Attached,
  core::NodeSilence silence;              // when they were heard,
  core::ThreadWatch threads;              // and when their data threads moved.
  std::vector<std::string> memory_names;  // Of the scheduler's epoch, in the plans' order.
  std::vector<std::string> lost_names;    // Members lost since that epoch began.
  // Partition head: which heads these hold.
  std::optional<core::HeadSplit> head_split;
  std::map<std::string, plan::StageSplit> stage_splits;  // By replica; they stay.
  std::map<uint32_t, plan::ShardSplit> shard_splits;     // The same, by the number of shards.
  std::string partition;                                 // As status tells it.
  std::string shares_words;  // The same: by what new sequences are shared out.
  // Policy auto: of the last choice, the load of late, when that was last seen, and since when
  // nothing runs.
  std::optional<core::PolicyChoice> policy_choice;
  core::PolicyLoadMeter load_meter;
  Nanos load_seen = 0;
  std::optional<Nanos> idle_since;
  uint32_t lanes_told = 0;  // Of the last choice that was logged.
  std::vector<plan::StepPlan> plans;
  // Chunks of planned steps that are not the last of their prompts, oldest first, for each lane.
  std::vector<std::deque<std::pair<uint64_t, plan::PrefillChunk>>> chunks_planned;
  std::deque<std::pair<Nanos, uint64_t>> token_counts;  // (time, requests.tokens()) in the window.
  std::function<void()> drained;
  bool draining = false;

  std::thread thread;

  // engine.cc
  void Post(std::function<void()> event);
  // An event of a node, dropped unless the node is accepted over that port when its turn comes.
  void PostOf(const NodeSource& from, std::function<void(Impl&)> event);
  void Loop();
  void Deliver(core::Events& events);
  void EndRequest(uint64_t key, const absl::Status& status);
  absl::Status CheckServing() const;
  // Any thread.
  void NoteRefused(const std::string& request_id, const absl::Status& status);
  void Submit(GenerateSpec spec, uint64_t key, const std::shared_ptr<RequestSink>& sink);

  // engine_membership.cc, and of splits engine_stages.cc
  void AdvanceMembership();
  // Starts an epoch of the members there are, in which everything that was running is recomputed.
  void Configure();
  // What the scheduler places sequences on: each memory node, or (partition head) all as one.
  absl::StatusOr<std::vector<core::MemoryNodeShare>> SharesOf(
      const std::vector<const core::Member*>& members);
  // Decides how the layers of replicas with stages are split, and how these over shards, where that
  // is not decided yet.
  absl::Status SplitReplicas();
  absl::Status SplitIntoShards(uint32_t count);
  std::string PrefillShardsWarning() const;
  uint32_t PrefillLanes(const std::vector<plan::Stage>& stages) const;
  bool IsForPrompts(const ReplicaOptions& replica) const;
  // Of the replicas that decode.
  uint32_t shards() const;
  // What a compute node runs, with its replica's index left 0; nothing if it is no stage.
  std::optional<plan::Stage> StageOf(const std::string& node) const;
  // Whether the node gets its layers before it joins: they were chosen before.
  std::optional<plan::Stage> LayersToLoad(const NodeHello& hello) const;
  void NodeLoaded(const std::string& name, const absl::Status& status);
  std::vector<plan::Stage> StagesOf(const std::vector<const core::Member*>& compute) const;
  std::string DescribeStages() const;
  std::string DescribePartition(const std::string& words) const;
  std::vector<core::HeadNode> HeadNodesOf(const std::vector<const core::Member*>& members) const;
  plan::EpochConfig MakeConfig() const;
  std::string DescribePrefill() const;
  // Why the cluster waits: every request ends.
  void StopServing(const absl::Status& status);
  void Connect();
  std::vector<const core::Member*> Members() const;
  absl::Status CheckHello(const NodeHello& hello) const;
  void NodeJoined(const NodeHello& hello, std::shared_ptr<NodePort> port);
  void NodeLeft(const NodeSource& from);
  void NoteLosses(const std::function<void()>& change);
  void RetrySetAside();
  void NodeFault(const std::string& name, uint64_t epoch, const absl::Status& status);
  bool PassOverTransport(const std::string& name, uint64_t epoch, const absl::Status& status);
  void NodeReady(const std::string& name, uint64_t epoch);
  void NodePrepared(const std::string& name, uint64_t epoch, const control::PreparedNode& prepared);
  void NodeLinks(const std::string& name, uint64_t epoch, std::vector<control::LinkReport> links);
  void NodeStatus(const std::string& name, double busy_share,
                  const telemetry::NodeCounters& counters);

  // engine_liveness.cc
  void DropSilentNodes();
  void DropStuckNodes();
  // Tells the node and the log why, ends its stream and goes on without it.
  void LeaveOut(const std::string& name, const std::string& why);

  // engine_policy.cc; nothing without policy auto.
  // For the epoch that is being configured.
  void SettlePolicy();
  // What the load of late, or of the cluster file, wants of the nodes that are there.
  core::PolicyChoice PolicyFor(core::CurrentPolicy current) const;
  double AttentionOfPools(const plan::PolicyTimes& times) const;
  // Sees the load, and begins an epoch of the other policy when nothing has run for long enough.
  void WatchLoad();

  // engine_steps.cc
  void PlanSteps();
  void StepDone(const std::string& name, plan::StepResult report);
  void ReportChunks(const plan::StepResult& result);
  void CountTokens();
  double TokensPerSecond();
  // What the nodes have measured of slices and attentions, put together.
  cost::LaneCosts CostsOfLanes() const;
  // The same of the links between compute and memory nodes.
  cost::LinkCosts CostsOfLinks() const;
  // Of these memory nodes, from their attentions of late if all have been measured.
  core::ServingBandwidth BandwidthOf(const std::vector<std::string>& names) const;
  void UpdateBandwidths();
  static std::vector<std::string> NamesOf(const std::vector<const core::Member*>& members);
  EngineStatus Status();
};

}  // namespace lamina::coordinator
