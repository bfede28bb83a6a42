// SPDX-License-Identifier: Apache-2.0
//
// What clusters there are, what goes wrong in them, and when it must be over.

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "coordinator/core/retry_times.h"
#include "tests/sim/membership_world.h"

namespace lamina::sim {
namespace {

constexpr uint32_t kComputeMost = 6;
constexpr uint32_t kMemoryMost = 5;

// From the last fault on: the longest pause of what was set aside, and time to come back, to form
// an epoch and to do a step.
constexpr Nanos kHealedWithin = core::RetryTimes::kMost + Seconds(120);
// While one memory node is broken: the longest pause of what was set aside before on its words, for
// a memory node that others need and then for the only compute node, and as much again.
constexpr Nanos kServesWithoutWithin = 6 * core::RetryTimes::kMost;
// A step that was planned before it broke.
constexpr Nanos kStepMost = Seconds(15);
// Words on their way have arrived, and processes have come back.
constexpr Nanos kSettled = Seconds(12);

std::vector<core::Member> DrawCompute(bool policy_auto, Prng& random) {
  const auto count = static_cast<uint32_t>(1 + random.Below(kComputeMost));
  const bool stages = random.Chance(0.4);
  const bool prefill = random.Chance(0.3);
  std::vector<core::Member> nodes;
  for (uint32_t replica = 0; nodes.size() < count; ++replica) {
    const auto left = static_cast<uint32_t>(count - nodes.size());
    const uint32_t parts = stages && random.Chance(0.6)
                               ? std::min(left, 2 + static_cast<uint32_t>(random.Below(2)))
                               : 1;
    const bool for_prompts = prefill && replica > 0 && random.Chance(0.5);
    for (uint32_t part = 0; part < parts; ++part) {
      nodes.push_back({.name = absl::StrCat("c", nodes.size()),
                       .prefill = for_prompts,
                       .replica = parts > 1 ? absl::StrCat("r", replica) : "",
                       .holds_kv = policy_auto});
    }
  }
  return nodes;
}

}  // namespace

MembershipOwner::Options MembershipWorld::Draw(const MembershipSimOptions& options, Prng& random) {
  MembershipOwner::Options drawn{.bug = options.bug};
  drawn.policy_auto = random.Chance(0.25);
  drawn.transports = random.Chance(0.3) ? 2 : 1;
  drawn.expected = DrawCompute(drawn.policy_auto, random);
  const auto memory = static_cast<uint32_t>(1 + random.Below(kMemoryMost));
  for (uint32_t i = 0; i < memory; ++i) {
    drawn.expected.push_back({.name = absl::StrCat("m", i), .is_memory = true});
  }
  drawn.kv_least = !drawn.policy_auto && memory > 1 && random.Chance(0.2) ? 2 : 1;
  return drawn;
}

MembershipWorld::MembershipWorld(const MembershipSimOptions& options)
    : random_(options.seed), options_(Draw(options, random_)), owner_(options_, *this) {
  for (const core::Member& member : options_.expected) {
    nodes_[member.name].role = member;
  }
  for (uint32_t& weight : weights_) {
    weight = std::array<uint32_t, 4>{0, 1, 1, 4}[random_.Below(4)];
  }
  weights_[static_cast<size_t>(Trouble::kDies)] += 1;  // One at least has some.
  gap_most_ = std::array<Nanos, 3>{Seconds(2), Seconds(5), Seconds(10)}[random_.Below(3)];
  in_any_order_ = random_.Chance(0.4);
  // Some are troubled for longer than a thread may prepare an epoch.
  troubled_until_ =
      random_.Chance(0.1) ? Between(Seconds(150), Seconds(400)) : Between(Seconds(15), Seconds(75));
  one_breaks_ = random_.Chance(0.35);
  quiet_for_ = random_.Chance(0.2) ? core::RetryTimes::kMost + Seconds(10) : Seconds(30);
}

MembershipWorld::SimNode* MembershipWorld::Any(bool memory_only) {
  std::vector<SimNode*> nodes;
  for (auto& [name, node] : nodes_) {
    if (!node.gone && (node.role.is_memory || !memory_only)) {
      nodes.push_back(&node);
    }
  }
  return nodes.empty() ? nullptr : nodes[random_.Below(nodes.size())];
}

void MembershipWorld::MakeTrouble() {
  if (stage_ != Stage::kTroubled) {
    return;
  }
  uint32_t all = 0;
  for (const uint32_t weight : weights_) {
    all += weight;
  }
  auto drawn = static_cast<uint32_t>(random_.Below(all));
  uint32_t trouble = 0;
  while (drawn >= weights_[trouble]) {
    drawn -= weights_[trouble++];
  }
  // Most are short; some outlast any patience.
  const Nanos most = random_.Chance(0.3) ? Seconds(60) : Seconds(12);
  Begin(static_cast<Trouble>(trouble),
        std::min(troubled_until_, now_ + Between(Millis(200), most)));
  At(now_ + Between(Millis(100), gap_most_), [this] { MakeTrouble(); });
}

void MembershipWorld::Begin(Trouble trouble, Nanos until) {
  SimNode& node = *Any();
  const std::string& name = node.role.name;
  Trace(absl::StrCat("trouble ", static_cast<int>(trouble), " of ", name, " until ",
                     ToSeconds(until), " s"));
  switch (trouble) {
    case Trouble::kDies:
      return Die(node, Between(Millis(100), std::max(Millis(200), until - now_)));
    case Trouble::kHangs:
      if (now_ >= node.hangs_until) {
        node.hangs_until = until;
      }
      return;
    case Trouble::kSticks:
      // Some outlast the limit of what a thread works at.
      node.sticks_until = random_.Chance(0.5) ? until : now_ + Between(Seconds(31), Seconds(200));
      return;
    case Trouble::kDeaf: {
      const std::string other = Any()->role.name;
      deaf_[{name, other}] = until;
      if (random_.Chance(0.5)) {
        deaf_[{other, name}] = until;
      }
      return;
    }
    case Trouble::kUnreachable:
      Any(/*memory_only=*/true)->unreachable_until = until;
      return;
    case Trouble::kFails:
      node.fails_until = until;
      node.fails_late = random_.Chance(0.5);
      return;
    case Trouble::kNotPrepared:
      node.not_prepared_until = until;
      return;
    case Trouble::kComesAndGoes:
      node.comes_and_goes_until = until;
      return Die(node, Between(Millis(100), Seconds(1)));
    case Trouble::kStops:
      for (auto& [who, told] : nodes_) {
        if (told.stream != 0 && now_ >= told.hangs_until && random_.Chance(0.4)) {
          Say(told, [this](const SimSource& from) { owner_.Leaving(from); });
        }
      }
      return;
    case Trouble::kMembers:
      return ChangeMembers();
    case Trouble::kPolicy:
      owner_.WantKvOnCompute(random_.Chance(0.5));
      return;
    case Trouble::kTransport:
      transport_broken_until_ = until;
      return;
    case Trouble::kSlow:
      node.slow = std::array<int64_t, 3>{1, 4, 30}[random_.Below(3)];
      return;
  }
}

// A memory node is added, or drained. Not with policy auto, which refuses the one.
void MembershipWorld::ChangeMembers() {
  if (options_.policy_auto) {
    return;
  }
  const std::string added = absl::StrCat("m", nodes_.size());  // There is none of that name.
  uint32_t memory = 0;
  for (const auto& [name, node] : nodes_) {
    memory += node.role.is_memory && !node.gone ? 1 : 0;
  }
  if (memory < kMemoryMost && random_.Chance(0.5)) {
    nodes_[added].role = {.name = added, .is_memory = true};
    Post([this, added] { owner_.Expect(added); });
    At(now_ + Between(Seconds(1), Seconds(10)), [this, added] { Start(added); });
    return;
  }
  Post([this, name = Any(/*memory_only=*/true)->role.name] {
    if (owner_.Drain(name)) {
      nodes_.at(name).gone = true;
      At(now_ + Between(Seconds(1), Seconds(10)), [this, name] { Start(name, /*drained=*/true); });
    }
  });
}

// Nothing is wrong from now on. Who is away comes back.
void MembershipWorld::Heal() {
  deaf_.clear();
  transport_broken_until_ = now_;
  for (auto& [name, node] : nodes_) {
    node.slow = 1;
    for (Nanos* until :
         {&node.hangs_until, &node.sticks_until, &node.fails_until, &node.not_prepared_until,
          &node.comes_and_goes_until, &node.unreachable_until}) {
      *until = std::min(*until, now_);
    }
    if (node.stream == 0) {
      At(now_ + Between(0, Seconds(2)), [this, who = name] { Start(who); });
    }
  }
}

bool MembershipWorld::AllServe() const {
  const core::Membership& membership = owner_.membership();
  const uint64_t epoch = membership.epoch();
  if (membership.phase() != core::MembershipPhase::kServing || membership.epoch_ended() ||
      owner_.last_step_epoch() != epoch || owner_.last_step() < now_ - Seconds(5)) {
    return false;
  }
  size_t compute = 0;
  size_t memory = 0;
  for (const core::Member& member : membership.all()) {
    if (!membership.IsThere(member.name)) {
      return false;
    }
    ++(member.is_memory ? memory : compute);
  }
  return membership.compute_members().size() == compute &&
         membership.memory_members().size() == (membership.local() ? 0 : memory);
}

// It is called once a second.
void MembershipWorld::Watch() {
  const core::Membership& membership = owner_.membership();
  const Nanos since = now_ - stage_since_;
  Stage next = stage_;
  switch (stage_) {
    case Stage::kTroubled:
      if (now_ < troubled_until_) {
        return;
      }
      Trace("heals");
      Heal();
      next = Stage::kHealed;
      // Without it the others must be able to form an epoch.
      if (one_breaks_) {
        size_t memory = 0;
        for (const core::Member& member : membership.all()) {
          memory += member.is_memory ? 1 : 0;
        }
        if (memory > options_.kv_least) {
          SimNode& broken = *Any(/*memory_only=*/true);
          (random_.Chance(0.5) ? broken.unreachable_until : broken.fails_until) = INT64_MAX;
          broken.fails_late = false;
          Trace(absl::StrCat("breaks ", broken.role.name));
          next = Stage::kOneBroken;
        }
      }
      break;
    case Stage::kOneBroken:
      if (owner_.last_step() > stage_since_ + kStepMost) {
        ++report_.without_one;
        Trace("heals all");
        Heal();
        next = Stage::kHealed;
      } else if (since > kServesWithoutWithin) {
        return Fail(
            absl::StrCat("one memory node is broken and nothing serves: ", membership.Describe()));
      }
      break;
    case Stage::kHealed:
      if (since > kSettled && AllServe()) {
        Trace("all serve");
        quiet_epoch_ = membership.epoch();
        next = Stage::kQuiet;
      } else if (since > kHealedWithin) {
        return Fail(absl::StrCat("nothing fails and not all serve: ", membership.Describe()));
      }
      break;
    case Stage::kQuiet:
      if (membership.epoch() != quiet_epoch_) {
        return Fail("nothing fails, all serve, and another epoch begins");
      }
      if (since > quiet_for_) {
        if (owner_.last_step() < now_ - kStepMost) {
          return Fail("all serve and no step is done");
        }
        next = Stage::kDone;
      }
      break;
    case Stage::kDone:
      return;
  }
  if (next != stage_) {
    stage_ = next;
    stage_since_ = now_;
  }
}

}  // namespace lamina::sim
