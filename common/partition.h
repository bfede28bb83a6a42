// SPDX-License-Identifier: Apache-2.0
//
// Partition: how the K and V of sequences are spread over memory nodes.

#pragma once

#include <cstdint>

namespace lamina {

enum class Partition : uint8_t {
  kRequest,     // A sequence lives on one node.
  kHead,        // Every node holds some KV heads of every sequence.
  kTokenRange,  // A sequence's tokens are cut at borders of blocks.
  kAuto,        // Whichever suits the cluster; in cluster files only.
};

}  // namespace lamina
