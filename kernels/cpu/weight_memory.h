// SPDX-License-Identifier: Apache-2.0
//
// WeightMemory: memory of one packed layer, from huge pages as far as the system gives them. Every
// step reads all weights, and with pages of 4 KiB a core looks up some 25,000 addresses of pages
// for 100 MB of them. Layers are smaller than huge pages or not much larger, so that several lie in
// one mapping, which ends with the last of them; the pages of one that ends earlier go back at
// once.
//
// Threading: any thread. Allocation: a mapping for every 32 MiB; larger layers have their own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace lamina::kernels::cpu {

class WeightMemory {
 public:
  static constexpr size_t kAlignment = 128;

  WeightMemory() = default;
  // All bytes are zero. data() is null where the host refuses.
  explicit WeightMemory(size_t bytes);
  WeightMemory(WeightMemory&& other) noexcept;
  WeightMemory& operator=(WeightMemory&& other) noexcept;
  ~WeightMemory();

  std::byte* data() const { return data_; }

  // What all of them in this process take together.
  static uint64_t AllBytes();

 private:
  class Mapping;

  void TakeFromShared();
  void Release();

  std::shared_ptr<Mapping> mapping_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace lamina::kernels::cpu
