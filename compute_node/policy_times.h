// SPDX-License-Identifier: Apache-2.0
//
// What a compute node measures for policy auto, before it joins: slices and the end of a step on
// all its threads, and on those that it has in use with memory nodes; attention on both, and on the
// latter making K and V from activations, as policies that fetch do. A stage measures the slices of
// its layers, a shard its heads and columns of them, without the way to other nodes
// (own_slices.h).
//
// On all threads attention follows each slice, as in a step of policy local. The cores that it
// shares with memory nodes attend while the others run slices, as they do while K and V are there:
// what one takes from the other of the memory's bandwidth is in both figures.
//
// All of this is measured in turns, between which the host's reads are (policy_turns.h): where they
// change meanwhile, figures of slow and of fast reads are told apart.
//
// Slices, tails and attention beside them are timed by the clock of the device that they run on.
//
// Threading: runs in the calling thread and the pool's, which nobody else may use meanwhile.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/attention_descriptor.h"
#include "common/thread_pool.h"
#include "compute_node/own_slices.h"
#include "compute_node/slice_executor.h"
#include "plan/policy_times.h"

namespace lamina::compute_node {

struct PolicyMeasurement {
  std::vector<AttentionDescriptor> layers;  // The node's attention layers, with its own heads.
  SliceRange slices = {};                   // What it runs; all slices unless it says so.
  // Threads of the pool in use together with memory nodes. All of them if no cores are shared.
  size_t pools_threads = 1;
  std::vector<int> shared_cores;  // Cores shared with memory nodes.
  // K and V that are attended over: more than caches keep.
  uint64_t kv_bytes = uint64_t{96} << 20;
  // Plain reads between turns, on the host: as BytesToRead() says for the pool's cores.
  size_t read_bytes = size_t{64} << 20;
  // Makes K and V of some tokens in one layer from activations, and says of how many; null where
  // this node or model cannot.
  std::function<absl::StatusOr<uint32_t>()> make_kv;
};

// How much is read to learn how fast memory is, where last caches have so many bytes in all: twice
// that, within 64 and 256 MiB, so that they keep next to nothing of it; 256 MiB where their size is
// not known (0).
size_t BytesToRead(uint64_t cache_bytes);

// Leaves all threads of the pool in use. The calling thread should be pinned as the data thread is.
// Requires: the weights of its slices are there.
// Errors: those of the executor; kResourceExhausted  no memory for K and V of the measurement.
// Cost: one to two seconds, and 260 MiB for its duration, or up to 450 MiB with read_bytes of 256
// MiB; whatever the model's size: of a large one fewer slices are run.
absl::StatusOr<plan::PolicyTimes> MeasurePolicyTimes(const PolicyMeasurement& what,
                                                     SliceExecutor& executor, ThreadPool& pool);

}  // namespace lamina::compute_node
