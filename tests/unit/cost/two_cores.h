// SPDX-License-Identifier: Apache-2.0
//
// TwoCores: times that the compute node of a host of two cores could have measured, for tests of
// policy auto.

#pragma once

#include <utility>

#include "cost/policy_step.h"

namespace lamina::test_support {

// A host of two cores: with few rows, whose time is that of reading weights, both compute little
// faster than one; they attend at 15 GB/s where one has 8.
inline plan::PolicyTimes TwoCores() {
  plan::PolicyTimes times{.attention_local = 15e9, .attention_shared = 8e9, .read_bandwidth = 30e9};
  for (const auto& [rows, local] :
       {std::pair(1u, 2.5e-4), {4u, 5e-4}, {16u, 20e-4}, {64u, 40e-4}}) {
    const double slice = 1e-4 * (2 + rows);
    times.pools.push_back({rows, slice, 8 * slice});
    times.local.push_back({rows, local, 8 * local});
  }
  return times;
}

inline constexpr cost::PolicyModel kModel = {.layers = 30, .kv_bytes_per_token = 23040};
// One compute node that has all of it.
inline cost::PolicyCompute Whole(const plan::PolicyTimes& times) {
  return {.replicas = {cost::WholeReplica(times, kModel.layers, kModel.kv_bytes_per_token)}};
}
inline constexpr cost::PolicyPools kPools = {.attention = 8e9, .lanes_max = 2, .lanes_auto = true};

}  // namespace lamina::test_support
