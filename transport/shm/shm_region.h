// SPDX-License-Identifier: Apache-2.0
//
// ShmRegion and ShmRemoteRegion: the two ends of one region in shared memory.
//
//   page 0          ShmHeader
//   from 4096       signal words, one on each cache line
//   from a page on  data; where that lies in a device's memory, room for it
//   (peer_window_internal.h)
//
// Sleeping: a waiter that found nothing raises `sleeping`, looks once more, and sleeps on that word
// as a futex. A sender stores its signal and then looks at `sleeping`. Both put a full fence
// between their store and their load, so at least one of them sees the other.
// See: docs/adr/0009-shm-regions.md.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/shm/device_windows_internal.h"
#include "transport/shm/peer_window_internal.h"
#include "transport/shm/shared_mapping_internal.h"
#include "transport/shm/shm_descriptor.h"
#include "transport/transport.h"

namespace lamina::transport {

inline constexpr size_t kCacheLineBytes = 64;
inline constexpr uint32_t kShmSignalWordsMax = 1u << 20;
inline constexpr uint64_t kShmDataBytesMax = uint64_t{1} << 46;

struct ShmHeader {
  // Constant after creation; a peer compares them with its descriptor.
  uint64_t magic;
  uint64_t key[2];
  uint64_t epoch;
  uint64_t data_bytes;
  uint32_t signal_words;
  uint64_t handle_checksum;  // ShmHandleChecksum().

  // Read by the sender at every Put, written only when something rare happens.
  alignas(kCacheLineBytes) std::atomic<uint32_t> closed;  // The owner destroyed the region.
  std::atomic<uint32_t> sleeping;                         // 1: the waiter sleeps on this word.

  ShmDecision decision;  // How data in a device's memory is reached.
};

struct alignas(kCacheLineBytes) ShmSignalWord {
  std::atomic<uint64_t> value;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Where the parts lie.
struct ShmLayout {
  size_t data_offset = 0;
  size_t total_bytes = 0;
};
// Requires: within kShmDataBytesMax and kShmSignalWordsMax.
ShmLayout MakeShmLayout(uint64_t data_bytes, uint32_t signal_words);

class ShmRegion final : public Region, private DeviceRegion {
 public:
  // `windows`, which outlives it, where there is a device.
  // Errors: those of CreateRegion(), and
  //         kFailedPrecondition  the device shares no memory between processes; says why.
  static absl::StatusOr<std::unique_ptr<ShmRegion>> Create(const RegionOptions& options,
                                                           DeviceWindows* windows = nullptr);
  ShmRegion(const ShmRegion&) = delete;
  ShmRegion& operator=(const ShmRegion&) = delete;
  ~ShmRegion() override;  // Tells the senders.

  absl::Span<std::byte> bytes() override { return bytes_; }
  const DeviceRegion* device() const override {
    return device_data_.memory() == nullptr ? nullptr : this;
  }
  DirectMemory direct() override;
  uint32_t signal_words() const override { return descriptor_.signal_words; }
  uint64_t LoadSignal(uint32_t word) const override;
  std::string Descriptor() const override { return EncodeShmDescriptor(descriptor_); }

  // The index of the first condition that holds. Requires: every word is in range.
  std::optional<size_t> FirstHolding(absl::Span<const SignalCondition> conditions) const {
    for (size_t i = 0; i < conditions.size(); ++i) {
      // Acquire: the data that came before the signal is visible.
      if (signals_[conditions[i].word].value.load(std::memory_order_acquire) >=
          conditions[i].at_least) {
        return i;
      }
    }
    return std::nullopt;
  }

  // Sleeps until a signal is raised, or for about `at_most`, or not at all when a condition holds.
  void Sleep(absl::Span<const SignalCondition> conditions, Nanos at_most) const;

  // Words may be raised past the transport: nobody wakes a sleeper then.
  bool written_by_devices() const { return written_by_devices_; }

 private:
  ShmRegion(FileDescriptor file, SharedMapping mapping, const ShmDescriptor& descriptor,
            bool written_by_devices, DeviceAllocation data, DeviceWindows* windows);
  MemoryChoice memory() const override;
  absl::Status Land(size_t offset, size_t bytes) const override;

  // Constant until it is destroyed.
  FileDescriptor file_;  // Peers open it under our number in /proc.
  const SharedMapping mapping_;
  const ShmDescriptor descriptor_;
  const bool written_by_devices_;
  ShmHeader* const header_;
  ShmSignalWord* const signals_;
  const absl::Span<std::byte> shared_;  // The data in the shared memory.
  DeviceAllocation device_data_;        // Empty where that is the data.
  const absl::Span<std::byte> bytes_;
  DeviceWindows* const windows_;
};

class ShmRemoteRegion final : public RemoteRegion {
 public:
  // `device`, which outlives it, is the sender's; null: it has none.
  static absl::StatusOr<std::unique_ptr<ShmRemoteRegion>> Open(const ShmDescriptor& descriptor,
                                                               DeviceMemory* device = nullptr);

  size_t size_bytes() const override { return data_bytes_; }
  uint32_t signal_words() const override { return static_cast<uint32_t>(raised_.size()); }
  std::string path() const override;
  DirectMemory direct() override;

  bool closed() const {
    // Relaxed: nothing is read on the strength of it; a Put that slips through lands in memory that
    // only senders still hold.
    return header_->closed.load(std::memory_order_relaxed) != 0;
  }

  // Copies and raises; no word is raised when it fails. `from_device`: the source is the device's.
  absl::Status Put(size_t offset, absl::Span<const std::byte> source, const SignalUpdate* signal,
                   bool from_device = false);

 private:
  ShmRemoteRegion(SharedMapping mapping, const ShmDescriptor& descriptor, DeviceMemory* device);

  absl::Status Copy(size_t offset, absl::Span<const std::byte> source, bool from_device) const;
  absl::Status CheckPut(size_t offset, size_t bytes, const SignalUpdate* signal) const;
  void Raise(const SignalUpdate& signal);

  const SharedMapping mapping_;
  ShmHeader* const header_;
  ShmSignalWord* const signals_;
  std::byte* const data_;
  const size_t data_bytes_;
  const bool on_device_;        // The owner's data is.
  DeviceMemory* const device_;  // The sender's; may be null.
  PeerWindow window_;
  bool owner_gone_ = false;        // Seen where the data is the device's alone.
  std::vector<uint64_t> raised_;   // The greatest value of each word, as this end knows it.
  bool raised_elsewhere_ = false;  // Perhaps: somebody has asked for direct().
};

}  // namespace lamina::transport
