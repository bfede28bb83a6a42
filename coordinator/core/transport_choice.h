// SPDX-License-Identifier: Apache-2.0
//
// TransportChoice: which transport of the cluster file's list carries the data: the first that
// works for all nodes. A pure state machine.
//
// Each epoch tries one. When a node says that it does not work, the next epoch tries the one behind
// it. When a node joins, all are tried again from the first: what was missing may have come with
// it.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lamina::core {

class TransportChoice {
 public:
  // URIs, best first. Requires: not empty.
  explicit TransportChoice(std::vector<std::string> uris);

  const std::string& uri() const { return uris_[index_]; }

  // `node` says that uri() does not work, and `why`. Goes on to the next; false, and nothing
  // changes, when there is none.
  bool PassOver(const std::string& node, const std::string& why);

  // From the first again.
  void Reset();

  // What stands before uri() and why it was passed over; empty when nothing does.
  std::string Warning() const;

 private:
  std::vector<std::string> uris_;
  std::vector<std::string> problems_;  // Problems of the URIs before index_.
  size_t index_ = 0;
};

}  // namespace lamina::core
