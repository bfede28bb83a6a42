// SPDX-License-Identifier: Apache-2.0
//
// Sequence: what the scheduler knows of one sequence, for the parts of the scheduler and for its
// strategies, which read it. SequenceLife changes its state, Lanes and NodeResidents where it runs.
//
// A sequence is in one place at a time:
//   waiting    in the queue; holds no slot on any node. Its K and V may be in a spill tier.
//   prefilling in its lane until the step of its last chunk is done. One whose K and V are read
//              back from a spill tier has no work before they are there, and one row then.
//   decoding   in its lane; one row in every step planned.
//   draining   preempted; its leave is planned or about to be. Results of steps planned before
//   still
//              count. Waits again once the step with its leave is done.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/inlined_vector.h"
#include "coordinator/core/loss_history.h"
#include "coordinator/core/sequence_request.h"
#include "coordinator/core/service_order.h"
#include "plan/attention_paths.h"
#include "plan/step_plan.h"

namespace lamina::core {

struct CachedBlock;  // Defined by PrefixCache.
struct HeldSpans;

struct SeenTokens {
  uint32_t node = 0;
  uint64_t tokens = 0;
  friend bool operator==(const SeenTokens&, const SeenTokens&) = default;
};

enum class SequenceState : uint8_t { kWaiting, kPrefilling, kDecoding, kDraining };

// Aligned, and in the order of use: what each step reads and writes of a decoding sequence lies in
// the first two cache lines, but for two members of its request.
struct alignas(64) Sequence {
  SequenceState state = SequenceState::kWaiting;

  // While running:
  bool starving = false;  // Its next row got no slot.
  bool has_scratch = false;
  plan::AttentionPath path = plan::AttentionPath::kRemote;  // The path by which its rows attend.
  uint32_t lane = 0;
  uint32_t next_lane = 0;  // Where it is wanted; `lane` until then, and its planned rows are done.
  uint32_t node = 0;       // Where its next token goes.
  uint64_t last_step = 0;  // The lane's last step that was planned with a row of it.
  uint64_t last_work = 0;  // The last one with a row or a chunk of it.
  uint32_t planned_tokens = 0;  // Tokens in all once every planned step is done.
  uint32_t slots = 0;           // On all nodes; those that it has given up count on.
  uint32_t join_tokens = 0;     // Prompt and committed tokens when it joined.
  uint32_t chunked_tokens = 0;  // Those that are planned in chunks.
  HeldSpans* held = nullptr;    // Owned by SequenceKv.
  uint32_t seat = 0;            // In SequenceLife, for as long as it is known.
  uint32_t cached_tokens = 0;   // The first ones, whose K and V were there when it joined.
  uint32_t stored_tokens = 0;   // In prefill: so many of its first ones are known to be stored.
  // Tokens on nodes that its next row reads, the mean over the layers; those of one node together
  // as far as they follow each other.
  absl::InlinedVector<SeenTokens, 1> seen;
  plan::SequenceId parent = 0;  // Whose last chunk samples its first token.

  SequenceRequest request;
  std::vector<TokenId> committed;  // Generated and shown.
  LossHistory losses;              // Since the last committed token.
  uint64_t arrival = 0;
  std::vector<plan::SequenceId> forks;  // Submitted with fork_of = this one.

  uint64_t spill =
      0;  // The number by which Spills knows where its K and V are, or go to; 0: nowhere.

  // While running:
  bool restoring = false;  // Its K and V are being read back: it has no work until they are there.
  std::vector<uint64_t> reading;  // Spills of cached blocks that are being read into its slots.
  std::vector<plan::SequenceId> attached;  // The reverse of `parent`.
  std::vector<uint32_t> lives_on;          // `node` and those that hold slots of it, each once.
  uint32_t cached_at_first = 0;            // As cached_tokens when it joined for the first time.
  uint32_t times_joined = 0;
  std::vector<CachedBlock*> cached_blocks;  // Blocks of PrefixCache that hold its first tokens.
  uint32_t scratch_offset = 0;
  uint32_t scratch_tokens =
      0;  // How many of its first tokens are there; those behind them are rows.
  plan::ResidentTokens resident;       // Whose activations stay on the compute node.
  std::vector<float> logprobs;         // Score.
  std::vector<plan::TokenRank> ranks;  // One for each of these.

  // Has the processor fetch the cache lines that a step reads.
  void Prefetch() const {
    __builtin_prefetch(this);
    __builtin_prefetch(&seen);
    __builtin_prefetch(&request.tokens_max);
  }
  // And where its next token goes.
  void PrefetchCommitted() const { __builtin_prefetch(committed.data() + committed.size()); }

  bool runs() const {
    return state == SequenceState::kPrefilling || state == SequenceState::kDecoding;
  }
  uint64_t seen_tokens() const {
    uint64_t tokens = 0;
    for (const SeenTokens& on_node : seen) {
      tokens += on_node.tokens;
    }
    return tokens;
  }
  bool moving() const { return next_lane != lane; }
  // Whether it has joined for the first time, and not to continue a beam.
  bool is_new() const { return times_joined == 1 && committed.empty(); }
  uint32_t tokens() const {
    return static_cast<uint32_t>(request.prompt.size() + committed.size());
  }
  uint32_t slots_max() const { return SlotsMaxOf(request); }
  // The last token sampled is never an input, so its K and V are never stored.
  static uint32_t SlotsMaxOf(const SequenceRequest& request) {
    return request.score ? static_cast<uint32_t>(request.prompt.size()) : request.tokens_max - 1;
  }
};

// Whether the one goes before the other; never ambiguous, since arrivals are unique.
struct ServiceBefore {
  const ServiceOrder* order;
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (order->Before(a->request, a->arrival, b->request, b->arrival)) {
      return true;
    }
    return !order->Before(b->request, b->arrival, a->request, a->arrival) &&
           a->arrival < b->arrival;
  }
};

// In service order.
using SequenceQueue = absl::btree_set<Sequence*, ServiceBefore>;

}  // namespace lamina::core
