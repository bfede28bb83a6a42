// SPDX-License-Identifier: Apache-2.0
//
// The engine's options by lines of a cluster file, with a small model.

#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/attention_descriptor.h"
#include "coordinator/cluster_options.h"
#include "model/graph.h"

namespace lamina::coordinator {

// Two layers of 512 bytes of K and V a token, 1 KiB in all.
inline constexpr AttentionDescriptor kLayer = {.query_heads = 8, .kv_heads = 4, .head_dim = 32};

inline model::Graph GraphOf(const std::vector<AttentionDescriptor>& layers) {
  model::Graph graph;
  for (const AttentionDescriptor& layer : layers) {
    graph.ops.push_back({.body = model::AttentionOp{.descriptor = layer}});
  }
  return graph;
}

inline absl::StatusOr<EngineOptions> OptionsOf(
    const std::string& lines, const std::vector<AttentionDescriptor>& layers = {kLayer, kLayer},
    uint32_t positions_max = 0) {
  const auto config = ParseClusterConfig("model: m\n" + lines, "test", {});
  EXPECT_TRUE(config.ok()) << config.status();
  return EngineOptionsOf(*config, GraphOf(layers),
                         {.width = 256, .vocabulary = 100, .positions_max = positions_max});
}

// One compute node and memory nodes of these capacities.
inline std::string Nodes(const std::vector<std::string>& capacities) {
  std::string lines = "compute: [{name: c0}]\nmemory:\n";
  for (size_t i = 0; i < capacities.size(); ++i) {
    lines += "  - {name: m" + std::to_string(i) + ", capacity: " + capacities[i] + "}\n";
  }
  return lines;
}

inline const std::string kTwoNodes = Nodes({"1GiB", "1GiB"});

inline void ExpectRefused(const absl::StatusOr<EngineOptions>& options, absl::StatusCode code,
                          const ::testing::Matcher<std::string>& message) {
  EXPECT_EQ(options.status().code(), code) << options.status();
  EXPECT_THAT(std::string(options.status().message()), message);
}

}  // namespace lamina::coordinator
