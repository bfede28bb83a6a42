// SPDX-License-Identifier: Apache-2.0
//
// MembershipOwner: what coordinator/cluster_members.cc, and the engine around it, do with
// core::Membership, in their order of calls, without what they do with nodes otherwise. A turn
// begins with the time, takes the events that have come, leaves out who is silent or stuck, lets go
// who asks for it, begins an epoch of another policy, and forms the epochs that are due. What a
// node says counts while it is attached over that very stream.
//
// Threading: one thread.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/thread_beat.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/silence.h"
#include "coordinator/core/thread_watch.h"
#include "coordinator/core/transport_choice.h"
#include "tests/sim/membership_auditor.h"
#include "tests/sim/membership_under_test.h"

namespace lamina::sim {

// Who speaks: a node, over a stream of its own.
struct SimSource {
  std::string name;
  uint64_t stream = 0;
};

// The node cannot go on in `epoch`, and blames `peer`, or nobody.
struct SimFault {
  uint64_t epoch = 0;
  std::string peer = {};
  bool transport = false;  // It is the transport that does not work.
};

// The configuration of an epoch.
struct SimEpoch {
  uint64_t epoch = 0;
  std::vector<std::string> compute;
  std::vector<std::string> memory;
  bool first_transport = true;  // The first one of the list.
};

// How the owner speaks to nodes; nothing is delivered before the call returns.
class SimPorts {
 public:
  virtual ~SimPorts() = default;
  virtual void Configure(const SimSource& to, std::shared_ptr<const SimEpoch> epoch) = 0;
  virtual void Connect(const SimSource& to, uint64_t epoch) = 0;
  // It has no part in the epoch.
  virtual void Leave(const SimSource& to) = 0;
  // The node's stream ends.
  virtual void End(const SimSource& to) = 0;
  // Steps of the epoch that serves are planned; called at each turn.
  virtual void PlanSteps(uint64_t epoch) = 0;
  virtual void Trace(absl::string_view line) = 0;
};

class MembershipOwner {
 public:
  struct Options {
    std::vector<core::Member> expected;
    MembershipBug bug = MembershipBug::kNone;
    uint32_t transports = 1;  // In the cluster file's list.
    // Where KV is, is chosen for each epoch.
    bool policy_auto = false;
    // An epoch can be formed of no fewer nodes that hold KV.
    uint32_t kv_least = 1;
  };
  // How often something happened.
  struct Counts {
    uint64_t epochs = 0;
    uint64_t epochs_local = 0;
    uint64_t serving = 0;
    uint64_t steps = 0;
    uint64_t refused = 0;
    uint64_t unknown = 0;  // Those that nobody expected any more.
    uint64_t silent = 0;
    uint64_t stuck = 0;
    uint64_t let_go = 0;
    uint64_t added = 0;
    uint64_t drained = 0;
    uint64_t late_reports = 0;
    uint64_t passed_over = 0;  // Transports and policies.
    uint64_t tried_again = 0;
    uint64_t cannot_form = 0;
    uint64_t cluster_waits = 0;  // Nobody was to blame for the faults.
  };

  // `nodes` must outlive this.
  MembershipOwner(const Options& options, SimPorts& nodes);

  // To the next turn.
  void Post(std::function<void()> event) { inbox_.push_back(std::move(event)); }
  void Turn(Nanos now);

  // --- Events, to be posted ---
  void Joined(const SimSource& from);
  void Left(const SimSource& from);
  void Prepared(const SimSource& from, uint64_t epoch);
  void Ready(const SimSource& from, uint64_t epoch);
  void Fault(const SimSource& from, const SimFault& fault);
  void StepDone(const SimSource& from, uint64_t epoch);
  void Status(const SimSource& from, ThreadActivity activity, uint64_t beats);
  // The node was told to stop.
  void Leaving(const SimSource& from);
  // A memory node of that name may join.
  void Expect(const std::string& name);
  // A memory node leaves for good; false: the others are too few, or the members change.
  bool Drain(const std::string& name);
  // Where the load wants KV to be.
  void WantKvOnCompute(bool local) { wants_local_ = local; }

  const core::Membership& membership() const { return membership_.get(); }
  const MembershipAuditor& auditor() const { return auditor_; }
  const Counts& counts() const { return counts_; }
  // When and in which epoch the last step was done.
  Nanos last_step() const { return last_step_; }
  uint64_t last_step_epoch() const { return last_step_epoch_; }

 private:
  bool IsFrom(const SimSource& from) const;
  void Audit(const MembershipEvent& event);
  void Remove(const std::string& name);
  void LeaveOut(const std::string& name);
  void DropLostNodes();
  void LetGo();
  void WatchLoad();
  void Advance();
  void Configure();
  void Connect();
  bool PassOver(const std::string& name, const SimFault& fault);
  bool StartAnew(const std::string& name, uint64_t epoch);
  bool PlaceOfKv() const;
  bool HasMemoryNodes() const;
  void ForgetFailures();
  std::vector<std::string> MemberNames() const;

  const Options options_;
  SimPorts& nodes_;
  MembershipUnderTest membership_;
  MembershipAuditor auditor_;
  core::TransportChoice transport_;
  std::map<std::string, uint64_t> attached_;  // Streams by name.
  core::NodeSilence silence_;
  core::ThreadWatch threads_;
  std::vector<SimSource> leaving_;
  Nanos first_leaving_ = 0;
  bool wants_local_ = false;
  std::optional<bool> left_out_;  // The place of KV that could not be prepared.
  std::vector<std::function<void()>> inbox_;
  Nanos now_ = 0;
  Nanos last_step_ = 0;
  uint64_t last_step_epoch_ = 0;
  Counts counts_;
};

}  // namespace lamina::sim
