// SPDX-License-Identifier: Apache-2.0
//
// MembershipWorld: the production membership between simulated nodes and a network, on a virtual
// clock. One queue of events ordered by (time, sequence number); everything random comes from the
// seed.
//
// A cluster has 1 to 6 compute nodes, some of them stages of a replica or for prompts alone, and 1
// to 5 memory nodes. First much goes wrong: nodes die and come back as other processes, hang, are
// slow, do not hear each other, fail by themselves, at every step or when they prepare, are told
// to stop, added and drained; words are late, of some nodes in any order, and blame the wrong one
// at times. In some worlds then one memory node alone is broken, and steps must be done without it.
// In the end nothing fails, and within a bounded time all nodes must serve, and go on so without
// another epoch.
//
// Threading: one thread.   Determinism: same options, same trace, hence same trace hash.

#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/philox.h"
#include "tests/sim/membership_owner.h"

namespace lamina::sim {

struct MembershipSimOptions {
  uint64_t seed = 0;
  MembershipBug bug = MembershipBug::kNone;
};

struct MembershipSimReport {
  std::string failure;            // Empty: passed.
  std::deque<std::string> trace;  // The last events.
  uint64_t trace_hash = 0;
  uint64_t events = 0;
  MembershipOwner::Counts counts;
  uint64_t set_aside = 0;
  uint64_t held_back = 0;
  uint64_t without_one = 0;  // Worlds that served without a broken memory node.
};

class MembershipWorld : private SimPorts {
 public:
  explicit MembershipWorld(const MembershipSimOptions& options);
  MembershipSimReport Run();

 private:
  struct Event {
    Nanos time = 0;
    uint64_t sequence = 0;
    std::function<void()> happen;
    bool operator<(const Event& other) const {  // A queue has the earliest on top.
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };
  // What goes wrong, and how often compared with the others.
  enum class Trouble : uint8_t {
    kDies,
    kHangs,
    kSticks,  // The data thread alone.
    kDeaf,    // A node does not hear another one, or neither hears the other.
    kUnreachable,
    kFails,        // At every step, by itself.
    kNotPrepared,  // It cannot prepare.
    kComesAndGoes,
    kStops,  // Some are told to stop together.
    kMembers,
    kPolicy,
    kTransport,
    kSlow,
  };
  static constexpr uint32_t kTroubles = 13;
  enum class Stage : uint8_t { kTroubled, kOneBroken, kHealed, kQuiet, kDone };

  // A node, and what its process knows.
  struct SimNode {
    core::Member role;
    uint64_t stream = 0;  // 0: no process runs, or it is about to open one.
    std::shared_ptr<const SimEpoch> epoch = nullptr;  // That it is configured for.
    bool works = false;   // It has opened all regions, and has not failed.
    bool doubts = false;  // It waits for a peer.
    uint64_t job = 0;     // What it does; what was begun before is dropped.
    uint64_t beats = 0;
    int64_t slow = 1;
    bool gone = false;  // It was drained. Its process may come again, and is refused.
    bool fails_late = false;
    Nanos told = 0;  // When the last words to it arrive,
    Nanos said = 0;  // and its own.
    Nanos hangs_until = 0;
    Nanos sticks_until = 0;
    Nanos fails_until = 0;
    Nanos not_prepared_until = 0;
    Nanos comes_and_goes_until = 0;
    Nanos unreachable_until = 0;
  };

  // --- SimPorts ---
  void Configure(const SimSource& to, std::shared_ptr<const SimEpoch> epoch) override;
  void Connect(const SimSource& to, uint64_t epoch) override;
  void Leave(const SimSource& to) override;
  void End(const SimSource& to) override;
  void PlanSteps(uint64_t epoch) override;
  void Trace(absl::string_view line) override;

  // --- Time and the network ---
  void At(Nanos time, std::function<void()> happen);
  Nanos Between(Nanos least, Nanos most);
  Nanos Delay();
  void Post(std::function<void()> event);
  void Say(SimNode& node, std::function<void(const SimSource&)> word);
  void Tell(const SimSource& to, std::function<void(SimNode&)> what);
  void Hear(const SimSource& to, const std::function<void(SimNode&)>& what);

  // --- Nodes ---
  // A process of the node; one that was drained begins it in vain.
  void Start(const std::string& name, bool drained = false);
  void Die(SimNode& node, Nanos down);
  void EndEpoch(SimNode& node);
  void Work(const SimSource& who, uint64_t job, Nanos at,
            const std::function<void(SimNode&)>& what);
  void Prepare(SimNode& node);
  void Open(SimNode& node);
  void EndStep(uint64_t epoch);
  void Doubt(SimNode& node, const std::string& peer);
  void Report(SimNode& node, SimFault fault);
  std::vector<std::string> Peers(const SimNode& node) const;
  bool CanWork(const SimNode& node, uint64_t epoch) const;
  bool Hears(const SimNode& node, const SimNode& peer) const;

  // --- What goes wrong, and when it must be over ---
  static MembershipOwner::Options Draw(const MembershipSimOptions& options, Prng& random);
  void MakeTrouble();
  void Begin(Trouble trouble, Nanos until);
  void ChangeMembers();
  SimNode* Any(bool memory_only = false);
  void Heal();
  void Idle();
  void Watch();
  bool AllServe() const;
  void Fail(absl::string_view what);

  Prng random_;
  const MembershipOwner::Options options_;
  MembershipOwner owner_;
  std::map<std::string, SimNode> nodes_;
  std::map<std::pair<std::string, std::string>, Nanos> deaf_;  // Until when; by who, and to whom.
  std::priority_queue<Event> queue_;
  Nanos now_ = 0;
  uint64_t events_ = 0;
  uint64_t streams_ = 0;
  bool turn_due_ = false;
  uint64_t steps_of_ = 0;  // The last epoch of which steps were planned.
  std::array<uint32_t, kTroubles> weights_ = {};
  Nanos gap_most_ = 0;
  bool in_any_order_ = false;
  Nanos transport_broken_until_ = 0;
  Stage stage_ = Stage::kTroubled;
  Nanos stage_since_ = 0;
  Nanos troubled_until_ = 0;
  bool one_breaks_ = false;
  uint64_t quiet_epoch_ = 0;
  Nanos quiet_for_ = 0;
  MembershipSimReport report_;
};

}  // namespace lamina::sim
