// SPDX-License-Identifier: Apache-2.0
//
// Query windows in the device's memory: what has come is landed there and stays, headers come to
// the host, and outputs leave from the device.
// See: docs/adr/0086-query-windows-in-device-memory.md.

#include <array>
#include <cstring>

#include "common/status_macros.h"
#include "memory_node/attention_worker.h"

namespace lamina::memory_node {

static_assert(sizeof(plan::WindowHeader) <= kernels::KvDeviceRows::kPeekBytesMax);

size_t AttentionWorker::device_reply_bytes() const {
  size_t parts = 0;
  for (const Lane& lane : lanes_) {
    parts += lane.parts.size();
  }
  return parts * layout_.reply_window_bytes();
}

absl::Status AttentionWorker::UseDeviceMemory(absl::Span<std::byte> replies) {
  rows_on_device_ = true;
  device_replies_ = replies;
  for (Lane& lane : lanes_) {
    for (Part& part : lane.parts) {
      part.device_reply = replies.data();
      replies.remove_prefix(layout_.reply_window_bytes());
    }
  }
  const std::array<absl::Span<const std::byte>, 2> ranges = {region_.bytes(), device_replies_};
  return device_.UseMemory(ranges);
}

absl::StatusOr<plan::WindowHeader> AttentionWorker::ReadHeader(uint32_t replica,
                                                               uint32_t lane_index,
                                                               uint64_t value) {
  const size_t window = layout_.QueryWindow(replica, lane_index, value);
  const std::byte* from = region_.bytes().data() + window;
  plan::WindowHeader header;
  if (rows_on_device_) {
    LAMINA_RETURN_IF_ERROR(region_.Land(window, sizeof(header)));
    LAMINA_RETURN_IF_ERROR(device_.device_rows()->Peek(from, sizeof(header)));
    LAMINA_RETURN_IF_ERROR(device_.device_rows()->Settle());
    from = device_.device_rows()->peeked();
  }
  std::memcpy(&header, from, sizeof(header));
  return header;
}

// What the signal of a piece covers, and orders the header if it has not been checked.
absl::Status AttentionWorker::LandWindow(uint32_t replica, uint32_t lane_index, const Part& part,
                                         uint64_t value) {
  const size_t window = layout_.QueryWindow(replica, lane_index, value);
  const size_t from = part.header_due ? 0 : part.query_bytes;
  LAMINA_RETURN_IF_ERROR(region_.Land(window + from, layout_.query_window_bytes() - from));
  return part.header_due ? device_.device_rows()->Peek(region_.bytes().data() + window,
                                                       sizeof(plan::WindowHeader))
                         : absl::OkStatus();
}

// Before a piece is answered: the device is done with its rows, and the header is as it should be.
absl::Status AttentionWorker::SettleWindow(uint32_t replica, uint32_t lane_index, Part& part,
                                           uint64_t value) {
  LAMINA_RETURN_IF_ERROR(device_.device_rows()->Settle());
  if (!part.header_due) {
    return absl::OkStatus();
  }
  part.header_due = false;
  plan::WindowHeader header;
  std::memcpy(&header, device_.device_rows()->peeked(), sizeof(header));
  LAMINA_RETURN_IF_ERROR(CheckBySignal(header, replica, lane_index, value));
  return CheckByPlan(header, replica, lane_index, value);
}

}  // namespace lamina::memory_node
