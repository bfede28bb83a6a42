// SPDX-License-Identifier: Apache-2.0
//
// ServiceManager: tells systemd, or who speaks its notify protocol (sd_notify(3)), how a daemon is:
// datagrams of "KEY=value" lines to the socket that NOTIFY_SOCKET names. Does nothing without one.
// Never waits for the manager: the kernel keeps some ten datagrams that it has not read, and what
// finds no room is told again later. A node that waited would not answer the coordinator.
//
// Threading: any thread; Watch() starts one, which the destructor ends.

#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "telemetry/node_counters.h"

namespace lamina::daemon {

class ServiceManager {
 public:
  // `socket`: a path, or @name of an abstract one; empty: nobody listens. `watchdog`: how often the
  // manager wants to hear from Watch(); 0: it does not.
  ServiceManager(std::string socket, Nanos watchdog);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  // The daemon serves, from now on. Again and again is fine. Where the manager's socket has no
  // room, Watch() tells it later.
  void Ready() { Tell("READY=1"); }
  // It was told to stop. The same.
  void Stopping() { Tell("STOPPING=1"); }

  // From now on tells `status`, whenever it is another than the manager was told last, and that the
  // daemon lives while `alive` says so in time: a call that does not return is as bad as false.
  // Called once.
  void Watch(std::function<std::string()> status, std::function<bool()> alive);

 private:
  // False where the socket has no room; an error is logged, and is no reason to try again.
  bool Send(const std::string& text) const;
  void Tell(const std::string& text);
  // Sends what waits, in its order. Returns whether nothing is left.
  bool SendUntold();
  void Run(const std::function<std::string()>& status, const std::function<bool()>& alive);

  const std::string socket_;
  const Nanos watchdog_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  bool ending_ = false;
  std::vector<std::string> untold_;  // Each text once.
  std::thread thread_;
};

// Whether a node's data thread gets on between two looks: its beats change, or it has no epoch, or
// it prepares one, for which the coordinator has limits of its own.
class ProgressWatch {
 public:
  bool Alive(const telemetry::NodeCounters& now);

 private:
  uint64_t beats_ = UINT64_MAX;
};

}  // namespace lamina::daemon
