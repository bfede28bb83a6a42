// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_sums.h"

#include <algorithm>
#include <numeric>

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

// A sum of the square of lengths, of sequences whose tokens have slots: it is largest when as few
// as possible are as long as possible. Forks share rows as they share slots; the sums of each, 8
// bytes a token and layer, are not counted.
uint64_t SparseSums::BytesMax(const plan::EpochConfig& config) {
  if (config.sparse_tokens != SparseTokens::kWindowSums) {
    return 0;
  }
  const uint64_t slots = std::accumulate(config.slots.begin(), config.slots.end(), uint64_t{0});
  const uint64_t longest =
      std::min<uint64_t>(uint64_t{config.lanes} * config.rows_max,
                         (slots + config.sequence_tokens_max - 1) / config.sequence_tokens_max);
  return longest * config.layers.size() *
         policy::WindowSumsBytesMax(config.sequence_tokens_max, config.sparse_ratio);
}

}  // namespace lamina::compute_node
