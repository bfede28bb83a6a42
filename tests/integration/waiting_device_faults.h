// SPDX-License-Identifier: Apache-2.0
//
// What befalls clusters whose devices wait for windows: nodes that leave, and windows of an epoch
// that is over.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/window_layout.h"
#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {

// Each of these nodes leaves during a request and comes back: answers are then what they were.
void ExpectAnswersOutlive(LocalCluster& cluster, const std::vector<std::string>& leaving);

// One window of a node, and the word that says that it has been written.
struct WindowPlace {
  size_t offset = 0;
  uint32_t word = 0;
};
// The windows that a peer writes, by lane and signal value.
using WindowsOfPeer = WindowPlace (*)(const plan::WindowLayout& layout, uint32_t lane,
                                      uint64_t value);
inline WindowPlace QueryWindowOf(const plan::WindowLayout& layout, uint32_t lane, uint64_t value) {
  return {.offset = layout.QueryWindow(0, lane, value), .word = layout.query_word(0, lane)};
}
inline WindowPlace ReplyWindowOf(const plan::WindowLayout& layout, uint32_t lane, uint64_t value) {
  return {.offset = layout.ReplyWindow(0, lane, value), .word = layout.reply_word(0, lane)};
}

// Somebody writes headers of the past over the windows of a peer, in every lane, until one is there
// when the node's device looks: it is refused and counted, the epoch ends, and the cluster serves.
void ExpectOldEpochIsRefused(LocalCluster& cluster, const std::string& node,
                             const std::string& transport_uri, WindowsOfPeer windows);

}  // namespace lamina::test_support
