// SPDX-License-Identifier: Apache-2.0
//
// fake://NAME: a network within one process, for unit tests and simulation.
//
// Transports on a network of the same name reach each other. What a seed decides here, a real
// backend does by chance: with delays, a Put reads its source late, lands in pieces, and Puts and
// signals overtake each other wherever transport.h does not forbid it. Code that works over many
// seeds relies on no more than the contract.
//
// Time:        counted in steps; every Progress() of any Transport, and every round of a Wait, is
//              one step. Used from one thread, a run is a function of the seed.
// Threading:   as transport.h says, one thread for each Transport. Unlike real backends it locks
//              and allocates on the data path.
// Peer death:  destroying a Transport drops what it had in flight. Puts to a destroyed Region are
//              refused.
// Cut links:   SetLinks() decides which Puts arrive, while both ends live.
// Devices:     memory of one only where `reaches_devices`; then what has come is seen there only
// once
//              it has been landed, as with a NIC whose writes must be flushed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "common/device_memory.h"
#include "common/units.h"
#include "transport/transport.h"

namespace lamina::transport {

class FakeHub;

struct FakeNetworkOptions {
  uint64_t seed = 0;

  // Most steps that each of: reading a source, raising its signal, may take. 0: all happens in
  // Put(), like shared memory.
  uint32_t delay_steps_max = 0;

  // Data lands only while its target makes progress, like UCX over TCP.
  bool target_must_progress = false;

  // Regions and sources may lie in the memory of the device that a Transport was made with.
  bool reaches_devices = false;

  // Regions in the host's memory are shown to devices, and there are outboxes for these
  // (outbox/outboxes.h), as over verbs://.
  bool shows_memory = false;

  uint32_t in_flight_max = 64;  // For each Transport.
  uint64_t put_bytes_max = MiB(64);
};

// One Put, as links are asked about it.
struct FakePut {
  absl::string_view from;  // The sender's: its Transport's first Region names it. May be empty.
  absl::string_view to;    // The target's name.
  uint64_t epoch = 0;      // The target's.
  size_t bytes = 0;
  bool raises = false;  // It carries a signal.
};

enum class FakeFate : uint8_t {
  kArrives,
  kHangs,      // It stays on its way for ever, as where packets are dropped.
  kIsRefused,  // Put() says that the peer is gone, as after a connection was reset.
};
using FakeLinks = std::function<FakeFate(const FakePut&)>;

class FakeNetwork {
 public:
  // The network of that name, made with `options` if there is none. It lasts as long as the result
  // or one of its Transports is held; so a test holds one with the options it wants, and what is
  // tested uses "fake://NAME".
  // Threading: any thread.
  static std::shared_ptr<FakeNetwork> Named(absl::string_view name,
                                            const FakeNetworkOptions& options = {});

  explicit FakeNetwork(const FakeNetworkOptions& options);
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;
  ~FakeNetwork();

  // `device`, which may be null, outlives it.
  std::unique_ptr<Transport> MakeTransport(DeviceMemory* device = nullptr);

  // Asks `links` about every Put from now on that would be accepted, also those of Transports that
  // exist. They are called under a lock of the network, and must not use it. Null: all arrive.
  // Threading: any thread.
  void SetLinks(FakeLinks links);

 private:
  explicit FakeNetwork(std::shared_ptr<FakeHub> hub);

  const std::shared_ptr<FakeHub> hub_;
};

}  // namespace lamina::transport
