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

// Walks along extents; tokens are counted from the first held.
class ExtentWalker {
 public:
  ExtentWalker(absl::Span<const Extent> extents, uint32_t first_index)
      : extents_(extents), first_index_(first_index) {}

  // Where `token`, the first of the unit's, lies. Requires: tokens asked for do not decrease, and
  // lie inside.
  void Locate(uint64_t token, AttentionUnit& unit) {
    while (token - passed_ >= extents_[index_].tokens) {
      passed_ += extents_[index_].tokens;
      ++index_;
    }
    unit.extent = first_index_ + index_;
    unit.extent_skip = static_cast<uint32_t>(token - passed_);
    const Extent& extent = extents_[index_];
    unit.first_slot = extent.tokens - unit.extent_skip >= unit.tokens
                          ? extent.first_slot + unit.extent_skip
                          : kScattered;
  }

 private:
  absl::Span<const Extent> extents_;
  uint32_t first_index_;
  uint32_t index_ = 0;
  uint64_t passed_ = 0;
};

class Filler {
 public:
  Filler(const CudaAttentionOptions& options, uint32_t tile_rows, StepTables& tables)
      : options_(options), tile_rows_(tile_rows), tables_(tables) {}

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
    const auto first_extent = static_cast<uint32_t>(tables_.extents.size());
    tables_.extents.insert(tables_.extents.end(), item.extents.begin(), item.extents.end());
    const uint32_t group = options_.descriptor.group();
    const uint32_t tile = std::max<uint32_t>(1, tile_rows_ / group);
    for (uint32_t first = 0; first < item.query_tokens; first += tile) {
      const uint32_t count = std::min(tile, item.query_tokens - first);
      LAMINA_RETURN_IF_ERROR(AddTile(item, item.held_token + held, first_extent, first, count));
      tables_.tile_rows_max = std::max(tables_.tile_rows_max, count * group);
      tables_.tile_tokens_max = std::max(tables_.tile_tokens_max, count);
    }
    return absl::OkStatus();
  }

 private:
  // Query tokens [first, first + count) of the item.
  absl::Status AddTile(const StepItem& item, uint64_t held_end, uint32_t first_extent,
                       uint32_t first, uint32_t count) {
    const uint64_t position = uint64_t{item.first_position} + first;
    const uint64_t window = options_.descriptor.window;
    const uint64_t hidden = window != 0 && position + 1 > window ? position + 1 - window : 0;
    const uint64_t begin = std::max<uint64_t>({hidden, item.held_token, item.first_seen});
    const uint64_t end = std::min(position + count, held_end);
    const bool empty = begin >= end;
    const auto first_block = static_cast<uint32_t>(begin / kAttentionBlockTokens);
    const uint32_t blocks = empty ? 0 : BlocksUntil(end) - first_block;
    LAMINA_RETURN_IF_ERROR(
        CheckLimit("partials", tables_.partials + uint64_t{blocks} * count, options_.partials_max));
    AttentionUnit unit = {.row = static_cast<uint32_t>(tables_.rows.size()),
                          .query_tokens = count,
                          .first_position = static_cast<uint32_t>(position),
                          .partial = tables_.partials,
                          .first_seen = item.first_seen};
    ExtentWalker walker(item.extents, first_extent);
    for (uint32_t i = 0; i < blocks; ++i) {
      const uint64_t token = (uint64_t{first_block} + i) * kAttentionBlockTokens;
      unit.block = first_block + i;
      unit.tokens =
          static_cast<uint32_t>(std::min<uint64_t>(kAttentionBlockTokens, held_end - token));
      walker.Locate(token - item.held_token, unit);
      tables_.units.push_back(unit);
      unit.partial += count;
    }
    for (uint32_t i = 0; i < count; ++i) {
      AddRow(item, empty ? 0 : held_end, position + i, first_block, tables_.partials + i, count);
    }
    tables_.partials += blocks * count;
    return absl::OkStatus();
  }

  // One query token. It has the blocks of its tile up to its own position; a tile that sees nothing
  // has none, which `held_end` 0 says.
  void AddRow(const StepItem& item, uint64_t held_end, uint64_t position, uint32_t first_block,
              uint32_t partial, uint32_t step) {
    const uint32_t held_block = item.held_token / kAttentionBlockTokens;
    const uint32_t end_block = BlocksUntil(std::min(position + 1, held_end));
    const bool empty = end_block <= first_block;
    tables_.rows.push_back({.held_block = held_block,
                            .first_block = empty ? held_block : first_block,
                            .blocks = empty ? 0 : end_block - first_block,
                            .partial = partial,
                            .step = step});
  }

  static uint32_t BlocksUntil(uint64_t end) {
    return static_cast<uint32_t>((end + kAttentionBlockTokens - 1) / kAttentionBlockTokens);
  }

  const CudaAttentionOptions& options_;
  const uint32_t tile_rows_;
  StepTables& tables_;
};

}  // namespace

absl::Status FillStepTables(const CudaAttentionOptions& options, uint32_t tile_rows,
                            absl::Span<const StepItem> items, StepTables& tables) {
  tables.units.clear();
  tables.rows.clear();
  tables.extents.clear();
  tables.partials = 0;
  tables.tile_rows_max = 0;
  tables.tile_tokens_max = 0;
  Filler filler(options, tile_rows, tables);
  for (const StepItem& item : items) {
    LAMINA_RETURN_IF_ERROR(filler.Add(item));
  }
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
