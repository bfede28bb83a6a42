// SPDX-License-Identifier: Apache-2.0
//
// ServiceManager: tells systemd, or who speaks its notify protocol (sd_notify(3)), how a daemon is:
// datagrams of "KEY=value" lines to the socket that NOTIFY_SOCKET names. Does nothing without one.
//
// Threading: any thread; Watch() starts one, which the destructor ends.

#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

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

  // The daemon serves, from now on. Again and again is fine.
  void Ready() const { Send("READY=1", /*waits=*/true); }
  // It was told to stop.
  void Stopping() const { Send("STOPPING=1", /*waits=*/true); }

  // From now on tells `status`, when it has changed, and that the daemon lives while `alive` says
  // so in time: a call that does not return is as bad as false. Once.
  void Watch(std::function<std::string()> status, std::function<bool()> alive);

 private:
  // `waits`: for room, where the manager does not read; else the text is lost then.
  void Send(const std::string& text, bool waits) const;
  void Run(const std::function<std::string()>& status, const std::function<bool()>& alive);

  const std::string socket_;
  const Nanos watchdog_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;  // Guarded by mutex_.
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
