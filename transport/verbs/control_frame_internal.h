// SPDX-License-Identifier: Apache-2.0
//
// ControlFrame: what the two ends of a link say to each other over TCP. Never data.
//
//   sender                       owner of the regions
//   kHello  owner, address  -->
//                           <--  kWelcome address, or kRefused
//   kOpen   view, region    -->
//                           <--  kOpened, or kGone
//                           <--  kClose view     the region is being destroyed
//   kClosed view            -->                  nothing more will be posted to it
//   kDrained view           -->                  and nothing is in flight
//   kDrop   view            -->                  the view is gone, drained

#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "transport/verbs/verbs_queue_internal.h"

namespace lamina::transport {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

enum class ControlKind : uint32_t {
  kHello,
  kWelcome,
  kRefused,
  kOpen,
  kOpened,
  kGone,
  kClose,
  kClosed,
  kDrained,
  kDrop,
};

struct ControlFrame {
  uint32_t magic = 0x3176'6d6c;  // "lmv1"; the digit is the version.
  ControlKind kind = ControlKind::kHello;
  uint64_t view = 0;    // Numbered by the sender.
  uint64_t region = 0;  // Numbered by the owner.
  std::array<uint64_t, 2> owner = {};
  QueueAddress address;
};
static_assert(sizeof(ControlFrame) == 72);

}  // namespace lamina::transport
