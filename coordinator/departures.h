// SPDX-License-Identifier: Apache-2.0
//
// Departures: nodes that were told to stop and ask to be let go. Whole clusters are told so at once
// (scancel, units, pods), so those who ask within kTogether are let go together, in one epoch; and
// where the others cannot serve without them, when no request is left.
//
// Threading: the engine's thread.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "coordinator/node_port.h"

namespace lamina::coordinator {

class Departures {
 public:
  static constexpr Nanos kTogether = Seconds(1);

  // A node asks; a second time changes nothing.
  void Asked(const NodeSource& node, Nanos now);

  // Drops those that are gone already: of whom `is_there` is false.
  void Keep(const std::function<bool(const NodeSource&)>& is_there);

  // Nodes to be let go now: all who asked, once kTogether has passed since the first. Empty before.
  std::vector<std::string> Due(Nanos now) const;

  // All who asked, in turn; whom nothing keeps where the coordinator itself is about to end.
  std::vector<std::string> asking() const;

  // The others cannot serve without them: new requests are refused until they are gone.
  void Hold(bool hold);
  // "m0, c0" while they are held; else empty.
  const std::string& held() const { return held_; }

 private:
  std::vector<NodeSource> nodes_;
  Nanos first_ = 0;  // When the first of them asked.
  std::string held_;
};

}  // namespace lamina::coordinator
