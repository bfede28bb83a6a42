// SPDX-License-Identifier: Apache-2.0
//
// LocalLink: both ends of one node's control stream, without gRPC: what the engine says waits in a
// queue, from which one thread hands it to the node, as the stream's reader does; what the node
// says goes straight to the engine, which queues it itself.
//
// Threading: NodePort calls from the engine's thread; the rest from the test's.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "common/clock.h"
#include "control/node_handler.h"
#include "coordinator/engine.h"
#include "coordinator/node_port.h"

namespace lamina::test_support {

class LocalLink final : public coordinator::NodePort {
 public:
  // All references must outlive Close(). Every message waits for `delay` before it is handed on.
  // `times`: what the node says it has measured of layers that it has loaded; none: what it
  // measures.
  LocalLink(std::string name, control::NodeHandler& handler, coordinator::Engine& engine,
            Nanos delay, plan::PolicyTimes times = {});
  ~LocalLink() override;
  LocalLink(const LocalLink&) = delete;
  LocalLink& operator=(const LocalLink&) = delete;

  // Drops what is queued; returns when nothing of it runs any more.
  void Close();

  // Return the last Configure() and what the node answered.
  plan::EpochConfig config() const;
  std::string region() const;
  // Returns what Refuse() was told; empty for none.
  std::string refused() const;

  void LoadLayers(const plan::Stage& stage, bool measure) override;
  void Configure(const plan::EpochConfig& config) override;
  void Connect(const plan::EpochPeers& peers) override;
  void Leave(const std::string& why) override;
  void SendPlan(const coordinator::OutgoingPlan& plan) override;
  void StartTrace(Nanos length) override;
  void CollectTrace(uint64_t id) override;
  void PingClock() override;
  void Refuse(const absl::Status& why) override;
  void Dismiss() override { Leave("drained"); }
  void End() override {}  // The engine forgets the node by itself.

 private:
  coordinator::NodeSource source() const { return {.name = name_, .port = this}; }
  void Post(std::function<void()> message);
  void Loop();
  void HandleConfigure(const plan::EpochConfig& config);
  void HandleConnect(const plan::EpochPeers& peers);

  const std::string name_;
  control::NodeHandler& handler_;
  coordinator::Engine& engine_;
  const Nanos delay_;
  const plan::PolicyTimes times_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  std::deque<std::function<void()>> queue_;
  bool closed_ = false;
  plan::EpochConfig config_;
  std::string region_;
  std::string refused_;

  std::thread thread_;
};

// What one node reports. Nothing reaches the engine while the node is detached.
class LocalReporter final : public control::NodeReporter {
 public:
  LocalReporter(std::string name, coordinator::Engine& engine)
      : source_{.name = std::move(name)}, engine_(engine) {}

  // Sets the port of the link that is attached; null: none is.
  void set_port(const coordinator::NodePort* port);

  void ReportResult(plan::StepResult result) override;
  void ReportFault(uint64_t epoch, const absl::Status& status) override;
  void ReportSpill(const plan::SpillReport& report) override;
  void ReportLinks(uint64_t epoch, std::vector<control::LinkReport> links) override;

 private:
  coordinator::NodeSource source_;  // Guarded by mutex_.
  coordinator::Engine& engine_;
  std::mutex mutex_;
};

}  // namespace lamina::test_support
