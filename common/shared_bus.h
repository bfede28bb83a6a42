// SPDX-License-Identifier: Apache-2.0
//
// SharedBus: the emulated bus of a device: one bandwidth that several processes of a host share, as
// transfers over PCIe do, whatever they carry. Each transfer takes its turn behind those that were
// handed over before it; an idle bus saves nothing for later.
//
// Processes of one user meet by the bus's name: a word of shared memory says when the bus is free,
// others how long it was busy and what it carried. They go with the last of these processes; a file
// of a few bytes stays where all were killed.
//
// Who hands bytes over knows how many they are, and whoever makes the transfer what they are: the
// one calls Take(), the other Count(), so that each is a check of the other:
//
//   sum of kinds = bytes_per_second * busy
//
// Threading: any thread.   Memory: a page.   Cost: Take() three atomic additions, Count() one.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace lamina {

// Letters, digits, '-', '_' and '.', 1 to 64 of them without the directions ".to" and ".from" that
// nodes put behind it.
bool IsBusName(absl::string_view name);

// What a transfer carries. kRows: queries, outputs of attention and other rows of steps, and the
// headers of windows. kProbes: what measures links when an epoch begins.
enum class BusKind : uint32_t { kKv, kActivations, kWeights, kRows, kProbes };
inline constexpr size_t kBusKinds = 5;
absl::string_view NameOf(BusKind kind);  // "kv", "activations", "weights", "rows", "probes".

// What a bus has carried for all processes on it, since the first of them came.
struct BusTotals {
  uint64_t bytes_per_second = 0;
  double busy_seconds = 0;                     // Time of all bytes that Take() was given.
  std::array<uint64_t, kBusKinds> bytes = {};  // Bytes that Count() was given, by BusKind.
};

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

  // So many bytes of what somebody hands over are of this kind.
  void Count(BusKind kind, uint64_t bytes) {
    page_->bytes[static_cast<size_t>(kind)].fetch_add(bytes, std::memory_order_relaxed);
  }

  BusTotals Totals() const;

  // What this process has handed over.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  // In shared memory; zeros at first.
  struct Page {
    std::atomic<int64_t> free_at;     // In nanoseconds.
    std::atomic<int64_t> busy_nanos;  // Their sum over all transfers.
    std::array<std::atomic<uint64_t>, kBusKinds> bytes;
  };

  SharedBus(std::string path, int file, Page* page, uint64_t bytes_per_second)
      : path_(std::move(path)), file_(file), page_(page), bytes_per_second_(bytes_per_second) {}

  const std::string path_;
  const int file_;
  Page* const page_;
  const uint64_t bytes_per_second_;
  std::atomic<uint64_t> bytes_{0};
};

// The bus that the URI of a throttled transport names. Null: it names none.
// Errors: as SharedBus::Open(); kInvalidArgument  options that are none.
absl::StatusOr<std::shared_ptr<SharedBus>> OpenBusOf(absl::string_view uri);

// Counts what a node puts on the bus of its transport, if that has one.
//
// Threading: Use() before the thread that counts.
class BusTally {
 public:
  void Use(std::shared_ptr<SharedBus> bus) { bus_ = std::move(bus); }  // Null: there is none.
  void Count(BusKind kind, uint64_t bytes) const {
    if (bus_ != nullptr) {
      bus_->Count(kind, bytes);
    }
  }

 private:
  std::shared_ptr<SharedBus> bus_;
};

}  // namespace lamina
