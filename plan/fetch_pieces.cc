// SPDX-License-Identifier: Apache-2.0
#include "plan/fetch_pieces.h"

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/units.h"
#include "plan/slot_kinds.h"

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

// KV heads that a window must have room for.
uint32_t HeadsAtLeast(const EpochConfig& config, const AttentionDescriptor& layer) {
  if (config.activation_width > 0) {
    return layer.kv_heads;
  }
  return std::clamp(config.fetch_heads, 1u, layer.kv_heads);
}

// For people: what of the longest sequence a window must have room for.
std::string LeastOf(const EpochConfig& config) {
  if (config.activation_width > 0) {
    return absl::StrCat("K and V, or the activations, of ", config.sequence_tokens_max,
                        " tokens in a layer take ");
  }
  return config.fetch_heads > 1
             ? absl::StrCat("fetch.heads ", config.fetch_heads, " of ", config.sequence_tokens_max,
                            " tokens take ")
             : absl::StrCat("one KV head of ", config.sequence_tokens_max, " tokens takes ");
}

// As many runs to a piece as fit, each once. Requires: every run fits.
void AddByRuns(HeadRange heads, absl::Span<const FetchRun> runs, uint64_t slots_max,
               absl::FunctionRef<void(const FetchPiece&)> add) {
  FetchPiece piece{.heads = heads};
  for (uint32_t run = 0; run < runs.size(); ++run) {
    const uint32_t slots = runs[run].recomputed_slots() + runs[run].slots();
    if (piece.slots + uint64_t{slots} > slots_max && piece.runs_end > piece.first_run) {
      add(piece);
      piece = {.heads = heads, .first_run = run};
    }
    piece.runs_end = run + 1;
    piece.slots += slots;
    piece.recomputed += runs[run].recomputed_slots();
  }
  add(piece);
}

// All heads of some runs, behind the activations of these.
void AddWithActivations(const AttentionDescriptor& part, absl::Span<const FetchRun> runs,
                        uint64_t slots_max, std::vector<FetchPiece>& pieces) {
  AddByRuns({.count = part.kv_heads}, runs, slots_max, [&](const FetchPiece& piece) {
    if (piece.recomputed > 0) {
      FetchPiece activations{.first_run = piece.first_run, .runs_end = piece.runs_end};
      for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
        activations.recomputed += runs[run].recomputed;
      }
      pieces.push_back(activations);
    }
    pieces.push_back(piece);
  });
}

}  // namespace

FetchLimits FetchLimitsOf(const EpochConfig& config) {
  return {.window_bytes = FetchWindowBytes(config),
          .heads = config.fetch_heads,
          .activation_width = config.activation_width};
}

void PiecesOf(const AttentionDescriptor& part, absl::Span<const FetchRun> runs,
              const FetchLimits& limits, std::vector<FetchPiece>& pieces) {
  pieces.clear();
  if (runs.empty() || part.kv_heads == 0) {
    return;
  }
  const uint64_t slots_max = limits.window_bytes / SlotBytes(part);
  uint64_t slots = 0;
  uint64_t recomputed = 0;
  for (const FetchRun& run : runs) {
    slots += run.slots();
    recomputed += run.recomputed;
  }
  const auto runs_end = static_cast<uint32_t>(runs.size());
  if (recomputed > 0) {
    const uint64_t tokens_max = limits.window_bytes / (limits.activation_width * sizeof(BFloat16));
    AddWithActivations(part, runs, std::min(slots_max / part.kv_heads, tokens_max), pieces);
    return;
  }
  const uint32_t heads_min = std::clamp(limits.heads, 1u, part.kv_heads);
  const uint32_t heads_max = limits.heads == 0 ? part.kv_heads : heads_min;
  const bool whole = slots * heads_min <= slots_max;
  const uint32_t group = whole ? static_cast<uint32_t>(std::min<uint64_t>(
                                     heads_max, slots_max / std::max<uint64_t>(slots, 1)))
                               : heads_min;
  for (uint32_t head = 0; head < part.kv_heads; head += group) {
    const HeadRange heads{.first = head, .count = std::min(group, part.kv_heads - head)};
    if (whole) {
      pieces.push_back(
          {.heads = heads, .runs_end = runs_end, .slots = static_cast<uint32_t>(slots)});
    } else {
      AddByRuns(heads, runs, slots_max / group,
                [&](const FetchPiece& piece) { pieces.push_back(piece); });
    }
  }
}

uint64_t FetchWindowBytes(const EpochConfig& config) {
  return config.attention_paths.fetch() ? config.fetch_bytes / WindowsOf(config) : 0;
}

absl::Status CheckFetch(const EpochConfig& config) {
  if (!config.attention_paths.fetch()) {
    return absl::OkStatus();
  }
  if (config.compute_nodes.size() != 1 || config.partition == Partition::kTokenRange) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the configuration of epoch ", config.epoch, " fetches K and V to ",
        config.compute_nodes.size(), " compute nodes",
        config.partition == Partition::kTokenRange ? " with spans of sequences" : "",
        "; this version serves one, with whole sequences or some of their heads on a memory node"));
  }
  if (config.activation_share > SlotKinds::kUnit ||
      (config.activation_share > 0 && config.activation_width == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch, " holds activations of ",
                     config.activation_width, " elements in ", config.activation_share, " of ",
                     SlotKinds::kUnit, " slots, which cannot be"));
  }
  if (config.activation_width > 0 && config.partition != Partition::kRequest) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch,
                     " keeps activations in addition to some heads of a sequence; this version "
                     "keeps them where all "
                     "heads are: set partition to request"));
  }
  const FetchRun longest{.before = config.sequence_tokens_max};
  uint64_t least = 0;
  for (const AttentionDescriptor& layer : config.layers) {
    const uint64_t slot = SlotBytes(layer) * HeadsAtLeast(config, layer);
    // Where tokens of both kinds alternate, each kind ends with a tile of its own.
    const uint64_t slots = longest.slots() + (config.activation_share > 0 ? kFetchTile : 0);
    least = std::max(least, slots * std::max<uint64_t>(slot, uint64_t{config.activation_width} *
                                                                 sizeof(BFloat16)));
  }
  if (FetchWindowBytes(config) >= least) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("fetch.window: ", FormatBytes(config.fetch_bytes), " is ",
                   FormatBytes(FetchWindowBytes(config)), " for each of ", WindowsOf(config),
                   " windows (two for each lane and memory node), and ", LeastOf(config),
                   FormatBytes(least), ": set it to at least ",
                   FormatBytes(least * WindowsOf(config)), ", or lower limits.sequence_tokens_max",
                   config.fetch_heads > 1 ? ", fetch.heads" : "", " or pipeline.lanes"));
}

}  // namespace lamina::plan
