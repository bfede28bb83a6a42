// SPDX-License-Identifier: Apache-2.0
//
// WorkKind: what a data thread's time goes into. Every moment of it belongs to one of the
// kWorkParts.

#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace lamina::telemetry {

enum class WorkKind : uint8_t {
  // Compute nodes.
  kLayOut,         // A step's rows and tables.
  kDense,          // A slice, until its q, k and v are complete.
  kSend,           // q, k, v put out.
  kChunks,         // Attention of prompt chunks.
  kRecompute,      // K and V made again from activations.
  kOverlapped,     // The rest of a slice, which runs while attention is away.
  kContext,        // Context put to the next replica.
  kReduce,         // Parts of sums put to the other shards, and summed when all have come.
  kHead,           // Norm and LM head of the rows that are sampled, sampling, tokens put out.
  kTake,           // What others put here, copied to its place.
  kWaitAttention,  // For a memory node.
  kWaitReplica,    // For another compute node.
  kWaitWeights,    // For weights that stream.
  kWaitPlan,       // For the coordinator: nothing is planned. Of memory nodes too.
  // Memory nodes.
  kStore,      // k and v copied into slots.
  kAttend,     // Attention.
  kReply,      // Outputs put out.
  kTables,     // Plans applied, and moves of the spill tier ordered.
  kSpill,      // Moves of the spill tier that are over taken note of.
  kWaitQuery,  // For a compute node.
  // On a link, for rows that a device sends by itself: in timelines alone.
  kPost,      // From the device's raised word until the put was posted.
  kInFlight,  // Until it was complete.
  // For rows that a device waits for by itself: in timelines alone.
  kLand,        // From the host's raised word until the device saw its own, where a thread flushes.
  kDeviceWait,  // The device stood still until the rows were there.
};
inline constexpr int kWorkParts = static_cast<int>(WorkKind::kWaitQuery) + 1;
inline constexpr int kTraceKinds = static_cast<int>(WorkKind::kDeviceWait) + 1;

// Whether it is of a link, and no part of the thread's time.
constexpr bool IsOnLink(WorkKind kind) { return static_cast<int>(kind) >= kWorkParts; }

// "dense", "wait_attention": the words of metrics and timelines.
absl::string_view NameOf(WorkKind part);

// Whether the device stands still meanwhile.
bool IsWait(WorkKind part);

}  // namespace lamina::telemetry
