// SPDX-License-Identifier: Apache-2.0
//
// What tests of PolicyAuto choose by: a model of one layer, and what its compute node and one
// memory node have measured.

#pragma once

#include <cstdint>

#include "common/clock.h"
#include "coordinator/engine_options.h"
#include "coordinator/policy_measures.h"
#include "plan/policy_times.h"

namespace lamina::coordinator {

// Few rows are faster with memory nodes, many with KV on the compute node.
inline PolicyMeasures Measures() {
  PolicyMeasures measures;
  measures.compute = {
      {.name = "c0",
       .stage = {.layers = 1},
       .times = {.attention_local = 1e12, .attention_shared = 1e12, .read_bandwidth = 1e12}}};
  plan::PolicyTimes& times = measures.compute[0].times;
  for (const uint32_t rows : {1u, 64u}) {
    times.local.push_back({rows, 1e-3 * (8 + rows), 1e-3 * (8 + rows)});
    times.pools.push_back({rows, 2e-3 * rows, 2e-3 * rows});
  }
  measures.bandwidth = {{"m0", 1e10}};
  return measures;
}

inline EngineOptions Options(double rows) {
  EngineOptions options;
  options.layers = {{.query_heads = 1, .kv_heads = 1, .head_dim = 16}};
  options.policy_auto = PolicyAutoOptions{
      .load = {.rows = rows, .context = 100}, .memory = {{.names = {"m0"}}}, .idle = Seconds(2)};
  return options;
}

}  // namespace lamina::coordinator
