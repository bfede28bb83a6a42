// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_sums.h"

#include <algorithm>
#include <numeric>

#include "plan/epoch_shape.h"

namespace lamina::compute_node {

SparseSums::SparseSums(const plan::EpochConfig& config)
    : config_(config), pattern_{.tokens = config.sparse_tokens, .ratio = config.sparse_ratio} {}

void SparseSums::Apply(const plan::StepPlan& plan) {
  for (const plan::SequenceLeave& leave : plan.leaves) {
    sequences_.erase(leave.id);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    sequences_.erase(join.id);
  }
}

std::vector<policy::WindowSums>& SparseSums::Layers(plan::SequenceId id) {
  std::vector<policy::WindowSums>& layers = sequences_[id];
  if (layers.empty()) {
    layers.reserve(config_.layers.size());
    for (const AttentionDescriptor& layer : config_.layers) {
      layers.emplace_back(layer.query_heads);
    }
  }
  return layers;
}

void SparseSums::BeginRun(const Sequence& sequence, uint32_t first_token) {
  if (!weighs() || sequences_.contains(sequence.join.id)) {
    return;
  }
  std::vector<policy::WindowSums>& layers = Layers(sequence.join.id);
  if (const auto parent = sequences_.find(sequence.join.parent); parent != sequences_.end()) {
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      layers[layer].TakeOver(parent->second[layer]);
      layers[layer].DropFrom(first_token);
    }
  }
}

policy::WindowSums& SparseSums::Of(plan::SequenceId id, uint32_t layer) {
  return Layers(id)[layer];
}

uint32_t SparseSums::DenseEnd(const Sequence& sequence) {
  const auto tokens = static_cast<uint32_t>(sequence.join.tokens.size());
  return sequence.join.decode_from == 0 ? tokens : std::min(tokens, sequence.join.decode_from);
}

uint32_t SparseSums::Weighed(const Sequence& sequence, const RowRun& run) const {
  if (!weighs()) {
    return 0;
  }
  const uint32_t end = run.first_token + run.tokens;
  // The first row that is chosen for after this run; sums of rows in between may leave by then.
  const uint32_t next = std::max(end, DenseEnd(sequence));
  return end - std::clamp(policy::FirstSummedRow(next, pattern_.ratio), run.first_token, end);
}

uint64_t SparseSums::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, layers] : sequences_) {
    for (const policy::WindowSums& layer : layers) {
      bytes += layer.bytes();
    }
  }
  return bytes;
}

// Every sequence may be as long as any: forks of a long prompt share its slots, and its rows, which
// their windows leave behind. Each has sums of its own, and rows of its own tokens, each of which
// has a slot: one on each memory node where heads are spread over these.
uint64_t SparseSums::BytesMax(const plan::EpochConfig& config) {
  if (config.sparse_tokens != SparseTokens::kWindowSums) {
    return 0;
  }
  const uint32_t tokens = config.sequence_tokens_max;
  const uint64_t slots =
      config.partition == Partition::kHead
          ? config.slots.front()
          : std::accumulate(config.slots.begin(), config.slots.end(), uint64_t{0});
  const uint64_t sequences =
      std::min(uint64_t{config.lanes} * plan::RowSequencesMax(config), slots);
  const uint64_t rows = std::min(sequences * policy::KeptHalf(tokens, config.sparse_ratio), slots);
  return config.layers.size() *
         (rows * policy::WindowRowBytesMax(tokens) +
          sequences * policy::WindowSumsOwnBytesMax(tokens, config.sparse_ratio));
}

}  // namespace lamina::compute_node
