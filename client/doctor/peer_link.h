// SPDX-License-Identifier: Apache-2.0
//
// What both ends of a link between two doctors agree on.

#pragma once

#include <cstdint>

#include "common/clock.h"
#include "common/units.h"

namespace lamina::doctor {

// Both regions: so many bytes, and two words. Word 0 of the serving end takes what is asked, word 1
// of the asking end the answers.
inline constexpr uint64_t kPeerRegionBytes = MiB(1);
inline constexpr uint32_t kPeerWords = 2;
inline constexpr uint32_t kAskWord = 0;
inline constexpr uint32_t kAnswerWord = 1;

// For a message to cross, and for what is asked of the other end.
inline constexpr Nanos kPeerWait = Seconds(10);

}  // namespace lamina::doctor
