// SPDX-License-Identifier: Apache-2.0
#include "compute_node/slice_stores.h"

#include <variant>
#include <vector>

#include "common/check.h"

namespace lamina::compute_node {

bool CanStore(const SliceExecutor& executor, uint32_t slice) {
  const model::Graph& graph = executor.program().graph();
  const model::OpId producer = graph.values[executor.program().Qkv(slice)].producer;
  return !executor.device().is_host() &&
         std::holds_alternative<model::RopeOp>(graph.ops[producer].body);
}

void StoreInto(const SliceExecutor& executor, absl::Span<const SliceStore> stores,
               ValueBuffers& buffers) {
  std::vector<ValueStore> of_values;
  for (const SliceStore& store : stores) {
    LAMINA_CHECK(CanStore(executor, store.slice));
    of_values.push_back({.value = executor.program().Qkv(store.slice),
                         .kv_heads = executor.attention(store.slice).descriptor.kv_heads,
                         .planes = store.planes});
  }
  buffers.StoreInto(of_values);
}

}  // namespace lamina::compute_node
