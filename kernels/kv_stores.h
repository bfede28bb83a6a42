// SPDX-License-Identifier: Apache-2.0
//
// KvStores: K and V of a call's rows into a host's arena, by all threads of a pool where there are
// enough of them.
//
// They are cut into pieces of a few whole tiles of slots, and by KV heads, which write different
// elements: bits do not depend on the cut.
//
// Threading: one at a time, by who calls the pool.

#pragma once

#include <cstddef>
#include <vector>

#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "common/thread_pool.h"
#include "kernels/kv_device.h"

namespace lamina::kernels {

class KvStores {
 public:
  // The pool outlives it. Calls of up to `tokens` tokens allocate nothing.
  KvStores(ThreadPool& pool, size_t tokens) : pool_(pool) { pieces_.reserve(tokens); }

  void Add(const KvRows& rows);

  // Stores what was added since the last call. `heads` are those of the rows; `to` has all heads of
  // the layer, from head 0 on. Requires: no slot was added twice.
  void Run(HeadRange heads, size_t head_dim, const KvPlanes& to);

 private:
  // Consecutive tokens in consecutive slots.
  struct Piece {
    const BFloat16* k = nullptr;
    const BFloat16* v = nullptr;
    size_t stride = 0;
    Extent slots;
  };

  ThreadPool& pool_;
  std::vector<Piece> pieces_;
  size_t tokens_ = 0;  // In all pieces.
};

}  // namespace lamina::kernels
