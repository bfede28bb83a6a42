// SPDX-License-Identifier: Apache-2.0
//
// Listener: the coordinator's listening sockets, and a thread that accepts. Connections go to a
// handler, which owns them from then on. A process that runs out of file descriptors goes on
// accepting as soon as there are some again: the thread pauses, and a descriptor in reserve lets
// it take and close what waits meanwhile, so that clients learn at once that there is no room.
//
// Counting: a connection is open as long as its descriptor still names the socket that was
// accepted. The kernel gives every socket an inode of its own, so fstat() tells, whoever closes
// it, and without a word from the handler's owner. Looked at only when the limit is reached.
//
// Threading: Open(), Start() and Stop() from one thread; the handler runs on the listener's.
// Limits: connections_max; one more is closed at once.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace lamina::coordinator {

// A descriptor that is closed with its owner.
class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  ~OwnedFd() { Close(); }
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept;

  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Close();

 private:
  int fd_;
};

// How many connections a process may have open at a time: kConnectionsMax, or fewer where it may
// not open so many files. Some are kept for files, metrics and the library's own.
inline constexpr size_t kConnectionsMax = 4096;
inline constexpr size_t kDescriptorsKept = 128;
size_t ConnectionsMax();

// "ipv4:192.0.2.1:5000" or "ipv6:[2001:db8::1]:5000"; empty if there is no other end.
std::string PeerAddress(int socket);

class Listener {
 public:
  // Owns `connection`, which does not block. Must not wait.
  using Handler = std::function<void(OwnedFd connection)>;

  // Listens on host:port; port 0 picks one. A name is listened on at all of its addresses. 0.0.0.0
  // and [::] are all addresses of both families.
  // Errors: kInvalidArgument  `listen` is not host:port.
  //         kUnavailable      the address is taken, or is none of this host; says which.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& listen,
                                                        size_t connections_max = ConnectionsMax());
  // Stops.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  uint16_t port() const { return port_; }

  // For how long no byte has come over the connection of `peer`, which is named as gRPC does:
  // ipv4:192.0.2.1:5000, ipv6:[2001:db8::1]:5000. Any thread.
  // Nullopt: there is no such connection, or the kernel does not tell.
  std::optional<Nanos> SinceLastByte(absl::string_view peer) const;

  // Once. Connections that came since Open() have waited.
  void Start(Handler handler);
  // When it returns the handler is not called any more, and new connections are refused by the
  // kernel. Connections that were accepted stay.
  void Stop();

 private:
  enum class Outcome : uint8_t { kDone, kNoRoom, kFailed };

  explicit Listener(size_t connections_max) : connections_max_(connections_max) {}
  absl::Status Bind(const std::string& host, uint16_t port);
  void Run();
  // Takes one connection, if one waits.
  Outcome Accept(int socket);
  // Whether the descriptor still names the socket that was accepted.
  static bool IsOpen(const std::pair<const int, ino_t>& connection);
  // Guarded by mutex_: whether there is room for one more; forgets those that were closed.
  bool HasRoom();
  // Takes and closes connections that wait, with the descriptor in reserve.
  void TurnAway(int socket);
  void OpenReserve();
  // Logs some of the passes of Run() in a row. `why` there was no room.
  void NoteFull(absl::string_view why);

  const size_t connections_max_;
  std::vector<OwnedFd> sockets_;
  uint16_t port_ = 0;
  OwnedFd stop_;     // An eventfd: readable once Stop() was called.
  OwnedFd reserve_;  // Closed only to take a connection that is turned away.
  Handler handler_;
  std::thread thread_;

  // By descriptor: the inode of the socket that was accepted. Changed by the listener's thread.
  mutable std::mutex mutex_;
  std::unordered_map<int, ino_t> open_;
  uint64_t full_ = 0;  // Times in a row that there was no room. The listener's thread.
};

}  // namespace lamina::coordinator
