// SPDX-License-Identifier: Apache-2.0
#include "compute_node/put_token_sets.h"

#include <cstring>

#include "common/status_macros.h"
#include "compute_node/peers.h"
#include "plan/token_sets.h"

namespace lamina::compute_node {

size_t StagedSetWords(const plan::EpochConfig& config) {
  const size_t nodes = config.memory_nodes.size();
  const size_t sets = plan::TokenSetsBytesMax(config) / sizeof(uint64_t);
  return nodes * kSetsHeaderWords + (ByHead(config) ? nodes : 1) * sets;
}

absl::Status PutTokenSets(const WorkerContext& context, const Lane& lane, uint32_t node,
                          uint32_t runs, absl::Span<uint64_t> window) {
  plan::WindowHeader header = context.HeaderOf(lane, /*slice=*/0, runs, context.node);
  plan::Seal(header);
  std::memcpy(window.data(), &header, sizeof(header));
  const plan::TokenSetWindows windows(context.layout);
  const transport::SignalUpdate signal{.word = windows.word(context.node, lane.index),
                                       .value = lane.plan.step};
  const PeerId peer = MemoryPeer(node);
  const size_t bytes = window.size() * sizeof(uint64_t);
  LAMINA_RETURN_IF_ERROR(
      context.peers.Put(peer, windows.Window(context.node, lane.index),
                        {reinterpret_cast<const std::byte*>(window.data()), bytes}, &signal));
  context.peers.CountSent(
      peer, {.rows = bytes},
      context.intervals.EndIntervalOf(lane, telemetry::WorkKind::kSend, 0, peer, bytes));
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
