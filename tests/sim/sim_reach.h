// SPDX-License-Identifier: Apache-2.0
//
// SimReach: how often a simulation met what is rare.

#pragma once

#include <cstdint>
#include <string>

namespace lamina::sim {

// How often rare things happened, over one run.
struct SimReach {
  uint64_t tokens = 0;
  uint64_t scores = 0;
  uint64_t preemptions = 0;
  uint64_t left_without_row = 0;
  uint64_t reservations_revoked = 0;
  uint64_t forks_shared = 0;
  uint64_t forks_unshared = 0;
  uint64_t rows_discarded = 0;
  uint64_t rows_sat_out = 0;
  uint64_t leave_only_plans = 0;
  uint64_t chunks_with_rows = 0;
  uint64_t several_prompts_in_a_step = 0;
  uint64_t rows_in_chunks = 0;   // Steps of these,
  uint64_t heads_in_chunks = 0;  // and of these.
  uint64_t epochs = 0;
  uint64_t requeued = 0;         // Running in an epoch that a loss ended, and not ended by it.
  uint64_t nodes_drained = 0;    // Memory nodes that left for good, which was no loss,
  uint64_t nodes_added = 0;      // and that came.
  uint64_t ended_too_long = 0;   // No node left could hold them.
  uint64_t ended_by_losses = 0;  // Too many without a token.
  uint64_t queue_full = 0;
  uint64_t refused = 0;
  uint64_t cancels = 0;
  uint64_t lane_moves = 0;
  uint64_t chunks_dedicated = 0;            // Steps of prefill nodes with chunks.
  uint64_t chunks_with_lanes = 0;           // Those while steps with rows are planned elsewhere.
  uint64_t prefill_nodes_side_by_side = 0;  // Those while another replica has chunks too.
  uint64_t chunks_on_several_nodes = 0;     // Those of a replica in stages or shards,
  uint64_t prefill_lanes_side_by_side = 0;  // in another lane of which are chunks too.
  uint64_t preempted_in_prefill = 0;        // Left a prefill node, to come again.
  uint64_t tokens_kept = 0;                 // Tokens of joining sequences whose K and V were there.
  uint64_t open_blocks_kept = 0;            // Tokens that they had in open blocks of their own.
  uint64_t reads_of_others = 0;             // Tokens in rows that read what another one stored.
  uint64_t blocks_dropped = 0;              // For others' slots.
  uint64_t blocks_outlived = 0;             // That were there when an epoch began.
  uint64_t releases = 0;                    // Releases of slots behind a window,
  uint64_t releases_beyond_nodes = 0;  // and of these, after more tokens than any node has slots.
  uint64_t prompts_in_rows = 0;
  uint64_t beam_answers = 0;          // Asked for.
  uint64_t beams_shared = 0;          // Joins of beams that share slots,
  uint64_t beams_queued = 0;          // and of those that had none to share.
  uint64_t beams_behind_prefill = 0;  // Those that share, while prompts have lanes of their own.
  uint64_t tokens_waited = 0;         // Reports with tokens that were not the last of their step.

  uint64_t spilled = 0;              // Sequences whose K and V went to a tier,
  uint64_t spilled_apart = 0;        // those that went to several nodes' among them,
  uint64_t restored = 0;             // and came back,
  uint64_t read_ahead = 0;           // reads of either kind that began before their step,
  uint64_t copied = 0;               // Runs of cached blocks that were copied to one,
  uint64_t copies_read = 0;          // and that were read back,
  uint64_t copies_read_in_part = 0;  // so many of these from behind their first token on,
  uint64_t spills_failed = 0;        // and of all these, those that failed.

  uint64_t path_changes = 0;        // Joins of another path than the one before in the lane.
  uint64_t lossy_joins = 0;         // Joins that the prefix cache knows nothing of.
  uint64_t bare_joins = 0;          // Joins that found tokens without activations, and read some.
  uint64_t paths_side_by_side = 0;  // Steps of lanes, while another path has one in another lane.
  uint64_t fetch_placed = 0;        // Joins of path fetch with places for activations.
  uint64_t placed_moved = 0;        // Changes of lanes of sequences that have places.

  uint64_t homes_changed = 0;          // Joins on another replica than the one before,
  uint64_t replicas_side_by_side = 0;  // and lanes of other replicas that have steps meanwhile.

  uint64_t kept_behind_holes = 0;  // Tokens that were kept behind some that were missing.
  uint64_t resumed = 0;            // Requests that came with tokens.

  void Add(const SimReach& other);
  std::string ToString() const;
};

}  // namespace lamina::sim
