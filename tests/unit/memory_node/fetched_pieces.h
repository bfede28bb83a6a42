// SPDX-License-Identifier: Apache-2.0
//
// Which pieces a step's rows ask of a memory node, and that what comes is every byte of these.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "plan/activation_part.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_pieces.h"
#include "plan/fetch_split.h"
#include "plan/slot_kinds.h"
#include "plan/slot_tables.h"
#include "plan/step_plan.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {

inline constexpr uint64_t kSlotBytes = 2 * 16 * 2;  // K and V of one head.
// Two windows for a lane and memory node: one head of the longest sequence fits.
inline constexpr uint64_t kLeast = 2 * UnitCluster::kContext * kSlotBytes;

// A step's rows whose sequences live on a node.
struct Runs {
  std::vector<plan::FetchSplit> splits;
  std::vector<plan::FetchRun> runs;  // What they fetch.
  std::vector<uint32_t> sequences;
};

// The first tokens of a sequence that have no activation, or no slot, and those whose activations
// are on the compute node.
struct FirstTokens {
  uint32_t bare = 0;
  uint32_t released = 0;
  plan::ResidentTokens resident;
};

// Kinds of slots are those of `tables`, or of the plan without them, behind the first tokens.
inline Runs RunsOf(const UnitCluster::Step& step, uint32_t node, uint32_t nodes,
                   const plan::EpochConfig& config, const plan::SlotTables* tables,
                   const FirstTokens& first = {}) {
  Runs runs;
  for (size_t row = 0; row < step.plan.rows.size(); ++row) {
    if (nodes == 1 || step.sequences[row] % nodes == node) {
      const uint32_t before = step.positions[row];
      runs.splits.push_back(
          config.made_tokens_max > 0
              ? plan::SplitByTokens(before, 1, step.plan.recomputed, first.released,
                                    config.KvFormOf(plan::AttentionPath::kRecompute))
          : tables == nullptr
              ? plan::SplitByShare(before, 1, step.plan.recomputed, first.bare, first.released,
                                   first.resident)
              : plan::SplitBySlots(before, 1, *tables->Find(step.plan.rows[row].sequence),
                                   plan::SlotKinds(config.activation_share)));
      runs.runs.push_back(runs.splits.back().run);
      runs.sequences.push_back(step.sequences[row]);
    }
  }
  return runs;
}

// The tokens of a run that come in one way, by their numbers.
inline std::vector<Extent> TokensOf(const plan::FetchSplit& split, bool activations) {
  std::vector<Extent> tokens;
  uint32_t first = 0;
  for (const plan::FetchStretch& stretch : split.stretches) {
    if (stretch.activations == activations && !stretch.here && !stretch.hidden) {
      tokens.push_back({.first_slot = first, .tokens = stretch.tokens});
    }
    first += stretch.tokens;
  }
  return tokens;
}

// A piece in its window.
struct Place {
  uint32_t node = 0;
  uint32_t lane = 0;
  uint64_t piece = 0;
};

inline void ExpectActivations(UnitCluster& cluster, const Place& at, const plan::FetchPiece& piece,
                              const Runs& runs, uint32_t layer) {
  const BFloat16* come = cluster.Fetched(at.node, at.lane, at.piece);
  const plan::ActivationPart part = plan::ActivationPartOf(cluster.config(), at.node);
  for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
    for (const Extent& tokens : TokensOf(runs.splits[run], true)) {
      for (uint32_t token = 0; token < tokens.tokens; ++token) {
        for (uint32_t i = part.first; i < part.first + part.count; ++i) {
          ASSERT_EQ((come++)->bits, UnitCluster::Activation(runs.sequences[run],
                                                            tokens.first_slot + token, layer, i)
                                        .bits)
              << "run " << run << " token " << tokens.first_slot + token << " element " << i;
        }
      }
    }
  }
}

inline constexpr BFloat16 kMine = {.bits = 0xabcd};

// Behind a piece of so many bytes its windows are as they were: zero at first, then as the test
// filled them for every piece.
inline void ExpectNothingBehind(UnitCluster& cluster, const Place& at, size_t bytes) {
  const BFloat16* const come = cluster.Fetched(at.node, at.lane, at.piece);
  const BFloat16* const end =
      come + cluster.FetchedRoom(at.node, at.lane, at.piece) / sizeof(BFloat16);
  EXPECT_EQ(std::count_if(come + bytes / sizeof(BFloat16), end,
                          [](BFloat16 x) { return x.bits != 0 && x.bits != kMine.bits; }),
            0)
      << "behind piece " << at.piece;
}

// The first slots of each head are the compute node's to write: they are as it left them.
inline void ExpectBehindRecomputed(UnitCluster& cluster, const Place& at,
                                   const plan::FetchPiece& piece, const Runs& runs,
                                   uint32_t layer) {
  const plan::EpochConfig& config = cluster.config();
  const uint32_t head_dim = config.layers[layer].head_dim;
  const uint32_t first_head = config.heads.empty() ? 0 : config.heads[at.node].first;
  const BFloat16* const come = cluster.Fetched(at.node, at.lane, at.piece);
  for (uint32_t head = 0; head < piece.heads.count; ++head) {
    const BFloat16* const slots[2] = {
        come + size_t{head} * piece.slots * head_dim,
        come + piece.elements(head_dim) + size_t{head} * piece.slots * head_dim};
    for (const BFloat16* plane : slots) {
      for (size_t i = 0; i < size_t{piece.filled} * head_dim; ++i) {
        ASSERT_EQ(plane[i].bits, kMine.bits) << "head " << head << " element " << i;
      }
    }
    size_t slot = piece.filled;
    for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
      const plan::FetchRun& tokens = runs.runs[run];
      if (tokens.slots() == 0) {
        continue;
      }
      std::vector<BFloat16> whole[2];
      std::vector<BFloat16> wanted[2];
      for (int plane = 0; plane < 2; ++plane) {
        whole[plane].resize(plan::FetchRun::WholeTiles(tokens.before + 1) * head_dim);
        wanted[plane].resize(tokens.slots() * head_dim);
      }
      cluster.CopyKv(runs.sequences[run], layer, first_head + head, tokens.before, whole[0].data(),
                     whole[1].data());
      kernels::LoadKv(head_dim, whole[0].data(), whole[1].data(), TokensOf(runs.splits[run], false),
                      0, tokens.fetched(), wanted[0].data(), wanted[1].data());
      for (int plane = 0; plane < 2; ++plane) {
        EXPECT_EQ(std::memcmp(slots[plane] + slot * head_dim, wanted[plane].data(),
                              wanted[plane].size() * sizeof(BFloat16)),
                  0)
            << "layer " << layer << " head " << head << " run " << run << " plane " << plane;
      }
      slot += tokens.slots();
    }
  }
}

// Takes the pieces of a step from `first` on, and gives each window back. A window has K and V of
// the piece's tokens and zeros: not a byte of another sequence. Returns how many pieces there were.
inline uint64_t ExpectPieces(UnitCluster& cluster, const UnitCluster::Step& step, uint32_t node,
                             uint64_t first, const plan::SlotTables* tables = nullptr,
                             const FirstTokens& first_tokens = {}) {
  const plan::EpochConfig& config = cluster.config();
  const auto nodes =
      config.partition == Partition::kHead ? 1 : static_cast<uint32_t>(config.memory_nodes.size());
  const Runs runs = RunsOf(step, node, nodes, config, tables, first_tokens);
  std::vector<plan::FetchPiece> pieces;
  uint64_t next = first;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const AttentionDescriptor part = plan::LayersOf(config, node)[layer];
    const uint32_t first_head = config.partition == Partition::kHead ? config.heads[node].first : 0;
    plan::PiecesOf(part, runs.runs, plan::FetchLimitsOf(config), pieces);
    for (const plan::FetchPiece& piece : pieces) {
      const size_t bytes =
          plan::PieceBytes(piece, part.head_dim, plan::ActivationPartOf(config, node).count);
      cluster.AwaitPiece(node, step.spec.lane, next, bytes);
      ExpectNothingBehind(cluster, {node, step.spec.lane, next}, bytes);
      if (piece.activations()) {
        ExpectActivations(cluster, {node, step.spec.lane, next}, piece, runs, layer);
        cluster.FillFetched(node, step.spec.lane, next, kMine);
        cluster.RaiseCredit(node, step.spec.lane, next++);
        continue;
      }
      if (piece.filled > 0 || first_tokens.released > 0) {
        ExpectBehindRecomputed(cluster, {node, step.spec.lane, next}, piece, runs, layer);
        cluster.FillFetched(node, step.spec.lane, next, kMine);
        cluster.RaiseCredit(node, step.spec.lane, next++);
        continue;
      }
      std::vector<BFloat16> wanted(2 * piece.elements(part.head_dim));
      size_t slot = 0;
      for (uint32_t head = 0; head < piece.heads.count; ++head) {
        for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
          BFloat16* const k = wanted.data() + slot * part.head_dim;
          cluster.CopyKv(runs.sequences[run], layer, first_head + piece.heads.first + head,
                         runs.runs[run].before, k, k + piece.elements(part.head_dim));
          slot += runs.runs[run].slots();
        }
      }
      EXPECT_EQ(std::memcmp(cluster.Fetched(node, step.spec.lane, next), wanted.data(),
                            wanted.size() * sizeof(BFloat16)),
                0)
          << "layer " << layer << " piece " << next;
      cluster.FillFetched(node, step.spec.lane, next, kMine);
      cluster.RaiseCredit(node, step.spec.lane, next++);
    }
  }
  return next - first;
}

}  // namespace lamina::memory_node
