// SPDX-License-Identifier: Apache-2.0
#include "plan/fetch_pieces.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/units.h"

namespace lamina::plan {
namespace {

// K and V of one head.
uint64_t SlotBytes(const AttentionDescriptor& layer) {
  return 2 * uint64_t{layer.head_dim} * sizeof(BFloat16);
}

// Windows come in pairs.
uint64_t WindowsOf(const EpochConfig& config) {
  return 2 * uint64_t{config.lanes} * config.memory_nodes.size();
}

}  // namespace

void PiecesOf(const AttentionDescriptor& part, absl::Span<const FetchRun> runs,
              uint64_t window_bytes, std::vector<FetchPiece>& pieces) {
  pieces.clear();
  if (runs.empty() || part.kv_heads == 0) {
    return;
  }
  const uint64_t slots_max = window_bytes / SlotBytes(part);
  uint64_t slots = 0;
  for (const FetchRun& run : runs) {
    slots += run.slots();
  }
  const auto runs_end = static_cast<uint32_t>(runs.size());
  if (slots <= slots_max) {
    const auto group = static_cast<uint32_t>(
        std::min<uint64_t>(part.kv_heads, slots_max / std::max<uint64_t>(slots, 1)));
    for (uint32_t head = 0; head < part.kv_heads; head += group) {
      pieces.push_back({.heads = {.first = head, .count = std::min(group, part.kv_heads - head)},
                        .runs_end = runs_end,
                        .slots = static_cast<uint32_t>(slots)});
    }
    return;
  }
  for (uint32_t head = 0; head < part.kv_heads; ++head) {
    FetchPiece piece{.heads = {.first = head, .count = 1}};
    for (uint32_t run = 0; run < runs_end; ++run) {
      if (piece.slots + uint64_t{runs[run].slots()} > slots_max &&
          piece.runs_end > piece.first_run) {
        pieces.push_back(piece);
        piece.first_run = run;
        piece.slots = 0;
      }
      piece.runs_end = run + 1;
      piece.slots += runs[run].slots();
    }
    pieces.push_back(piece);
  }
}

uint64_t FetchWindowBytes(const EpochConfig& config) {
  return config.attention_paths.Has(AttentionPath::kFetch) ? config.fetch_bytes / WindowsOf(config)
                                                           : 0;
}

absl::Status CheckFetch(const EpochConfig& config) {
  if (!config.attention_paths.Has(AttentionPath::kFetch)) {
    return absl::OkStatus();
  }
  if (config.compute_nodes.size() != 1 || config.partition == Partition::kTokenRange) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the configuration of epoch ", config.epoch, " fetches K and V to ",
        config.compute_nodes.size(), " compute nodes",
        config.partition == Partition::kTokenRange ? " with spans of sequences" : "",
        "; this version serves one, with whole sequences or some of their heads on a memory node"));
  }
  const FetchRun longest{.before = config.sequence_tokens_max};
  uint64_t least = 0;
  for (const AttentionDescriptor& layer : config.layers) {
    least = std::max(least, longest.slots() * SlotBytes(layer));
  }
  if (FetchWindowBytes(config) >= least) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("fetch.window: ", FormatBytes(config.fetch_bytes), " is ",
                   FormatBytes(FetchWindowBytes(config)), " for each of ", WindowsOf(config),
                   " windows (two for each lane and memory node), and one KV head of ",
                   config.sequence_tokens_max, " tokens takes ", FormatBytes(least),
                   ": set it to at least ", FormatBytes(least * WindowsOf(config)),
                   ", or lower limits.sequence_tokens_max or pipeline.lanes"));
}

}  // namespace lamina::plan
