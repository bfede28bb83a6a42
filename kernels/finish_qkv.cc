// SPDX-License-Identifier: Apache-2.0
//
// Dense::FinishQkv() as the calls that it stands for, and a plain copy.

#include <algorithm>

#include "common/check.h"
#include "kernels/dense.h"

namespace lamina::kernels {
namespace {

// Heads of one plane, from where they lie one behind the other.
void StoreHeads(const BFloat16* from, const KvRowStore& store, size_t head_dim, uint32_t slot,
                BFloat16* to) {
  for (size_t head = 0; head < store.kv_heads; ++head) {
    std::copy_n(from + head * head_dim, head_dim,
                to + head * store.head_stride + size_t{slot} * head_dim);
  }
}

}  // namespace

void Dense::FinishQkv(MatrixView<const float> x, const QkvFinish& finish, MatrixView<float> normed,
                      MatrixView<BFloat16> out) {
  if (finish.norms != nullptr) {
    NormHeads(x, *finish.norms, normed);
    x = normed;
  }
  RopeAndRound(x, finish.heads, finish.head_dim, finish.table, finish.positions, out);
  if (finish.store == nullptr) {
    return;
  }
  const KvRowStore& store = *finish.store;
  const size_t width = store.kv_heads * finish.head_dim;
  LAMINA_CHECK(store.slots.size() == out.rows && 2 * width <= out.cols);
  for (size_t row = 0; row < out.rows; ++row) {
    const uint32_t slot = store.slots[row];
    if (slot != kNoSlot) {
      const BFloat16* const k = out.row(row) + (out.cols - 2 * width);
      StoreHeads(k, store, finish.head_dim, slot, store.k);
      StoreHeads(k + width, store, finish.head_dim, slot, store.v);
    }
  }
}

}  // namespace lamina::kernels
