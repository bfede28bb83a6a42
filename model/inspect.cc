// SPDX-License-Identifier: Apache-2.0
//
// Adds up what the files and the graph say.

#include "model/inspect.h"

#include <algorithm>
#include <map>

#include "common/kv_form.h"

namespace lamina::model {

namespace {

constexpr uint64_t kBlockTokens = 256;  // Slots come free in whole blocks of attention.

// The sequence has positions_max tokens.
uint64_t TokensKept(const Model& model) {
  uint64_t longest = 0;
  for (const Op& op : model.graph.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op.body)) {
      const uint32_t window = attention->descriptor.window;
      longest = window == 0 ? UINT64_MAX - kBlockTokens : std::max<uint64_t>(longest, window);
    }
  }
  return std::min<uint64_t>(model.config.positions_max, longest + kBlockTokens);
}

}  // namespace

ModelSummary Inspect(const Model& model) {
  ModelSummary summary;
  summary.config = model.config;
  summary.tensor_list = model.weights->tensors();
  summary.tensors = summary.tensor_list.size();
  std::map<std::string, TypeSummary> types;
  for (const TensorInfo& tensor : summary.tensor_list) {
    TypeSummary& type = types[tensor.type];
    type.type = tensor.type;
    ++type.tensors;
    type.elements += tensor.elements;
    type.stored_bytes += tensor.stored_bytes;
    summary.stored_bytes += tensor.stored_bytes;
  }
  for (const auto& [name, type] : types) {
    summary.types.push_back(type);
  }
  std::stable_sort(
      summary.types.begin(), summary.types.end(),
      [](const TypeSummary& a, const TypeSummary& b) { return a.stored_bytes > b.stored_bytes; });
  for (const Weight& weight : model.graph.weights) {
    summary.parameters += uint64_t{weight.rows} * weight.cols;
  }
  summary.bf16_bytes = 2 * summary.parameters;
  const uint64_t kept = TokensKept(model);
  for (const Op& op : model.graph.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op.body)) {
      const AttentionDescriptor& layer = attention->descriptor;
      const uint64_t bytes = KvSlotBytes({&layer, 1}, KvForm::kBF16);
      const uint64_t tokens = model.config.positions_max;
      summary.kv_bytes_per_token += bytes;
      summary.kv_int8_bytes_per_token += KvSlotBytes({&layer, 1}, KvForm::kInt8);
      summary.kv_bytes_kept += bytes * kept;
      summary.kv_bytes_read +=
          bytes * (layer.window == 0 ? tokens : std::min<uint64_t>(tokens, layer.window));
    }
  }
  return summary;
}

}  // namespace lamina::model
