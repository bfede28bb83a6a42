// SPDX-License-Identifier: Apache-2.0
//
// The modes of a cluster that give the same bits, for suites that run a workload in each.

#pragma once

#include <string>
#include <vector>

#include "tests/support/local_cluster.h"

namespace lamina::test_support {

struct ClusterMode {
  std::string name;
  void (*apply)(LocalClusterOptions& options);
};

// Sums over shards have an order of their own: shards are compared with shards.
inline const std::vector<ClusterMode>& ClusterModes() {
  static const std::vector<ClusterMode> modes = {
      {"request", [](LocalClusterOptions&) {}},
      {"head", [](LocalClusterOptions& options) { options.partition = Partition::kHead; }},
      {"token_range",
       [](LocalClusterOptions& options) { options.partition = Partition::kTokenRange; }},
      {"fetch_heads", [](LocalClusterOptions& options) { options.fetch_bytes = 2 << 20; }},
      {"fetch_heads_by_head",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.partition = Partition::kHead;
       }},
      {"fetch_recompute",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 8 << 20;
         options.recompute_percent = 40;
       }},
      // Activations of fewer tokens stay than most sequences have.
      {"fetch_recompute_with_resident",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 8 << 20;
         options.recompute_percent = 60;
         options.resident_bytes = 512 << 10;
       }},
      {"fetch_recompute_from_tokens",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.recompute_percent = 50;
         options.recompute = RecomputeFrom::kTokens;
       }},
      // All whole tiles, as far as there is room for them in a step of several sequences.
      {"fetch_recompute_all_from_tokens_by_head",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.recompute_percent = 100;
         options.recompute = RecomputeFrom::kTokens;
         options.recompute_tokens_max = 512;
         options.partition = Partition::kHead;
       }},
      {"fetch_hybrid",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 8 << 20;
         options.activation_percent = 60;
       }},
      {"fetch_hybrid_with_resident",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 8 << 20;
         options.activation_percent = 60;
         options.resident_bytes = 512 << 10;
       }},
      {"rotational",
       [](LocalClusterOptions& options) {
         options.compute_nodes = 2;
         options.lanes = 3;
       }},
      {"fixed",
       [](LocalClusterOptions& options) {
         options.compute_nodes = 2;
         options.mode = PipelineMode::kFixed;
         options.lanes = 2;
       }},
      {"stages",
       [](LocalClusterOptions& options) {
         options.compute_nodes = 2;
         options.stages = 2;
       }},
      {"shards",
       [](LocalClusterOptions& options) {
         options.compute_nodes = 2;
         options.shards = 2;
       }},
      {"pool_of_replicas",
       [](LocalClusterOptions& options) {
         options.local = true;
         options.compute_nodes = 2;
         options.lanes = 2;
       }},
      {"pool_of_stages",
       [](LocalClusterOptions& options) {
         options.local = true;
         options.compute_nodes = 2;
         options.stages = 2;
         options.lanes = 2;
       }},
      {"pool_of_shards",
       [](LocalClusterOptions& options) {
         options.local = true;
         options.compute_nodes = 2;
         options.shards = 2;
       }},
      {"fetch_sparse_with_all",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.sparse_ratio = 1;
       }},
      // Room for some of the tokens, less than one sequence has.
      {"fetch_heads_with_resident",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.resident_bytes = 256 << 10;
       }},
      {"dedicated", [](LocalClusterOptions& options) { options.prefill_nodes = 1; }},
      // Activations are spread as heads are; those of some tokens stay.
      {"fetch_recompute_by_head",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 8 << 20;
         options.recompute_percent = 60;
         options.resident_bytes = 512 << 10;
         options.partition = Partition::kHead;
       }},
      {"fetch_hybrid_by_head",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 8 << 20;
         options.activation_percent = 60;
         options.partition = Partition::kHead;
       }},
      {"fetch_heads_with_resident_by_head",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.resident_bytes = 256 << 10;
         options.partition = Partition::kHead;
       }},
      // Each memory node sends the spans that it has.
      {"fetch_heads_by_span",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.partition = Partition::kTokenRange;
       }},
      {"fetch_heads_with_resident_by_span",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.resident_bytes = 256 << 10;
         options.partition = Partition::kTokenRange;
       }},
      // It has the activations of these, of which those of some tokens stay.
      {"fetch_recompute_by_span",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 8 << 20;
         options.recompute_percent = 60;
         options.resident_bytes = 512 << 10;
         options.partition = Partition::kTokenRange;
       }},
      {"fetch_recompute_from_tokens_by_span",
       [](LocalClusterOptions& options) {
         options.fetch_bytes = 2 << 20;
         options.recompute_percent = 80;
         options.recompute = RecomputeFrom::kTokens;
         options.partition = Partition::kTokenRange;
       }},
      {"fetch_hybrid_by_span", [](LocalClusterOptions& options) {
         options.fetch_bytes = 8 << 20;
         options.activation_percent = 60;
         options.resident_bytes = 512 << 10;
         options.partition = Partition::kTokenRange;
       }}};
  return modes;
}

}  // namespace lamina::test_support
