// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/sim_reach.h"

#include "absl/strings/str_cat.h"

namespace lamina::sim {

void SimReach::Add(const SimReach& other) {
  tokens += other.tokens;
  scores += other.scores;
  preemptions += other.preemptions;
  left_without_row += other.left_without_row;
  reservations_revoked += other.reservations_revoked;
  forks_shared += other.forks_shared;
  forks_unshared += other.forks_unshared;
  rows_discarded += other.rows_discarded;
  rows_sat_out += other.rows_sat_out;
  leave_only_plans += other.leave_only_plans;
  chunks_with_rows += other.chunks_with_rows;
  several_prompts_in_a_step += other.several_prompts_in_a_step;
  rows_in_chunks += other.rows_in_chunks;
  heads_in_chunks += other.heads_in_chunks;
  epochs += other.epochs;
  requeued += other.requeued;
  nodes_drained += other.nodes_drained;
  nodes_added += other.nodes_added;
  ended_too_long += other.ended_too_long;
  ended_by_losses += other.ended_by_losses;
  queue_full += other.queue_full;
  refused += other.refused;
  cancels += other.cancels;
  lane_moves += other.lane_moves;
  chunks_dedicated += other.chunks_dedicated;
  chunks_with_lanes += other.chunks_with_lanes;
  prefill_nodes_side_by_side += other.prefill_nodes_side_by_side;
  chunks_on_several_nodes += other.chunks_on_several_nodes;
  prefill_lanes_side_by_side += other.prefill_lanes_side_by_side;
  preempted_in_prefill += other.preempted_in_prefill;
  releases += other.releases;
  releases_beyond_nodes += other.releases_beyond_nodes;
  tokens_kept += other.tokens_kept;
  open_blocks_kept += other.open_blocks_kept;
  reads_of_others += other.reads_of_others;
  blocks_dropped += other.blocks_dropped;
  blocks_outlived += other.blocks_outlived;
  prompts_in_rows += other.prompts_in_rows;
  beam_answers += other.beam_answers;
  beams_shared += other.beams_shared;
  beams_queued += other.beams_queued;
  beams_behind_prefill += other.beams_behind_prefill;
  tokens_waited += other.tokens_waited;
  spilled += other.spilled;
  spilled_apart += other.spilled_apart;
  copied += other.copied;
  copies_read += other.copies_read;
  copies_read_in_part += other.copies_read_in_part;
  restored += other.restored;
  read_ahead += other.read_ahead;
  spills_failed += other.spills_failed;
  path_changes += other.path_changes;
  lossy_joins += other.lossy_joins;
  bare_joins += other.bare_joins;
  paths_side_by_side += other.paths_side_by_side;
  fetch_placed += other.fetch_placed;
  placed_moved += other.placed_moved;
  homes_changed += other.homes_changed;
  replicas_side_by_side += other.replicas_side_by_side;
  kept_behind_holes += other.kept_behind_holes;
  resumed += other.resumed;
}

std::string SimReach::ToString() const {
  return absl::StrCat(
      "tokens ", tokens, ", scores ", scores, ", preemptions ", preemptions,
      ", left without a row ", left_without_row, ", reservations revoked ", reservations_revoked,
      ", forks shared ", forks_shared, ", unshared ", forks_unshared, ", rows discarded ",
      rows_discarded, ", sat out ", rows_sat_out, ", leave-only plans ", leave_only_plans,
      ", chunks with rows ", chunks_with_rows, ", several prompts in a step ",
      several_prompts_in_a_step, ", rows in chunks ", rows_in_chunks, ", heads in chunks ",
      heads_in_chunks, ", epochs ", epochs, ", requeued ", requeued, ", nodes drained ",
      nodes_drained, ", added ", nodes_added, ", ended as too long ", ended_too_long,
      ", by losses ", ended_by_losses, ", queue full ", queue_full, ", refused ", refused,
      ", cancels ", cancels, ", lane moves ", lane_moves, ", chunks dedicated ", chunks_dedicated,
      ", chunks with lanes ", chunks_with_lanes, ", side by side ", prefill_nodes_side_by_side,
      ", on several nodes ", chunks_on_several_nodes, ", in several lanes ",
      prefill_lanes_side_by_side, ", preempted in prefill ", preempted_in_prefill, ", releases ",
      releases, " beyond nodes ", releases_beyond_nodes, ", tokens kept ", tokens_kept,
      " in open blocks ", open_blocks_kept, ", reads of others ", reads_of_others,
      ", blocks dropped ", blocks_dropped, ", outlived an epoch ", blocks_outlived,
      ", prompts in rows ", prompts_in_rows, ", beam answers ", beam_answers, ", beams shared ",
      beams_shared, " queued ", beams_queued, " behind prefill lanes ", beams_behind_prefill,
      ", tokens waited ", tokens_waited, ", spilled ", spilled, " apart ", spilled_apart,
      " restored ", restored, " read ahead ", read_ahead, " copied ", copied, " copies read ",
      copies_read, " in part ", copies_read_in_part, " failed ", spills_failed, ", path changes ",
      path_changes, ", lossy joins ", lossy_joins, ", bare joins ", bare_joins,
      ", paths side by side ", paths_side_by_side, ", fetch with places ", fetch_placed,
      ", places moved ", placed_moved, ", homes changed ", homes_changed,
      ", replicas side by side ", replicas_side_by_side, ", kept behind holes ", kept_behind_holes,
      ", resumed ", resumed);
}

}  // namespace lamina::sim
