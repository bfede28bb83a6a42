// SPDX-License-Identifier: Apache-2.0
//
// Rows of a weight as the model's file has them: in blocks of its type, not dequantised.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/graph.h"
#include "model/weight_source.h"

namespace lamina::model {

struct StoredRows {
  std::string type;                  // "Q4_1"
  std::vector<const uint8_t*> rows;  // [weight.rows], weight.cols elements each in whole blocks;
                                     // valid as long as the source.
};

// Errors: kInvalidArgument  no such weight.
//         kNotFound         the source has no tensor of that name.
//         kUnimplemented    its rows are not runs of whole blocks of the file: another kind of
//                           file, another order, columns that begin inside a block, an offset.
absl::StatusOr<StoredRows> FindStoredRows(const Graph& graph, const WeightSource& source,
                                          WeightId id);

}  // namespace lamina::model
