// SPDX-License-Identifier: Apache-2.0
//
// LateStreams: tells nodes that are silent from those whose words have come to this host and were
// not handed on yet. The gRPC library may be busy for many seconds with what others send: then the
// kernel still knows when the last byte of a node came, and what the node said last counts again,
// but for what its data thread did.
//
// Threading: any thread; Repeat is called from a thread of its own, or from Look().

#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/clock.h"
#include "coordinator/node_port.h"
#include "telemetry/node_counters.h"

namespace lamina::coordinator {

// A status of a node.
struct NodeWord {
  NodeSource source;
  std::string peer;  // The other end of its connection, as gRPC names it.
  double busy_share = 0;
  telemetry::NodeCounters counters;
};

class LateStreams {
 public:
  // Nodes say something every 0.5 s; a busy host may be late.
  static constexpr Nanos kLate = Seconds(2);

  // For how long no byte has come from `peer`; nullopt if that is not known.
  using SinceLastByte = std::function<std::optional<Nanos>(const std::string& peer)>;
  using Repeat = std::function<void(const NodeWord& word)>;

  LateStreams(SinceLastByte since_last_byte, Repeat repeat, const Clock& clock);
  ~LateStreams();
  LateStreams(const LateStreams&) = delete;
  LateStreams& operator=(const LateStreams&) = delete;

  void Heard(NodeWord word);
  // Its stream has ended.
  void Forget(const NodePort* port);

  // Has a thread look every second. Once.
  void Start();
  // Repeats the last word of those of whom bytes come and words do not.
  void Look();

 private:
  struct Last {
    NodeWord word;
    Nanos at = 0;
  };
  void Run();

  const SinceLastByte since_last_byte_;
  const Repeat repeat_;
  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stopped_ = false;
  std::map<const NodePort*, Last> last_;
  std::thread thread_;
};

}  // namespace lamina::coordinator
