// SPDX-License-Identifier: Apache-2.0
//
// Puts of any size, puts that must have left before their source is used again, and waits of any
// length: each raises the beat of its options while it waits.
//
// Threading: the thread that owns the transport.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "transport/transport.h"

namespace lamina::transport {

template <typename T>
absl::Span<const std::byte> AsBytes(const T* data, size_t count) {
  return {reinterpret_cast<const std::byte*>(data), count * sizeof(T)};
}

// Puts `source`, in pieces if the backend asks for them, the signal with the last one; tries again
// while the backend's queue is full.
// Errors: those of Put(); kDeadlineExceeded  the queue stayed full; kCancelled  the abort word was
//         raised meanwhile. On an error some pieces may have left; the signal has not.
absl::Status PutAll(Transport& transport, RemoteRegion& target, size_t offset,
                    absl::Span<const std::byte> source, const SignalUpdate* signal,
                    const WaitOptions& options);

// Waits until no source of puts to `target` is read any more.
// Errors: kDeadlineExceeded, kCancelled.
absl::Status DrainPuts(Transport& transport, RemoteRegion& target, const WaitOptions& options);

// As Transport::Wait(), in naps of at most ThreadBeat::kNapMost, with a beat before each.
absl::StatusOr<size_t> WaitInNaps(Transport& transport, const Region& region,
                                  absl::Span<const SignalCondition> conditions,
                                  const WaitOptions& options);

struct RegionSize {
  size_t bytes = 0;
  uint32_t signal_words = 0;
};

// Opens a peer's region, to which Puts will go up to `least`.
// Errors: those of OpenRegion(); kFailedPrecondition  the region is smaller: the peer reckons with
//         smaller batches.
absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegionOf(Transport& transport,
                                                           absl::string_view descriptor,
                                                           uint64_t epoch, RegionSize least);

// Opens the regions of all peers, in order, with a beat before each: a peer that does not answer
// takes seconds. Errors: those of OpenRegionOf(); `failed` is then the index of the one that could
// not be opened.
absl::StatusOr<std::vector<std::unique_ptr<RemoteRegion>>> OpenRegions(
    Transport& transport, const std::vector<std::string>& descriptors, uint64_t epoch,
    RegionSize least, size_t* failed = nullptr, ThreadBeat* beat = nullptr);

}  // namespace lamina::transport
