// SPDX-License-Identifier: Apache-2.0
//
// The largest cluster, steps and queues that this version is made for. The cluster file is checked
// against them, and the planner proposes nothing beyond. kSubBatchesMax stands with the signal
// values that it bounds, in row_pieces.h.

#pragma once

#include <cstdint>

namespace lamina::plan {

// The most nodes of one cluster; more are several clusters.
inline constexpr uint32_t kNodesMax = 256;
inline constexpr uint32_t kComputeNodesMax = 128;  // Bounds the windows of a memory node.
inline constexpr uint32_t kMemoryNodesMax = 255;   // Bounds the windows of a compute node.
inline constexpr uint32_t kLanesMax = 8;  // Lanes that decode; bounds the windows of all nodes.
inline constexpr uint32_t kLayersMax = 1u << 16;   // More than any model has.
inline constexpr uint32_t kChunkTokensMax = 8192;  // Bounds the activations of a step.
inline constexpr uint32_t kSequenceTokensMax = 1u << 20;
inline constexpr uint32_t kRunningMax = 4096;      // Sequences, and rows of one step.
inline constexpr uint32_t kWaitingMax = 1u << 20;  // Requests in the queue.

}  // namespace lamina::plan
