// SPDX-License-Identifier: Apache-2.0
#include "plan/fetch_pieces.h"

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/units.h"
#include "plan/activation_part.h"
#include "plan/slot_kinds.h"

namespace lamina::plan {
namespace {

constexpr size_t kScaleBytes = 4;

// What a run takes of a window for one head.
uint64_t HeadBytes(const FetchRun& run, uint32_t head_dim, bool int8) {
  const uint64_t slot = KvHeadBytes(head_dim, KvForm::kBF16);
  if (int8) {
    const uint64_t scales = Int8ScalesOfSlot(head_dim) * kScaleBytes;
    return run.int8_slots() * (KvHeadBytes(head_dim, KvForm::kInt8) - scales) +
           run.scale_slots() * scales + run.tail_slots() * slot;
  }
  return (uint64_t{run.filled_slots()} + run.slots()) * slot;
}

void AddRun(const FetchRun& run, bool int8, FetchPiece& piece) {
  piece.slots += int8 ? run.tail_slots() : run.filled_slots() + run.slots();
  piece.int8_slots += int8 ? run.int8_slots() : 0;
  piece.scale_slots += int8 ? run.scale_slots() : 0;
  piece.filled += run.filled_slots();
  piece.filled_scales += int8 ? run.filled_scales() : 0;
  piece.filled_open += int8 ? run.filled_open() : 0;
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

// For people: what of the longest run a window must have room for.
std::string LeastOf(const EpochConfig& config) {
  const uint32_t tokens = RunTokensMax(config);
  if (config.activation_width > 0) {
    return absl::StrCat("K and V, or the activations, of ", tokens, " tokens in a layer take ");
  }
  return config.fetch_heads > 1
             ? absl::StrCat("fetch.heads ", config.fetch_heads, " of ", tokens, " tokens take ")
             : absl::StrCat("one KV head of ", tokens, " tokens takes ");
}

// What runs take, of a layer.
struct Measure {
  uint32_t head_dim = 0;
  bool int8 = false;
};

// As many runs to a piece as fit, each once, so that a head takes `bytes_max` at most.
// Requires: every run fits.
void AddByRuns(HeadRange heads, absl::Span<const FetchRun> runs, Measure measure,
               uint64_t bytes_max, absl::FunctionRef<void(const FetchPiece&)> add) {
  FetchPiece piece{.heads = heads};
  uint64_t taken = 0;
  for (uint32_t run = 0; run < runs.size(); ++run) {
    const uint64_t bytes = HeadBytes(runs[run], measure.head_dim, measure.int8);
    if (taken + bytes > bytes_max && piece.runs_end > piece.first_run) {
      add(piece);
      piece = {.heads = heads, .first_run = run};
      taken = 0;
    }
    piece.runs_end = run + 1;
    AddRun(runs[run], measure.int8, piece);
    taken += bytes;
  }
  add(piece);
}

// Partition head: KV heads of the memory node with most. Else 0.
uint32_t HeadsMost(const EpochConfig& config) {
  uint32_t most = 0;
  for (const HeadRange& range : config.heads) {
    most = std::max(most, range.count);
  }
  return most;
}

// All heads of some runs, behind the activations of these that come.
void AddWithActivations(const AttentionDescriptor& part, absl::Span<const FetchRun> runs,
                        uint64_t slots_max, std::vector<FetchPiece>& pieces) {
  const uint64_t bytes_max = slots_max * KvHeadBytes(part.head_dim, KvForm::kBF16);
  const Measure measure{.head_dim = part.head_dim};
  AddByRuns({.count = part.kv_heads}, runs, measure, bytes_max, [&](const FetchPiece& piece) {
    FetchPiece activations{.first_run = piece.first_run, .runs_end = piece.runs_end};
    for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
      activations.recomputed += runs[run].recomputed;
    }
    if (activations.recomputed > 0) {
      pieces.push_back(activations);
    }
    pieces.push_back(piece);
  });
}

}  // namespace

FetchLimits FetchLimitsOf(const EpochConfig& config) {
  return {.window_bytes = FetchWindowBytes(config),
          .heads = config.fetch_heads,
          .activation_width = ActivationPartMost(config),
          .heads_most = HeadsMost(config),
          .int8 = config.int8_tails > 0};
}

void PiecesOf(const AttentionDescriptor& part, absl::Span<const FetchRun> runs,
              const FetchLimits& limits, std::vector<FetchPiece>& pieces) {
  pieces.clear();
  if (runs.empty() || part.kv_heads == 0) {
    return;
  }
  const Measure measure{.head_dim = part.head_dim, .int8 = limits.int8};
  FetchPiece all{.runs_end = static_cast<uint32_t>(runs.size())};
  uint64_t bytes = 0;
  for (const FetchRun& run : runs) {
    AddRun(run, limits.int8, all);
    bytes += HeadBytes(run, part.head_dim, limits.int8);
  }
  const bool recomputes =
      std::any_of(runs.begin(), runs.end(), [](const FetchRun& run) { return run.made() > 0; });
  if (recomputes) {
    const uint64_t slots_max = limits.window_bytes / KvHeadBytes(part.head_dim, KvForm::kBF16) /
                               std::max(limits.heads_most, part.kv_heads);
    const uint64_t tokens_max = limits.window_bytes / (limits.activation_width * sizeof(BFloat16));
    AddWithActivations(part, runs, std::min(slots_max, tokens_max), pieces);
    return;
  }
  const uint32_t heads_min = std::clamp(limits.heads, 1u, part.kv_heads);
  const uint32_t heads_max = limits.heads == 0 ? part.kv_heads : heads_min;
  const bool whole = bytes * heads_min <= limits.window_bytes;
  const uint32_t group = whole ? static_cast<uint32_t>(std::min<uint64_t>(
                                     heads_max, limits.window_bytes / std::max<uint64_t>(bytes, 1)))
                               : heads_min;
  for (uint32_t head = 0; head < part.kv_heads; head += group) {
    const HeadRange heads{.first = head, .count = std::min(group, part.kv_heads - head)};
    if (whole) {
      all.heads = heads;
      pieces.push_back(all);
    } else {
      AddByRuns(heads, runs, measure, limits.window_bytes / group,
                [&](const FetchPiece& piece) { pieces.push_back(piece); });
    }
  }
}

void PiecesOf(const AttentionDescriptor& part, HeadRange heads, absl::Span<const FetchRun> runs,
              const FetchLimits& limits, std::vector<FetchPiece>& pieces) {
  PiecesOf(PartOf(part, heads), runs, limits, pieces);
  for (FetchPiece& piece : pieces) {
    piece.heads.first += heads.first;
  }
}

FetchPlanes PlanesOf(const FetchPiece& piece, uint32_t head_dim) {
  const size_t int8_slots = size_t{piece.heads.count} * piece.int8_slots;
  const size_t scale_slots = size_t{piece.heads.count} * piece.scale_slots;
  FetchPlanes planes;
  planes.int8_v = int8_slots * head_dim;
  planes.k_scales = planes.int8_v + int8_slots * head_dim;
  planes.v_scales = planes.k_scales + scale_slots * Int8ScalesOfSlot(head_dim) * kScaleBytes;
  planes.k = planes.v_scales + int8_slots * kScaleBytes;
  planes.v = planes.k + piece.elements(head_dim) * sizeof(BFloat16);
  planes.end = planes.v + piece.elements(head_dim) * sizeof(BFloat16);
  return planes;
}

size_t PieceBytes(const FetchPiece& piece, uint32_t head_dim, uint32_t activation_width) {
  return piece.activations() ? size_t{piece.recomputed} * activation_width * sizeof(BFloat16)
                             : PlanesOf(piece, head_dim).end;
}

size_t FilledBytes(const FetchPiece& piece, uint32_t head_dim, KvForm form) {
  const size_t slot = KvHeadBytes(head_dim, KvForm::kBF16);
  if (form == KvForm::kBF16) {
    return size_t{piece.heads.count} * piece.filled * slot;
  }
  const size_t scales = Int8ScalesOfSlot(head_dim) * kScaleBytes;
  return piece.heads.count * (piece.filled * (KvHeadBytes(head_dim, KvForm::kInt8) - scales) +
                              piece.filled_scales * scales + piece.filled_open * slot);
}

uint64_t FetchWindowBytes(const EpochConfig& config) {
  return config.attention_paths.fetch() ? config.fetch_bytes / WindowsOf(config) : 0;
}

uint32_t RunTokensMax(const EpochConfig& config) {
  return config.partition == Partition::kTokenRange
             ? std::min(config.span_tokens, config.sequence_tokens_max)
             : config.sequence_tokens_max;
}

bool ServesSpans(AttentionPaths paths) {
  const AttentionPaths served = {AttentionPath::kRemote, AttentionPath::kFetch,
                                 AttentionPath::kSparse, AttentionPath::kRecompute,
                                 AttentionPath::kHybrid};
  return (paths.bits() & ~served.bits()) == 0;
}

absl::Status CheckFetch(const EpochConfig& config) {
  if (!config.attention_paths.fetch()) {
    return absl::OkStatus();
  }
  if (config.compute_nodes.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch, " fetches K and V to ",
                     config.compute_nodes.size(), " compute nodes; this version serves one"));
  }
  if (config.partition == Partition::kTokenRange && !ServesSpans(config.attention_paths)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch,
                     " has spans of sequences with paths ", config.attention_paths.bits(),
                     "; of paths that fetch this version does not serve streaming there"));
  }
  if (config.activation_share > SlotKinds::kUnit ||
      (config.activation_share > 0 && config.activation_width == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch, " holds activations of ",
                     config.activation_width, " elements in ", config.activation_share, " of ",
                     SlotKinds::kUnit, " slots, which cannot be"));
  }
  if (config.attention_paths.Has(AttentionPath::kRecompute) && config.made_tokens_max == 0 &&
      (config.activation_width == 0 || config.activation_share > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the configuration of epoch ", config.epoch,
        " has path recompute, and slots without room for both K and V and an activation"));
  }
  if (config.resident_tokens > 0 && config.activation_share == 0 &&
      !config.attention_paths.Has(AttentionPath::kRecompute)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch, " has places for activations of ",
                     config.resident_tokens,
                     " tokens on the compute node, and neither path recompute nor slots that hold "
                     "activations"));
  }
  if (config.activation_width > 0 && config.partition == Partition::kHead &&
      std::any_of(config.layers.begin(), config.layers.end(),
                  [&config](const AttentionDescriptor& layer) {
                    return config.activation_width < layer.kv_heads;
                  })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the configuration of epoch ", config.epoch, " spreads activations of ",
        config.activation_width, " elements over memory nodes as it does the KV heads of a layer, ",
        "of which there are more; set partition to request"));
  }
  if (config.activation_width > 0 && config.int8_tails > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch,
                     " keeps activations in addition to INT8, which this version does not serve"));
  }
  if (config.made_tokens_max > 0 &&
      (!config.attention_paths.Has(AttentionPath::kRecompute) || config.activation_width > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the configuration of epoch ", config.epoch, " makes K and V of ", config.made_tokens_max,
        " tokens from their numbers, which this version serves with path recompute, without "
        "activations"));
  }
  if (config.made_tokens_max % kFetchTile != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the configuration of epoch ", config.epoch, " makes K and V of ", config.made_tokens_max,
        " tokens from their numbers, which is not a multiple of ", kFetchTile));
  }
  // INT8 takes as much as its next row needs.
  const FetchRun longest{.before = RunTokensMax(config),
                         .tokens = config.int8_tails > 0 ? kInt8BlockTokens : 0};
  uint64_t least = 0;
  for (const AttentionDescriptor& layer : config.layers) {
    // Where tokens that come and others alternate, each kind ends with a tile of its own.
    const bool alternate =
        config.activation_share > 0 ||
        (config.attention_paths.Has(AttentionPath::kSparse) && config.int8_tails == 0);
    const uint64_t tile = alternate ? kFetchTile : 0;
    const uint64_t head = HeadBytes(longest, layer.head_dim, config.int8_tails > 0) +
                          tile * KvHeadBytes(layer.head_dim, KvForm::kBF16);
    const uint64_t activations =
        (longest.slots() + tile) * config.activation_width * sizeof(BFloat16);
    least = std::max({least, head * HeadsAtLeast(config, layer), activations});
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
