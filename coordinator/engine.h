// SPDX-License-Identifier: Apache-2.0
//
// Engine: the coordinator's one thread. Owns the scheduler, membership and all requests; turns
// events of clients and nodes into plans and text. Everything it decides with is a pure state
// machine of core/; this file is the wiring.
//
// Threading: public calls from any thread post to the engine's thread and return at once, except
// GetStatus() without a function to call, which waits for its turn: not for gRPC's threads, which
// are few, and answer everybody's pings.
// Limits: those of EngineOptions; queued requests beyond them are refused with kResourceExhausted.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/engine_options.h"
#include "coordinator/engine_status.h"
#include "coordinator/node_port.h"
#include "coordinator/request.h"
#include "coordinator/request_metrics.h"
#include "coordinator/request_record.h"
#include "coordinator/trace_log.h"
#include "model/tokenizer/tokenizer.h"
#include "plan/policy_times.h"

namespace lamina::coordinator {

class Engine {
 public:
  // The tokenizer must outlive the engine.
  Engine(const EngineOptions& options, const model::Tokenizer& tokenizer, const Clock& clock);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- Clients ---
  // The request runs until its sink's OnDone(). `key` names it for Cancel().
  void Submit(GenerateSpec spec, uint64_t key, std::shared_ptr<RequestSink> sink);
  void Cancel(uint64_t key);
  // Logs and counts a request that was refused before it was submitted, as those are that Submit()
  // refuses. Any thread; at once.
  void NoteRefused(const std::string& request_id, const absl::Status& status);
  // By id. `done` gets kNotFound when there is none.
  void CancelById(const std::string& request_id, std::function<void(const absl::Status&)> done);
  static uint64_t NewKey();

  // --- Nodes ---
  // `port` must live until NodeLeft() of the same name and port has been posted. It is refused by
  // NodePort::Refuse(): an unknown name, one that is taken, another version or model.
  void NodeJoined(const NodeHello& hello, std::shared_ptr<NodePort> port);
  void NodeLeft(const NodeSource& from);
  // Nothing happens where `from` is not, or no longer, accepted.
  // It was told to stop, and asks to be let go: its stream ends then.
  void NodeLeaving(const NodeSource& from);
  void NodePrepared(const NodeSource& from, uint64_t epoch, control::PreparedNode prepared);
  void NodeReady(const NodeSource& from, uint64_t epoch);
  // The answer to NodePort::LoadLayers(): what was measured, if that was asked for.
  void NodeLoaded(const NodeSource& from, absl::StatusOr<plan::PolicyTimes> times);
  // The error names the peer that the node blames, if any (control/blame.h).
  void NodeFault(const NodeSource& from, uint64_t epoch, const absl::Status& status);
  void NodeLinks(const NodeSource& from, uint64_t epoch, std::vector<control::LinkReport> links);
  void NodeStatus(const NodeSource& from, double busy_share,
                  const telemetry::NodeCounters& counters);
  void StepDone(const NodeSource& from, plan::StepResult result);
  void NodeSpilled(const NodeSource& from, const plan::SpillReport& report);

  // --- Members (member_changes.h) ---
  // What has become of it, in words; errors of MemberChanges::Add() and Drain().
  void AddNode(const std::string& name,
               std::function<void(const absl::StatusOr<std::string>&)> done);
  void DrainNode(const std::string& name,
                 std::function<void(const absl::StatusOr<std::string>&)> done);

  EngineStatus GetStatus();
  void GetStatus(std::function<void(const EngineStatus&)> done);

  // --- Timelines ---
  // Everybody records for `length`.
  void StartTrace(Nanos length, std::function<void()> done);
  // The coordinator's own part; the nodes are asked for theirs, as TraceLog::Collect() says.
  void CollectTrace(std::function<void(EngineTrace)> done);
  // Errors: kUnavailable  the node's part has not come yet.
  //         kNotFound     there is no such node.
  void ReadTrace(const std::string& name, std::function<void(absl::StatusOr<TracedNode>)> done);
  void NodeTrace(const NodeSource& from, control::NodeTrace trace);
  void NodeClock(const NodeSource& from, const ClockSample& sample);

  // Refuses new requests, lets running ones finish, then calls `done` in the engine's thread: it
  // must not wait for calls that may wait for this thread.
  void Drain(std::function<void()> done);

  // Safe to read from any thread.
  const RequestMetrics& metrics() const;

  const core::SchedulerOptions& limits() const;
  const std::string& lossy() const;  // EngineOptions::lossy
  bool has_both_forms() const;       // Requests may choose the form of K and V.
  const std::vector<PreparedPolicy>& policies() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lamina::coordinator
