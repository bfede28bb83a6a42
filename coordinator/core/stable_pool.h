// SPDX-License-Identifier: Apache-2.0
//
// StablePool: elements that stay where they are, in pieces of memory of their own. Who is given
// back last is taken next, so that few of them stay few pages.
//
// Many small objects that come and go among others' would be strewn between these by the heap, and
// push them apart: a step that touches one thing of each sequence then touches a page for each.
//
// Threading: one thread.   Determinism: same calls, same order.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"

namespace lamina::core {

template <typename T>
class StablePool {
 public:
  StablePool() = default;
  StablePool(const StablePool&) = delete;
  StablePool& operator=(const StablePool&) = delete;

  // An element as it is made.
  T& Take() {
    if (free_.empty()) {
      chunks_.push_back(std::make_unique<T[]>(kChunk));
      for (size_t i = kChunk; i > 0; --i) {
        free_.push_back(&chunks_.back()[i - 1]);
      }
    }
    T& taken = *free_.back();
    free_.pop_back();
    return taken;
  }
  // Requires: it was taken, and is not used again.
  void Give(T& element) {
    std::destroy_at(&element);
    std::construct_at(&element);
    free_.push_back(&element);
  }
  void Clear() {
    free_.clear();
    chunks_.clear();
  }

  size_t taken() const { return kChunk * chunks_.size() - free_.size(); }
  // Calls `visit` with all elements, those that are not taken too.
  void VisitAll(absl::FunctionRef<void(const T&)> visit) const {
    for (const std::unique_ptr<T[]>& chunk : chunks_) {
      for (size_t i = 0; i < kChunk; ++i) {
        visit(chunk[i]);
      }
    }
  }

 private:
  static constexpr size_t kChunk = 128;

  std::vector<std::unique_ptr<T[]>> chunks_;
  std::vector<T*> free_;
};

}  // namespace lamina::core
