// SPDX-License-Identifier: Apache-2.0
//
// NodePort: how the engine speaks to one attached node. The cluster service implements it.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "control/node_handler.h"
#include "plan/step_plan.h"

namespace lamina::coordinator {

// A step's plan on its way to several nodes, which all get the same bytes.
//
// Threading: one thread.
class OutgoingPlan {
 public:
  // The plan must outlive this.
  explicit OutgoingPlan(const plan::StepPlan& plan) : plan_(plan) {}
  OutgoingPlan(const OutgoingPlan&) = delete;
  OutgoingPlan& operator=(const OutgoingPlan&) = delete;

  const plan::StepPlan& plan() const { return plan_; }

  // What `encode` makes of it: made for the first port that asks, and kept for the others.
  std::shared_ptr<const std::string> Encoded(std::string (*encode)(const plan::StepPlan&)) const {
    if (encoded_ == nullptr) {
      encoded_ = std::make_shared<const std::string>(encode(plan_));
    }
    return encoded_;
  }

 private:
  const plan::StepPlan& plan_;
  mutable std::shared_ptr<const std::string> encoded_;
};

// Threading: called from the engine's thread; calls do not wait on the network.
class NodePort {
 public:
  virtual ~NodePort() = default;
  // The node, a stage or shard, loads these layers, with `measure` measures what it runs of them
  // for policy auto, and says when it has: Engine::NodeLoaded().
  virtual void LoadLayers(const plan::Stage& stage, bool measure) = 0;
  virtual void Configure(const plan::EpochConfig& config) = 0;
  virtual void Connect(const plan::EpochPeers& peers) = 0;
  // The node has no part in the current epoch; `why` it is left out, or empty.
  virtual void Leave(const std::string& why) = 0;
  virtual void SendPlan(const OutgoingPlan& plan) = 0;
  // The node records its timeline for so long.
  virtual void StartTrace(Nanos length) = 0;
  // The node sends what it has recorded, with this id.
  virtual void CollectTrace(uint64_t id) = 0;
  // The node tells its clock.
  virtual void PingClock() = 0;
  // Tells the node why it cannot take part, and ends the stream.
  virtual void Refuse(const absl::Status& why) = 0;
  // The node was drained: it ends, and does not come back. Ends the stream.
  virtual void Dismiss() = 0;
  // Ends the stream; the node may come back on a new one.
  virtual void End() = 0;
};

// Who says something of a node: the name that it claims, and the port over which it speaks. What
// comes over another port than the one that the node was accepted with is dropped: before it was
// accepted, after it was refused or left, or from a second one of its name.
struct NodeSource {
  std::string name;
  const NodePort* port = nullptr;  // Compared, never called.
};

// What a node says in its Hello, beyond NodeIdentity.
struct NodeHello {
  control::NodeIdentity identity;
  std::string version;
  int32_t pid = 0;
};

}  // namespace lamina::coordinator
