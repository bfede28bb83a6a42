// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/step_tables.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::kernels::cuda {
namespace {

absl::Status CheckLimit(absl::string_view what, uint64_t value, uint64_t limit) {
  if (value <= limit) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("a step has ", value, " ", what, "; this CudaAttention was made for ", limit));
}

// Walks along the extents of an item; tokens are counted from the first held.
class ExtentWalker {
 public:
  // They are `extents` from `first` on, and hold `held` tokens.
  ExtentWalker(absl::Span<const PlacedExtent> extents, uint32_t first, uint64_t held)
      : extents_(extents.subspan(first)), first_(first), held_(held) {}

  // Where the unit's tokens lie, of which `token` is the first. Requires: tokens asked for do not
  // decrease, and lie inside.
  void Locate(uint64_t token, AttentionUnit& unit) {
    while (EndOf(index_) <= token) {
      ++index_;
    }
    const uint64_t end = token + unit.tokens;
    last_ = std::max(last_, index_);
    while (EndOf(last_) < end) {
      ++last_;
    }
    unit.first_token = static_cast<uint32_t>(token);
    unit.extent = first_ + index_;
    unit.extents = last_ - index_ + 1;
    unit.first_slot = EndOf(index_) >= end ? extents_[index_].first_slot +
                                                 (unit.first_token - extents_[index_].begin)
                                           : kScattered;
  }

 private:
  uint64_t EndOf(uint32_t index) const {
    return index + 1 < extents_.size() ? extents_[index + 1].begin : held_;
  }

  absl::Span<const PlacedExtent> extents_;
  uint32_t first_;
  uint64_t held_;
  uint32_t index_ = 0;
  uint32_t last_ = 0;  // The extent of the last token that was asked for.
};

class Filler {
 public:
  Filler(const CudaAttentionOptions& options, const StepCut& cut, StepTables& tables)
      : options_(options), cut_(cut), tables_(tables) {}

  absl::Status Add(const StepItem& item) {
    uint64_t held = 0;
    for (const Extent& extent : item.extents) {
      held += extent.tokens;
    }
    const uint64_t needed = uint64_t{item.first_position} + item.query_tokens;
    if (item.held_token % kAttentionBlockTokens != 0) {
      return absl::InvalidArgumentError(absl::StrCat("held_token: ", item.held_token,
                                                     " is no multiple of ", kAttentionBlockTokens));
    }
    if (item.held_token == 0 && held < needed) {
      return absl::InvalidArgumentError(absl::StrCat("extents: they cover ", held, " tokens of ",
                                                     needed, " that the last query token sees"));
    }
    LAMINA_RETURN_IF_ERROR(CheckLimit("query tokens", tables_.rows.size() + item.query_tokens,
                                      options_.query_rows_max));
    LAMINA_RETURN_IF_ERROR(
        CheckLimit("extents", tables_.extents.size() + item.extents.size(), options_.extents_max));
    left_out_ += item.left_out;
    const auto first_extent = static_cast<uint32_t>(tables_.extents.size());
    uint32_t begin = 0;
    for (const Extent& extent : item.extents) {
      tables_.extents.push_back({.first_slot = extent.first_slot, .begin = begin});
      begin += extent.tokens;
    }
    const uint32_t group = options_.descriptor.group();
    const bool runs = TakesRuns(options_, cut_, item.query_tokens);
    const uint32_t tile = std::max<uint32_t>(1, (runs ? cut_.run_rows : cut_.tile_rows) / group);
    for (uint32_t first = 0; first < item.query_tokens; first += tile) {
      const uint32_t count = std::min(tile, item.query_tokens - first);
      LAMINA_RETURN_IF_ERROR(AddTile(item, {.held_end = item.held_token + held,
                                            .first_extent = first_extent,
                                            .first = first,
                                            .count = count,
                                            .runs = runs}));
      if (!runs) {
        tables_.tile_rows_max = std::max(tables_.tile_rows_max, count * group);
        tables_.tile_tokens_max = std::max(tables_.tile_tokens_max, count);
      }
    }
    return absl::OkStatus();
  }

  // Once, behind the last item.
  void End() {
    tables_.run_units = static_cast<uint32_t>(runs_.size());
    tables_.units.insert(tables_.units.end(), runs_.begin(), runs_.end());
  }

 private:
  // Query tokens [first, first + count) of an item.
  struct Tile {
    uint64_t held_end = 0;
    uint32_t first_extent = 0;
    uint32_t first = 0;
    uint32_t count = 0;
    bool runs = false;
  };

  absl::Status AddTile(const StepItem& item, const Tile& tile) {
    const uint32_t log2 = tile.runs ? cut_.run_log2 : 0;
    const uint64_t position = uint64_t{item.first_position} + tile.first;
    const uint64_t window = options_.descriptor.window;
    const uint64_t hidden = window != 0 && position + 1 > window ? position + 1 - window : 0;
    const uint64_t begin = std::max<uint64_t>({hidden, item.held_token, item.first_seen});
    const uint64_t end = std::min(position + tile.count, tile.held_end);
    const bool empty = begin >= end;
    const auto first_block = static_cast<uint32_t>(begin / kAttentionBlockTokens);
    const uint32_t end_block = empty ? first_block : BlocksUntil(end);
    const uint32_t first_run = first_block >> log2;
    const uint32_t runs = empty ? 0 : ((end_block - 1) >> log2) + 1 - first_run;
    LAMINA_RETURN_IF_ERROR(CheckLimit("partials", tables_.partials + uint64_t{runs} * tile.count,
                                      options_.partials_max));
    AttentionUnit unit = {.row = static_cast<uint32_t>(tables_.rows.size()) + left_out_,
                          .query_tokens = tile.count,
                          .first_position = static_cast<uint32_t>(position),
                          .partial = tables_.partials,
                          .first_seen = item.first_seen};
    ExtentWalker walker(tables_.extents, tile.first_extent, tile.held_end - item.held_token);
    for (uint32_t i = 0; i < runs; ++i) {
      unit.block = std::max(first_block, (first_run + i) << log2);
      const uint64_t token = uint64_t{unit.block} * kAttentionBlockTokens;
      const uint64_t run_end = (uint64_t{first_run + i + 1} << log2) * kAttentionBlockTokens;
      unit.tokens = static_cast<uint32_t>(std::min(run_end, tile.held_end) - token);
      walker.Locate(token - item.held_token, unit);
      (tile.runs ? runs_ : tables_.units).push_back(unit);
      unit.partial += tile.count;
    }
    for (uint32_t i = 0; i < tile.count; ++i) {
      AddRow(item, {.held_end = empty ? 0 : tile.held_end,
                    .position = position + i,
                    .first = first_run,
                    .log2 = log2,
                    .partial = tables_.partials + i,
                    .step = tile.count});
    }
    tables_.partials += runs * tile.count;
    return absl::OkStatus();
  }

  // One query token. It has the runs of its tile up to its own position; a tile that sees nothing
  // has none, which `held_end` 0 says.
  struct Row {
    uint64_t held_end = 0;
    uint64_t position = 0;
    uint32_t first = 0;  // The tile's first run.
    uint32_t log2 = 0;   // Blocks of a run.
    uint32_t partial = 0;
    uint32_t step = 0;
  };

  void AddRow(const StepItem& item, const Row& row) {
    const uint32_t held = (item.held_token / kAttentionBlockTokens) >> row.log2;
    const uint32_t end_block = BlocksUntil(std::min(row.position + 1, row.held_end));
    const uint32_t end = end_block == 0 ? 0 : ((end_block - 1) >> row.log2) + 1;
    const bool empty = end <= row.first;
    tables_.rows.push_back({.held_block = held,
                            .first_block = empty ? held : row.first,
                            .blocks = empty ? 0 : end - row.first,
                            .partial = row.partial,
                            .step = row.step,
                            .left_out = left_out_});
  }

  static uint32_t BlocksUntil(uint64_t end) {
    return static_cast<uint32_t>((end + kAttentionBlockTokens - 1) / kAttentionBlockTokens);
  }

  const CudaAttentionOptions& options_;
  const StepCut& cut_;
  StepTables& tables_;
  uint32_t left_out_ = 0;  // Before the item at hand.
  std::vector<AttentionUnit> runs_;
};

}  // namespace

bool TakesRuns(const CudaAttentionOptions& options, const StepCut& cut, uint32_t query_tokens) {
  return cut.run_rows > 0 && uint64_t{query_tokens} * options.descriptor.group() > cut.tile_rows;
}

uint32_t RunLog2Of(const CudaAttentionOptions& options, const StepCut& cut,
                   absl::Span<const StepItem> items, uint32_t multiprocessors) {
  if (cut.run_rows == 0) {
    return 0;
  }
  multiprocessors = std::max<uint32_t>(1, multiprocessors);  // An emulation may have none.
  // Beginning and ending a thread block, and merging what it leaves, in times of a block of tokens.
  constexpr double kAround = 0.7;
  const uint32_t tile = std::max<uint32_t>(1, cut.run_rows / options.descriptor.group());
  uint32_t best = 0;
  double least = 0;
  for (uint32_t log2 = 0; log2 <= cut.run_log2; ++log2) {
    uint64_t runs = 0;
    uint64_t blocks = 0;
    for (const StepItem& item : items) {
      if (!TakesRuns(options, cut, item.query_tokens)) {
        continue;
      }
      const uint64_t end = uint64_t{item.first_position} + item.query_tokens;
      const uint64_t tiles = (item.query_tokens + tile - 1) / tile;
      const uint64_t blocks_of_tile = (end + kAttentionBlockTokens - 1) / kAttentionBlockTokens;
      blocks += tiles * blocks_of_tile * options.descriptor.kv_heads;
      runs += tiles * (((blocks_of_tile - 1) >> log2) + 1) * options.descriptor.kv_heads;
    }
    const double waves = static_cast<double>((runs + multiprocessors - 1) / multiprocessors);
    // The last wave has half a run of idle time in the mean.
    const double time = static_cast<double>(blocks) / multiprocessors + kAround * waves +
                        static_cast<double>(uint64_t{1} << log2) / 2;
    if (log2 == 0 || time < least) {
      best = log2;
      least = time;
    }
  }
  return best;
}

absl::Status FillStepTables(const CudaAttentionOptions& options, const StepCut& cut,
                            absl::Span<const StepItem> items, StepTables& tables) {
  tables.units.clear();
  tables.rows.clear();
  tables.extents.clear();
  tables.partials = 0;
  tables.run_units = 0;
  tables.tile_rows_max = 0;
  tables.tile_tokens_max = 0;
  Filler filler(options, cut, tables);
  for (const StepItem& item : items) {
    LAMINA_RETURN_IF_ERROR(filler.Add(item));
  }
  filler.End();
  return absl::OkStatus();
}

std::vector<StackEntry> EntriesOf(const AttentionRow& row) {
  std::vector<StackEntry> stack;
  for (uint32_t block = row.held_block; block < row.first_block + row.blocks; ++block) {
    stack.push_back({.first_block = block, .blocks = 1});
    while (stack.size() >= 2) {
      const StackEntry& left = stack[stack.size() - 2];
      if (left.blocks != stack.back().blocks || left.first_block % (2 * left.blocks) != 0) {
        break;
      }
      stack.pop_back();
      stack.back().blocks *= 2;
    }
  }
  return stack;
}

}  // namespace lamina::kernels::cuda
