// SPDX-License-Identifier: Apache-2.0
//
// SharedBus: the emulated bus of a device: one bandwidth that several processes of a host share, as
// transfers over PCIe do, whatever they carry. Each transfer takes its turn behind those that were
// handed over before it; an idle bus saves nothing for later.
//
// Processes of one user meet by the bus's name: a word of shared memory says when the bus is free.
// It goes with the last of them; a file of a few bytes stays where all were killed.
//
// Threading: any thread.   Memory: a page.   Cost: Take() one atomic exchange.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace lamina {

// Letters, digits, '-', '_' and '.', 1 to 64 of them.
bool IsBusName(absl::string_view name);

class SharedBus {
 public:
  // Requires: bytes_per_second > 0. All who meet should give the same.
  // Errors: kInvalidArgument  not a name; kUnavailable  no shared memory, with the reason.
  static absl::StatusOr<std::shared_ptr<SharedBus>> Open(absl::string_view name,
                                                         uint64_t bytes_per_second);
  ~SharedBus();
  SharedBus(const SharedBus&) = delete;
  SharedBus& operator=(const SharedBus&) = delete;

  // When the last of so many bytes that are handed over at `now` is through. Of RealClock(), which
  // all processes of a host have in common.
  Nanos Take(uint64_t bytes, Nanos now);

  // What this process has handed over.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  SharedBus(std::string path, int file, std::atomic<int64_t>* free_at, uint64_t bytes_per_second)
      : path_(std::move(path)),
        file_(file),
        free_at_(free_at),
        bytes_per_second_(bytes_per_second) {}

  const std::string path_;
  const int file_;
  std::atomic<int64_t>* const free_at_;  // In nanoseconds.
  const uint64_t bytes_per_second_;
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace lamina
