// SPDX-License-Identifier: Apache-2.0
#include "compute_node/prompt_work.h"

#include <cstddef>
#include <vector>

namespace lamina::compute_node {
namespace {

// A step with prompt tokens may keep another compute node busy for minutes (a large model on few
// cores): it is waited for as long again for each so many of them.
constexpr int64_t kTokens = 64;

// Attention of prompt rows to a million tokens may keep a memory node of few cores busy for as
// long, and that of a chunk a compute node: they are waited for as long again for each so many
// pairs of a row and a token. A layer of 4,096 features has 1.1 GFLOP/s for them in a minute.
constexpr int64_t kPairs = int64_t{64} << 16;

PromptWork WorkOf(const plan::PrefillChunk& chunk) {
  const int64_t tokens = chunk.tokens;
  return {.tokens = tokens, .pairs = tokens * (chunk.first_token + tokens)};
}

// Whether the row is that of the next token of the same sequence.
bool GoesOn(const plan::DecodeRow& row, const plan::DecodeRow& next) {
  return next.sequence == row.sequence && next.position == row.position + 1;
}

}  // namespace

PromptWork PromptWorkOf(const plan::StepPlan& plan) {
  PromptWork work;
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    work += WorkOf(chunk);
  }
  const std::vector<plan::DecodeRow>& rows = plan.rows;
  for (size_t first = 0, end = 0; first < rows.size(); first = end) {
    end = first + 1;
    while (end < rows.size() && GoesOn(rows[end - 1], rows[end])) {
      ++end;
    }
    if (end - first > 1) {
      work += WorkOf(
          {.first_token = rows[first].position, .tokens = static_cast<uint32_t>(end - first)});
    }
  }
  return work;
}

Nanos OutputsTimeout(const PromptWork& running, Nanos timeout) {
  return timeout + timeout * (running.pairs / kPairs);
}

Nanos ReplicaTimeout(const PromptWork& running, int64_t layers, Nanos timeout) {
  const Nanos for_tokens = timeout * running.tokens / kTokens;
  const Nanos for_pairs = timeout * (layers * running.pairs / kPairs);
  return 2 * (timeout + for_tokens + for_pairs);
}

}  // namespace lamina::compute_node
