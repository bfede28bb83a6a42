// SPDX-License-Identifier: Apache-2.0
//
// The read bandwidth of this host as a node that holds KV sees it: the share that placement
// weighs nodes by.

#pragma once

#include <cstddef>
#include <cstdint>

#include "common/thread_pool.h"

namespace lamina::kernels {

// A buffer larger than the caches, to be read over and over. Owns its pages.
class PlainReads {
 public:
  static constexpr size_t kBytes = size_t{256} << 20;

  explicit PlainReads(size_t bytes = kBytes);
  PlainReads(const PlainReads&) = delete;
  PlainReads& operator=(const PlainReads&) = delete;
  ~PlainReads();

  // False: the host refused the pages, and Read() does nothing.
  bool ok() const { return buffer_ != nullptr; }
  size_t bytes() const { return bytes_; }
  // Reads all of it once on all threads of the pool.
  void Read(ThreadPool& pool) const;

 private:
  const size_t bytes_;
  void* buffer_ = nullptr;
};

// Reads a buffer larger than the caches a few times on all threads of the pool; best of the passes,
// in bytes per second. Cost: about 0.1 s and 256 MiB for its duration; a quarter where no more than
// that is `held`, bytes that will be read later.
double MeasureReadBandwidth(ThreadPool& pool, uint64_t held = PlainReads::kBytes);

}  // namespace lamina::kernels
