// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-heads: tokens of the largest chunk of a prompt that a device has room for, next to
// weights and groups of heads, by policy fetch_heads. bench/headinfer_models.py, which accounts for
// real models' shapes, gives it what they take.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <optional>

#include "bench/flags.h"
#include "policy/fetch_heads.h"

int main(int argc, char** argv) {
  lamina::policy::HeadsProfile profile;
  lamina::policy::HeadsUse use{.group = 1};
  uint64_t budget = 0;
  CLI::App app("The largest chunk of a prompt, a power of two, that fits into a device's memory");
  app.add_option("--budget", budget, "bytes of the device")->required();
  app.add_option("--weights", profile.weights, "bytes of the weights and all that has one size")
      ->required();
  app.add_option("--head_token", profile.head_token, "bytes of K and V of a token in one head")
      ->required();
  app.add_option("--chunk_token", profile.chunk_token, "bytes that a token of a chunk takes")
      ->required()
      ->check(CLI::PositiveNumber);
  app.add_option("--tokens", use.tokens, "tokens of the context")->required();
  app.add_option("--group", use.group, "KV heads of a group");
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }
  std::printf("%llu\n",
              static_cast<unsigned long long>(lamina::policy::LargestChunk(profile, budget, use)));
  return 0;
}
