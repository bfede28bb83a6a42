// SPDX-License-Identifier: Apache-2.0
//
// How a device's wait for a window ends, and what the window must begin with.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace lamina::kernels {

enum class WaitOutcome : uint32_t {
  kPending = 0,
  kOk = 1,
  kTimeout = 2,   // Neither signal nor heartbeat in time.
  kAborted = 3,   // The abort word was raised.
  kStale = 4,     // The window's header is older than expected: epoch, or step and layer.
  kMismatch = 5,  // The header is no header, or not the expected one in another way.
};

// What a window must begin with: the first 40 bytes of its WindowHeader
// (plan/window_layout.h).
struct WindowStamp {
  uint32_t magic = 0;
  uint32_t lane = 0;
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t rows = 0;
  uint32_t kv_rows = 0;
  uint32_t sender = 0;
};
static_assert(sizeof(WindowStamp) == 40);
inline constexpr size_t kWindowHeaderBytes = 64;  // The stamp, and what devices do not look at.

// The stamp of a window's header.
template <typename Header>
WindowStamp StampOf(const Header& header) {
  static_assert(sizeof(Header) == kWindowHeaderBytes && std::is_trivially_copyable_v<Header>);
  WindowStamp stamp;
  std::memcpy(static_cast<void*>(&stamp), static_cast<const void*>(&header), sizeof(stamp));
  return stamp;
}

}  // namespace lamina::kernels
