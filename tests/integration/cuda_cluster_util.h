// SPDX-License-Identifier: Apache-2.0
//
// Clusters with compute nodes on a CUDA device, for tests on a device and in the emulation, which
// is slow: so requests are few and short.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/compute_device.h"
#include "kernels/cuda/kv_device.h"
#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {

struct CudaCluster {
  std::string name;
  std::vector<std::string> cuda = {"c0"};  // Nodes on the device: compute nodes, memory nodes.
  Partition partition = Partition::kRequest;
  ClusterAttention attention = {};
  uint32_t compute_nodes = 1;
  uint32_t prefill_nodes = 0;
  uint32_t stages = 1;
  uint32_t shards = 1;
  uint32_t memory_nodes = 1;
  uint32_t lanes = 1;
  uint32_t chunk_tokens = 64;
  core::SubBatchOptions sub_batches = {};
  PipelineMode mode = PipelineMode::kRotational;
  bool local = false;        // KV on the compute node: one pool.
  bool parallel = false;     // A model with work that can overlap with attention.
  bool long_prompt = false;  // One of several chunks and blocks, besides.
};

inline std::vector<CudaCluster> CudaClusters() {
  return {
      {.name = "Compute", .long_prompt = true},
      {.name = "OnePool", .lanes = 2, .local = true, .long_prompt = true},
      {.name = "OnePoolWholePrompts", .chunk_tokens = 1024, .local = true},
      {.name = "OnePoolReplicas",
       .cuda = {"c0", "c1"},
       .compute_nodes = 2,
       .lanes = 2,
       .local = true},
      {.name = "OnePoolStages",
       .cuda = {"c0", "c1"},
       .compute_nodes = 2,
       .stages = 2,
       .lanes = 2,
       .local = true},
      {.name = "OnePoolShards",
       .cuda = {"c0", "c1"},
       .compute_nodes = 2,
       .shards = 2,
       .local = true,
       .long_prompt = true},
      {.name = "Memory", .cuda = {"m0"}},
      {.name = "Both", .cuda = {"c0", "m0"}, .memory_nodes = 2},
      {.name = "TwoLanes", .memory_nodes = 2, .lanes = 2},
      {.name = "WholePrompts", .chunk_tokens = 1024},
      {.name = "ByHead", .partition = Partition::kHead, .memory_nodes = 2, .lanes = 2},
      {.name = "ByTokenRange", .partition = Partition::kTokenRange, .memory_nodes = 2},
      {.name = "QueriesFirst", .sub_batches = {.chunks = 2, .query_first = QueryFirst::kAlways}},
      {.name = "ParallelResidual", .lanes = 2, .parallel = true},
      {.name = "Replicas", .cuda = {"c0", "c1"}, .compute_nodes = 2, .lanes = 2},
      {.name = "ReplicasOfTwoKinds", .compute_nodes = 2, .lanes = 2},
      {.name = "Stages", .cuda = {"c0", "c1"}, .compute_nodes = 2, .stages = 2, .lanes = 2},
      {.name = "Shards", .cuda = {"c0", "c1"}, .compute_nodes = 2, .shards = 2, .lanes = 2},
      {.name = "Prefill", .cuda = {"c0", "p0"}, .prefill_nodes = 1, .lanes = 2}};
}

// Clusters all of whose nodes are on the device, with attention on tensor cores.
inline std::vector<CudaCluster> TensorClusters() {
  std::vector<CudaCluster> clusters = {
      {.name = "TensorAlone", .cuda = {"c0", "m0"}, .long_prompt = true},
      {.name = "TensorOnePool", .cuda = {"c0"}, .lanes = 2, .local = true},
      {.name = "TensorOnePoolReplicas",
       .cuda = {"c0", "c1"},
       .compute_nodes = 2,
       .lanes = 2,
       .local = true},
      {.name = "TensorOnePoolStages",
       .cuda = {"c0", "c1"},
       .compute_nodes = 2,
       .stages = 2,
       .lanes = 2,
       .local = true},
      {.name = "TensorWholePrompts", .cuda = {"c0", "m0"}, .chunk_tokens = 1024},
      {.name = "TensorTwoLanes", .cuda = {"c0", "m0", "m1"}, .memory_nodes = 2, .lanes = 2},
      {.name = "TensorByHead",
       .cuda = {"c0", "m0", "m1"},
       .partition = Partition::kHead,
       .memory_nodes = 2,
       .lanes = 2},
      {.name = "TensorByTokenRange",
       .cuda = {"c0", "m0", "m1"},
       .partition = Partition::kTokenRange,
       .memory_nodes = 2},
      {.name = "TensorQueriesFirst",
       .cuda = {"c0", "m0"},
       .sub_batches = {.chunks = 2, .query_first = QueryFirst::kAlways}},
      {.name = "TensorReplicas",
       .cuda = {"c0", "c1", "m0"},
       .compute_nodes = 2,
       .lanes = 2,
       .chunk_tokens = 37},
      {.name = "TensorStages",
       .cuda = {"c0", "c1", "m0"},
       .compute_nodes = 2,
       .stages = 2,
       .lanes = 2},
      {.name = "TensorPrefill", .cuda = {"c0", "p0", "m0"}, .prefill_nodes = 1, .lanes = 2}};
  for (CudaCluster& cluster : clusters) {
    cluster.attention = {.decode = AttentionArithmetic::kTensor,
                         .prefill = AttentionArithmetic::kTensor};
  }
  return clusters;
}

inline std::vector<coordinator::GenerateSpec> CudaRequests(bool long_prompt = false) {
  std::vector<coordinator::GenerateSpec> specs;
  for (const size_t tokens : {1u, 17u, 90u}) {  // The last one longer than a chunk.
    specs.push_back(Greedy(RandomPrompt(tokens, tokens), 5));
  }
  specs.push_back(Sampled(RandomPrompt(6, 3), 5, 5));
  if (long_prompt) {
    specs.push_back(Greedy(RandomPrompt(300, 1), 3));
  }
  return specs;
}

inline LocalClusterOptions PlainOptions(const RandomModelSpec& model) {
  return {.model = model, .slots = 4096, .sequence_tokens_max = 768};
}

inline LocalClusterOptions OptionsOf(const CudaCluster& wanted, const RandomModelSpec& model) {
  LocalClusterOptions options = PlainOptions(model);
  options.partition = wanted.partition;
  options.compute_nodes = wanted.compute_nodes;
  options.prefill_nodes = wanted.prefill_nodes;
  options.stages = wanted.stages;
  options.shards = wanted.shards;
  options.local = wanted.local;
  options.memory_nodes = wanted.memory_nodes;
  options.mode = wanted.mode;
  options.lanes = wanted.lanes;
  options.chunk_tokens = wanted.chunk_tokens;
  options.sub_batches = wanted.sub_batches;
  options.attention = wanted.attention;
  options.other_device = {.names = wanted.cuda, .make = kernels::cuda::CudaKvDevices(0)};
  options.other_compute = {
      .names = wanted.cuda, .make = [](DType compute_type) {
        return kernels::cuda::MakeCudaComputeDevice({.dense = {.compute_type = compute_type}});
      }};
  return options;
}

// Expects the same tokens, with log-probabilities within `tolerance`, up to the first that differs;
// there the one found was about as likely as the likeliest, as both say. From there on each goes
// its own way.
inline void ExpectFollows(const ChoiceResult& found, const ChoiceResult& expected,
                          float tolerance) {
  ASSERT_EQ(found.tokens.size(), expected.tokens.size());
  for (size_t i = 0; i < expected.tokens.size(); ++i) {
    if (found.tokens[i] != expected.tokens[i]) {
      const std::vector<plan::TokenLogprob>& top = expected.top[i];
      const auto other = std::find_if(
          top.begin(), top.end(),
          [&](const plan::TokenLogprob& likely) { return likely.token == found.tokens[i]; });
      ASSERT_NE(other, top.end()) << "token " << i << " is none of the likeliest";
      EXPECT_LT(top[0].logprob - other->logprob, tolerance) << "token " << i;
      EXPECT_NEAR(found.logprobs[i], other->logprob, tolerance) << "token " << i;
      return;
    }
    EXPECT_NEAR(found.logprobs[i], expected.logprobs[i], tolerance) << "token " << i;
  }
}

}  // namespace lamina::test_support
