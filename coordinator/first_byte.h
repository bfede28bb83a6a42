// SPDX-License-Identifier: Apache-2.0
//
// FirstByte: holds each new connection until its first byte has come, and lets those on that speak
// as this port does: TLS, or in the clear. The gRPC library would end the others without a word.
//
// Threading: Add() any thread; the others that of the owner. A thread of its own waits and calls.
// Limits:    kWait without a byte; of connections as of Listener.

#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "coordinator/listener.h"

namespace lamina::coordinator {

class FirstByte {
 public:
  static constexpr Nanos kWait = Seconds(20);
  // Peers that were told of in the log; beyond, nobody is.
  static constexpr size_t kToldMax = 64;
  using Handler = std::function<void(OwnedFd connection)>;

  // `tls`: whether the port speaks it.
  explicit FirstByte(bool tls) : tls_(tls) {}
  ~FirstByte() { Stop(); }
  FirstByte(const FirstByte&) = delete;
  FirstByte& operator=(const FirstByte&) = delete;

  void Start(Handler handler);
  void Add(OwnedFd connection);
  // Closes what has not said anything.
  void Stop();

 private:
  struct Waiting {
    OwnedFd connection;
    Nanos since = 0;
  };

  void Run();
  // Decides on a connection whose bytes, or end, have come.
  void Judge(OwnedFd connection);
  void Tell(int connection);

  const bool tls_;
  Handler handler_;
  OwnedFd wake_;
  std::thread thread_;
  std::set<std::string> told_;  // The thread's.
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<OwnedFd> added_;
  bool stopping_ = false;
};

}  // namespace lamina::coordinator
