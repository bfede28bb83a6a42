// SPDX-License-Identifier: Apache-2.0
#include "compute_node/worker_context.h"

namespace lamina::compute_node {

absl::Status WorkerContext::Tell(const Lane& lane, PeerId peer, telemetry::WorkKind part,
                                 size_t offset, absl::Span<const std::byte> message,
                                 const transport::SignalUpdate& signal) const {
  absl::Status put = peers.Put(peer, offset, message, &signal);
  if (!put.ok()) {
    return put;
  }
  peers.CountSent(peer, {.rows = message.size()},
                  intervals.EndIntervalOf(lane, part, lane.slice, peer, message.size()));
  return put;
}

}  // namespace lamina::compute_node
