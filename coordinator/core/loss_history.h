// SPDX-License-Identifier: Apache-2.0
//
// LossHistory: the losses of nodes that a sequence was running in since its last committed token.
//
// A sequence whose node is lost is recomputed on those that are left. One that itself brings nodes
// down (by a bug that its input meets) would bring down one after the other that way, and everybody
// else's requests with them. It ends after kLossesMax losses in which it has got nowhere. A
// sequence that was merely there sees so many in a row only when nodes die faster than its prompt
// is worked on.

#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace lamina::core {

class LossHistory {
 public:
  static constexpr size_t kLossesMax = 3;

  // `nodes`: the name of the node that was lost, or of all that were lost at once.
  void Add(std::string nodes) { losses_.push_back(std::move(nodes)); }
  // A token was committed.
  void Forget() { losses_.clear(); }

  bool TooMany() const { return losses_.size() >= kLossesMax; }
  // For the client: kUnavailable, names every loss. Requires: TooMany().
  absl::Status Why() const;

 private:
  std::vector<std::string> losses_;
};

}  // namespace lamina::core
