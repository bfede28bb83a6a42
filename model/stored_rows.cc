// SPDX-License-Identifier: Apache-2.0
#include "model/stored_rows.h"

#include "absl/strings/str_cat.h"

namespace lamina::model {
namespace {

absl::Status NotAsStored(const Weight& weight, const char* why) {
  return absl::UnimplementedError(absl::StrCat("weight \"", weight.name, "\" ", why));
}

// Which rows of the weight, before it was cut, are meant.
std::vector<WeightRange> RowsOf(const Weight& weight) {
  if (weight.slice.has_value()) {
    return weight.slice->rows;
  }
  return {{.first = 0, .count = weight.rows}};
}

}  // namespace

absl::StatusOr<StoredRows> FindStoredRows(const Graph& graph, const WeightSource& source,
                                          WeightId id) {
  if (id >= graph.weights.size()) {
    return absl::InvalidArgumentError(absl::StrCat("no weight ", id, " in the graph"));
  }
  const Weight& weight = graph.weights[id];
  if (source.Find(weight.name) == nullptr) {
    return absl::NotFoundError(absl::StrCat("no tensor \"", weight.name, "\" in the file"));
  }
  const std::optional<StoredBlocks> stored = source.Blocks(weight.name);
  if (!stored.has_value()) {
    return NotAsStored(weight, "is not stored in blocks");
  }
  if (weight.order != WeightRows::kAsStored || weight.offset != 0.0f) {
    return NotAsStored(weight, "is not as the file has it");
  }
  const bool cut = weight.slice.has_value();
  const uint64_t cols = cut ? weight.slice->whole_cols : weight.cols;
  const uint64_t first_col = cut ? weight.slice->cols.first : 0;
  if (cols % stored->elements != 0 || first_col % stored->elements != 0 ||
      weight.cols % stored->elements != 0) {
    return NotAsStored(weight, "has columns that begin or end inside a block");
  }
  const uint64_t rows = cut ? weight.slice->whole_rows : weight.rows;
  const uint64_t stored_rows =
      weight.row_step > 1 ? rows * weight.row_step : rows + weight.first_row;
  const uint64_t row_bytes = cols / stored->elements * stored->bytes;
  const uint8_t* const begin = stored->data + weight.stack.index * stored_rows * row_bytes +
                               first_col / stored->elements * stored->bytes;
  StoredRows found = {.type = std::string(stored->type)};
  found.rows.reserve(weight.rows);
  for (const WeightRange& range : RowsOf(weight)) {
    for (uint64_t row = range.first; row < uint64_t{range.first} + range.count; ++row) {
      found.rows.push_back(begin + (weight.first_row + row * weight.row_step) * row_bytes);
    }
  }
  return found;
}

}  // namespace lamina::model
