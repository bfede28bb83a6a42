// SPDX-License-Identifier: Apache-2.0
//
// What the keys of a cluster file must be like for its policy.

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "config/cluster_config.h"

namespace lamina::internal {

// Errors: kInvalidArgument  memory nodes under policy local, or none under auto; capacity of a
//                           compute node under attend_remote, or none under the others; a partition
//                           or lanes that need memory nodes; nodes for prompts under local; no core
//                           for compute next to memory nodes; a load for auto that cannot be, or
//                           under another policy.
//         kUnimplemented    nodes for prompts under auto, or several compute nodes that share cores
//                           with memory nodes; policies that fetch with several compute nodes;
//                           fetch_sparse, or heads that stream, with spans of sequences; what keeps
//                           activations with compute_type f32.
absl::Status CheckPolicy(const ClusterConfig& config);

// Errors: kInvalidArgument  a file of heads that stream under another policy than fetch_heads; what
//                           they see without a file, or out of range.
//         kUnimplemented    heads that stream with INT8, spill tiers, nodes for prompts, or prompts
//                           with an attention of their own.
absl::Status CheckStreamingHeads(const ClusterConfig& config);

// Lanes of a cluster whose file says none: one more than replicas, or two for each stage, the
// schedules that leave nobody idle; one where weights stream.
uint32_t DefaultLanes(const ClusterConfig& config);

// Checks the words of `policy` and `policies`.
// Errors: kInvalidArgument  a word that is no policy, or comes twice; a `policy` that is not among
//                           `policies`; local or auto among several;
//                           a share of slots for fetch_hybrid where it is not one of several, or
//                           that leaves it or the others none.
//         kUnimplemented    of several: fetch_recompute with heads that stream, or from activations
//                           with INT8; fetch_hybrid with heads that stream, INT8, fetch_recompute,
//                           or spans.
absl::Status CheckPolicies(const ClusterConfig& config);

// The configuration with this one of its policies alone, and without the keys of `fetch` that
// belong to others.
ClusterConfig OfPolicy(const ClusterConfig& config, const std::string& policy);

}  // namespace lamina::internal
