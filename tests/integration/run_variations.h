// SPDX-License-Identifier: Apache-2.0
//
// Ways of running a cluster whose compute node fetches K and V, none of which may show in answers.

#pragma once

#include <cstdint>
#include <vector>

#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {

// Prompts of five lengths, greedy and sampled.
inline std::vector<coordinator::GenerateSpec> MixedLengths(uint32_t greedy_tokens = 50) {
  std::vector<coordinator::GenerateSpec> specs;
  for (const size_t tokens : {1u, 16u, 33u, 100u, 257u}) {
    specs.push_back(tokens % 2 == 0 ? Sampled(RandomPrompt(tokens, tokens), 40, tokens)
                                    : Greedy(RandomPrompt(tokens, tokens), greedy_tokens));
  }
  return specs;
}

// Lanes, chunks, threads, memory nodes, windows and transport of one of eight variations.
inline LocalClusterOptions Varied(LocalClusterOptions options, uint32_t variation) {
  options.lanes = 1 + variation % 3;
  options.chunk_tokens = variation % 2 == 0 ? 16 : 512;
  // The longest prompts' tails are rows, whose K and V come.
  options.scratch_tokens = variation < 4 ? 8192 : 64;
  options.threads = 1 + variation % 2;
  options.memory_nodes = 1 + variation / 2 % 2;
  // Windows with room for one head of the longest sequence, of each of three lanes and two nodes.
  options.fetch_bytes = variation % 2 == 0 ? 16 << 20 : 2 << 20;
  options.transports = {variation % 3 == 0 ? "ucx://" : "shm://"};
  return options;
}

// As above, with KV heads over two memory nodes in some.
inline LocalClusterOptions VariedWithHeads(const LocalClusterOptions& options, uint32_t variation) {
  LocalClusterOptions varied = Varied(options, variation);
  varied.partition =
      varied.memory_nodes == 2 && variation > 4 ? Partition::kHead : Partition::kRequest;
  return varied;
}

}  // namespace lamina::test_support
