// SPDX-License-Identifier: Apache-2.0
//
// Inspect: what `lamina inspect` prints about a model, as data.
//
// Threading: pure.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.h"

namespace lamina::model {

struct TypeSummary {
  std::string type;  // "Q4_1"
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t stored_bytes = 0;
};

struct ModelSummary {
  ModelConfig config;
  uint64_t tensors = 0;                  // In the files.
  uint64_t parameters = 0;               // Elements that the graph uses, each tensor once.
  uint64_t stored_bytes = 0;             // Bytes of all tensors in the files.
  uint64_t bf16_bytes = 0;               // The weights of the graph as a compute node holds them.
  std::vector<TypeSummary> types;        // By bytes, largest first.
  uint64_t kv_bytes_per_token = 0;       // bf16 keys and values of all layers.
  uint64_t kv_int8_bytes_per_token = 0;  // Bytes with kv int8, in closed blocks.
  // What a sequence of config.positions_max tokens keeps, and what its last token reads: less where
  // layers have a window. Slots hold all layers: what windows hide is kept where a layer sees
  // everything, else as far as the longest window reaches, in whole blocks of attention.
  uint64_t kv_bytes_kept = 0;
  uint64_t kv_bytes_read = 0;
  // All tensors of the files, in their order.
  std::vector<TensorInfo> tensor_list;
};

ModelSummary Inspect(const Model& model);

}  // namespace lamina::model
