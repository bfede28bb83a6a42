// SPDX-License-Identifier: Apache-2.0
//
// LandingProxy: for a region in a device's memory that the device is to wait for itself, while it
// does not order the writes of NICs. A thread looks at the region's signals, which lie in the
// host's memory, has the device take what they cover (Region::Land()), and raises words of its own
// in pinned memory, which the device polls.
//
// Threading: one thread, as long as this lives. While signals come it looks without a pause, later
//            with naps: of 50 us, and of 500 us when nothing has come for a second. Times are taken
//            by another one.
// Cost:      while times are noted, a reading of the clock more at each look and each landing.
// Ownership: the region outlives it.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"
#include "common/landings.h"
#include "transport/transport.h"

namespace lamina::transport {

class LandingProxy final : public Landings {
 public:
  // Errors: kResourceExhausted  no memory for the words.
  static absl::StatusOr<std::unique_ptr<LandingProxy>> Start(Region& region);
  LandingProxy(const LandingProxy&) = delete;
  LandingProxy& operator=(const LandingProxy&) = delete;
  ~LandingProxy() override;

  // The region's bytes, of the device, and the words that this raises, of the host.
  DirectMemory memory();

  void NoteTimes(bool wanted) override { wanted_.store(wanted, std::memory_order_relaxed); }
  std::optional<LandingTimes> TakeTimes() override;

 private:
  LandingProxy(Region& region, absl::Span<std::byte> pages) : region_(region), pages_(pages) {}

  void Run();
  // Returns whether a signal was there that had not been landed. The look before began at `looked`;
  // 0: times are not noted.
  bool LandRaised(Nanos looked);
  void Note(const LandingTimes& times);
  std::atomic<uint64_t>& word(uint32_t index) const;

  Region& region_;
  const absl::Span<std::byte> pages_;
  bool failed_ = false;  // The proxy's own: the device has failed, and nothing more is raised.
  static constexpr uint64_t kTimesKept = 256;
  std::atomic<bool> wanted_{false};
  std::array<LandingTimes, kTimesKept> times_;
  alignas(64) std::atomic<uint64_t> noted_{0};  // Ever; the proxy writes it.
  alignas(64) std::atomic<uint64_t> taken_{0};  // Whoever takes writes it.
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace lamina::transport
