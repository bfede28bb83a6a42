// SPDX-License-Identifier: Apache-2.0
//
// FakeHub: the regions of one fake network and the Puts on their way.
//
// Threading: any thread; one mutex. Signal words are atomic, so that receivers read them without.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device_memory.h"
#include "common/philox.h"
#include "transport/fake/fake_network.h"
#include "transport/transport.h"

namespace lamina::transport {

// The memory of one region. Outlives the Region while Puts to it are on their way.
struct FakeMemory {
  uint64_t id = 0;  // Unique within the process.
  std::string name;
  uint64_t owner = 0;  // Number of the Transport that made it.
  uint64_t epoch = 0;
  // Whole pages of it are first `signals`, then, on pages of its own, `arrived`.
  std::vector<std::byte> storage;
  absl::Span<std::byte> pages;
  absl::Span<std::byte> arrived;  // What Puts write.
  DeviceAllocation device;        // Empty where `bytes` are what has arrived; else Land() copies.
  absl::Span<std::byte> bytes;
  // In `device`, for one that orders the writes of others: what lands, and words that are raised,
  // go there at once. Null: there are none.
  std::byte* device_words = nullptr;
  absl::Span<std::atomic<uint64_t>> signals;
};

// A sender's view. Guarded by the hub's mutex, except what is constant.
struct FakeView {
  uint64_t sender = 0;                 // Constant.
  std::shared_ptr<FakeMemory> target;  // Constant.
  std::vector<uint64_t> raised;        // The greatest value put to each word.
  uint32_t pending = 0;                // Puts whose source was not read yet.
};

class FakeHub {
 public:
  explicit FakeHub(const FakeNetworkOptions& options);

  const FakeNetworkOptions& options() const { return options_; }

  // What a region with words in its device's memory takes of it, and where these begin.
  static size_t DeviceBytes(const RegionOptions& options);
  static size_t DeviceWordsAt(size_t bytes);

  uint64_t AddTransport();
  void RemoveTransport(uint64_t transport);

  // `device` is empty for data in the host's memory.
  std::shared_ptr<FakeMemory> AddRegion(uint64_t owner, const RegionOptions& options,
                                        DeviceAllocation device);
  // Frees its device memory too.
  void RemoveRegion(FakeMemory& memory);
  absl::Status Land(const FakeMemory& memory, size_t offset, size_t bytes);

  // Errors: kUnavailable  no such region on this network.
  absl::StatusOr<std::shared_ptr<FakeView>> AddView(uint64_t sender, uint64_t region);
  // Reads the sources of what is in flight first.
  void RemoveView(const FakeView& view);

  // `device` owns the memory; null for the host's.
  void AddSource(uint64_t transport, absl::Span<const std::byte> bytes, DeviceMemory* device);

  absl::Status Put(const std::shared_ptr<FakeView>& view, size_t offset,
                   absl::Span<const std::byte> source, const SignalUpdate* signal);
  uint32_t Pending(const FakeView& view) const;

  void SetLinks(FakeLinks links);

  // One step of time, seen from `transport`. Returns how many of its own Puts were completed.
  uint32_t Step(uint64_t transport);

 private:
  struct Source {
    uint64_t transport = 0;
    absl::Span<const std::byte> bytes;
    DeviceMemory* device = nullptr;  // Null: the host's.
  };

  // A Put on its way: first its data lands, in two pieces, then its signal.
  struct Flight {
    std::shared_ptr<FakeView> view;
    size_t offset = 0;
    absl::Span<const std::byte> source;
    DeviceMemory* device = nullptr;  // Owns the source's memory; null: the host.
    std::optional<SignalUpdate> signal;
    std::pair<uint64_t, uint64_t> data_due;  // Steps, for each half.
    uint64_t signal_due = 0;
    std::pair<bool, bool> landed = {false, false};

    bool data_done() const { return landed.first && landed.second; }
    bool done() const { return data_done() && !signal; }
  };

  absl::Status CheckPut(const FakeView& view, size_t offset, absl::Span<const std::byte> source,
                        const SignalUpdate* signal) const;
  // What was registered and holds `bytes`; nothing where nothing does.
  std::optional<Source> FindSource(uint64_t transport, absl::Span<const std::byte> bytes) const;
  uint32_t InFlight(uint64_t sender) const;
  FakeFate FateOf(const FakeView& view, size_t bytes, bool raises) const;
  uint64_t DrawDue();
  static void Raise(FakeMemory& memory, const SignalUpdate& signal);
  void LandData(Flight& flight, uint64_t step);
  bool MayRaise(const Flight& flight) const;
  void Drop(const FakeMemory* target, uint64_t sender);

  const FakeNetworkOptions options_;
  // All below is guarded by it, and the private functions are called with it held. Not absl::Mutex:
  // ThreadSanitizer cannot see into the library that Debian builds.
  mutable std::mutex mutex_;
  Prng prng_;
  uint64_t step_ = 0;
  std::map<uint64_t, std::shared_ptr<FakeMemory>> regions_;
  std::map<uint64_t, std::string> names_;  // By Transport, of its first region.
  FakeLinks links_;
  std::vector<Source> sources_;
  std::deque<Flight> flights_;  // In the order of their Puts.
};

}  // namespace lamina::transport
