// SPDX-License-Identifier: Apache-2.0
//
// PeerWatchServer: the thread of a PeerWatch, and the connections that it looks after.
//
// Threading: any thread. Connections are closed by the server's thread alone.

#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "transport/ucx/peer_watch.h"
#include "transport/ucx/socket_internal.h"

namespace lamina::transport {

struct WatchChallenge {
  std::array<char, 8> magic;
  std::array<char, ClusterSecret::kNonceBytes> nonce;
};
struct WatchHello {
  std::array<char, 8> magic;
  WatchId owner;
  WatchId region;
  std::array<char, ClusterSecret::kProofBytes> proof;
};
inline constexpr std::array<char, 8> kWatchMagic = {'L', 'M', 'N', 'A', 'P', 'W', '0', '2'};
inline constexpr char kWatchThere = 'Y';
inline constexpr char kWatchUnknown = 'N';
inline constexpr char kWatchMistaken = 'X';
inline constexpr char kWatchStranger = 'S';
inline constexpr char kWatchDestroyed = 'C';

// The proof of a hello in answer to that challenge.
std::string OpenerProof(const ClusterSecret& secret, const WatchChallenge& challenge,
                        const WatchHello& hello);

class PeerWatchServer {
 public:
  // Errors: kResourceExhausted  the process has no file descriptor left for the event.
  static absl::StatusOr<std::unique_ptr<PeerWatchServer>> Start(Listener listener,
                                                                const WatchId& id,
                                                                ClusterSecret secret);
  ~PeerWatchServer();
  PeerWatchServer(const PeerWatchServer&) = delete;
  PeerWatchServer& operator=(const PeerWatchServer&) = delete;

  const WatchId& id() const { return id_; }
  uint16_t port() const { return listener_.port; }

  void Announce(const WatchId& region);
  void Withdraw(const WatchId& region);
  // Takes a connection on which the owner said that the region is there.
  std::shared_ptr<const WatchedRegion> Watch(Socket socket);
  void Forget(const std::shared_ptr<const WatchedRegion>& watched);

 private:
  struct Connection {
    Socket socket;
    std::shared_ptr<WatchedRegion> watched;  // What an opener watches; null at an owner.
    WatchChallenge challenge = {};           // At an owner.
    std::string received;                    // At an owner, until the hello is whole.
    WatchId region = {};                     // At an owner, after it.
    Nanos since = 0;
    bool greeted = false;
    bool over = false;
  };

  PeerWatchServer(Listener listener, Socket wake, const WatchId& id, ClusterSecret secret);
  void Loop();
  // All below with mutex_ held.
  bool Accept();  // False: the process has no descriptor for one more.
  static void Challenge(Connection& connection);
  void Read(Connection& connection);
  void Greet(Connection& connection);
  void DropLateGreeters();
  void Wake();

  const WatchId id_;
  const ClusterSecret secret_;
  const Listener listener_;
  const Socket wake_;  // An eventfd.
  std::mutex mutex_;
  std::condition_variable closed_;
  // Guarded by mutex_.
  std::set<WatchId> regions_;
  std::list<Connection> connections_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lamina::transport
