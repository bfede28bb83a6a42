// SPDX-License-Identifier: Apache-2.0
//
// SequenceLife: the sequences and their states, from submission to end; the queue, and the ties
// between forks. See sequence.h for the states.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "coordinator/core/kept_sequences.h"
#include "coordinator/core/kept_tails.h"
#include "coordinator/core/lanes.h"
#include "coordinator/core/node_residents.h"
#include "coordinator/core/prefix_cache.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/sequence.h"
#include "coordinator/core/sequence_kv.h"
#include "coordinator/core/sequence_request.h"
#include "coordinator/core/spills.h"
#include "coordinator/core/step_borders.h"

namespace lamina::core {

class SequenceLife {
 public:
  // Where sequences run, and what they hold.
  struct Places {
    Lanes& lanes;
    NodeResidents& residents;
    StepBorders& borders;
    SequenceKv& kv;
    PrefixCache& cache;
    Spills& spills;
    KeptSequences& kept;
    KeptTails& tails;

    // Has what nobody runs with give up slots of the node, until so many are free or come free.
    void MakeRoom(uint32_t node, uint64_t slots) const {
      cache.MakeRoom(node, slots);
      kept.MakeRoom(node, slots);
    }
  };
  SequenceLife(ServiceBefore before, const Places& places);

  bool empty() const { return sequences_.empty(); }
  const SequenceQueue& waiting() const { return waiting_; }
  const SequenceQueue& draining() const { return draining_; }
  uint64_t preemptions() const { return preemptions_; }
  bool Before(Sequence& a, Sequence& b) const { return before_(&a, &b); }  // In service order.
  Sequence* Find(plan::SequenceId id);
  const Sequence* Find(plan::SequenceId id) const;
  // As above, by its `seat`, which may be another one's by now: without a search.
  Sequence* Find(plan::SequenceId id, uint32_t seat) const {
    const bool there = seat < seats_.size() && seats_[seat].id == id;
    return there ? seats_[seat].sequence : nullptr;
  }
  // Fetches what taking a token of who has this seat reads, if it is taken.
  void Prefetch(uint32_t seat) const {
    if (const Sequence* sequence = seats_[seat].sequence; sequence != nullptr) {
      sequence->Prefetch();
      __builtin_prefetch(&sequence->committed);
    }
  }

  // A new sequence, which waits. Requires: the id is not 0 and unknown.
  void Submit(SequenceRequest request) {
    std::vector<TokenId> generated = std::exchange(request.generated, {});
    Enter(std::move(request), ReserveArrivals(1), std::move(generated));
  }
  // So many places in the order of arrival that follow each other; the first one.
  uint64_t ReserveArrivals(uint32_t count);
  // One that waits at a place reserved for it, with tokens that another one has generated.
  // Requires: the id is not 0 and unknown; nobody else is at that place.
  Sequence& Enter(SequenceRequest request, uint64_t arrival, std::vector<TokenId> committed);

  // By which path sequences attend whose requests name none, from their next Begin() on.
  void SetDefaultPath(plan::AttentionPath path) { default_path_ = path; }
  plan::AttentionPath PathOf(const SequenceRequest& request) const {
    return request.path.value_or(default_path_);
  }

  // One that waits begins its prefill in this lane; Settle() follows once it has its slots.
  void Begin(Sequence& sequence, uint32_t lane, uint32_t node);
  void Settle(Sequence& sequence);
  // The fork has no prefill of its own: the parent's last chunk samples its first token.
  void Attach(Sequence& parent, Sequence& fork);
  // Its first token is there.
  void Decode(Sequence& sequence);
  // Takes a running sequence out of its lane; it waits again once the step with its leave is done.
  // So do forks that wait for a chunk of it that never comes: they are prefilled on their own.
  void Preempt(Sequence& sequence);
  // As above, for one whose K and V go to the spill tier. Requires: Spills::Fits().
  void Spill(Sequence& sequence);
  // The step with their leaves is done. Those that have ended meanwhile are passed over.
  void WaitAgain(const std::vector<plan::SequenceId>& drained);
  // Takes a sequence out of wherever it is and forgets it.
  void End(Sequence& sequence);

  // Nodes forget their tables: all that ran wait in their old places. They remember `lost`, the
  // names of nodes that were lost, if any; those that remember too many end.
  void LeaveEpoch(const std::string& lost, Events& events);
  // Ends those of the waiting that no memory node could hold alone.
  void EndLongerThan(const SchedulerOptions& options, Events& events);
  void FailAll(const absl::Status& status, Events& events);
  // Moves those that were preempted since the last call, and have not ended, to `events`.
  void TellPreempted(Events& events);

  // Errors: kInternal names the first broken invariant.
  absl::Status Audit() const;
  std::vector<Sequence*> Running() const;

 private:
  struct Seat {
    plan::SequenceId id = 0;  // 0: free.
    Sequence* sequence = nullptr;
  };
  void Forget(Sequence& sequence);
  std::vector<Sequence*> TakenFromNodes() const;
  void Keep(Sequence& sequence);
  void TakeOut(Sequence& sequence);
  // Cuts the ties between a sequence, the parent it waits for and the forks that wait for it, which
  // are returned.
  std::vector<Sequence*> Detach(Sequence& sequence);
  absl::Status AuditSequence(const Sequence& sequence) const;

  ServiceBefore before_;
  Places places_;
  plan::AttentionPath default_path_ = plan::AttentionPath::kRemote;
  absl::btree_map<plan::SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Seat> seats_;
  std::vector<uint32_t> seats_free_;
  SequenceQueue waiting_;
  SequenceQueue draining_;
  std::vector<plan::SequenceId> preempted_;  // Not yet told.
  uint64_t arrivals_ = 0;
  uint64_t preemptions_ = 0;
};

// How many of the queue another coordinator had accepted.
inline size_t AcceptedBefore(const SequenceQueue& queue) {
  const auto is_one = [](const Sequence* waits) { return waits->request.accepted_before; };
  return static_cast<size_t>(absl::c_count_if(queue, is_one));
}

// Whether sequence `id`, of the path, may join as far as tails of open blocks go, if its K and V
// are INT8: nodes may not have given up those of sequences that have left, nor those that go to a
// spill tier, and it must not take one that another sequence goes on from. Those of other forms
// count as if they had any.
inline bool HasTail(const SchedulerOptions& options, const SequenceLife::Places& places,
                    plan::AttentionPath path, plan::SequenceId id) {
  return options.FormOf(path) == KvForm::kBF16 ||
         (places.lanes.running() + places.borders.leaving() + places.spills.tails_leaving() <
              options.int8_tails &&
          (places.tails.Has(id) || places.tails.may_take_any()));
}

}  // namespace lamina::core
