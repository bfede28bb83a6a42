// SPDX-License-Identifier: Apache-2.0
//
// PeerWatch: who is there. An owner of regions listens; a peer that opens a region connects, is
// told whether the region exists, and stays connected. When the region is destroyed the owner says
// so and waits until all who opened it have understood; when the owner dies, its kernel ends the
// connections. So an opener knows at once, whatever carries the data and whether or not anybody
// drives it. Nothing here touches UCX, and no data passes.
//
//   opener                                  owner
//                                        <- magic, nonce (40 bytes)
//   magic, owner's id, region, proof     -> Y: is there, N: is not, X: that is not my id,
//   (72 bytes)                              S: that proof is not of our secret over all these
//                                           ...
//   closes the connection                <- C: the region is being destroyed
//
// Threading: any thread; each PeerWatch has one of its own, which sleeps unless something happens.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/cluster_secret.h"
#include "common/port_range.h"

namespace lamina::transport {

// 128 random bits.
using WatchId = std::array<uint64_t, 2>;
WatchId DrawWatchId();

enum class OwnerState : uint32_t { kThere, kRegionDestroyed, kGone };

// What an opener knows. Written by the watch's thread.
struct WatchedRegion {
  std::atomic<OwnerState> state{OwnerState::kThere};
};

// Where those who open regions may be.
enum class PeerReach : uint8_t { kAnyHost, kThisHost };

class PeerWatchServer;

class PeerWatch {
 public:
  // Openers that one owner serves at a time; later ones find it unavailable.
  static constexpr size_t kOpenersMax = 4096;

  // Listens on all addresses, or on loopback alone, at a port of `ports`. Of this host's addresses
  // a few travel to peers, those of `networks` (of AddressesForPeers()) first.
  static absl::StatusOr<std::unique_ptr<PeerWatch>> Start(
      PeerReach reach, const ClusterSecret& secret = {}, const PortRange& ports = {},
      absl::Span<const std::string> networks = {});
  // All that it watches is forgotten; all that it announced is withdrawn.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // For Open() of a peer.
  const std::string& address() const { return address_; }

  void Announce(const WatchId& region);
  // Returns when every opener knows, or has gone, or after a second.
  void Withdraw(const WatchId& region);

  // Asks the watch at `address` for `region`.
  // Errors: kUnavailable      not there, or not reached by `deadline`; says what was tried.
  //         kInvalidArgument  no address of a watch.
  absl::StatusOr<std::shared_ptr<const WatchedRegion>> Open(absl::string_view address,
                                                            const WatchId& region, Nanos deadline);
  // The opener uses it no more.
  void Forget(const std::shared_ptr<const WatchedRegion>& watched);

  // The id in an address: the same for all regions of one Transport.
  static absl::StatusOr<WatchId> OwnerOf(absl::string_view address);

 private:
  PeerWatch(std::unique_ptr<PeerWatchServer> server, std::string address, ClusterSecret secret);

  const std::unique_ptr<PeerWatchServer> server_;
  const std::string address_;
  const ClusterSecret secret_;
};

}  // namespace lamina::transport
