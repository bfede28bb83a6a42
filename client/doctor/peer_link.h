// SPDX-License-Identifier: Apache-2.0
//
// What both ends of a link between two doctors agree on.

#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/units.h"

namespace lamina::doctor {

// Both regions: so many bytes, and two words. Word 0 of the serving end takes what is asked, word 1
// of the asking end the answers.
inline constexpr uint64_t kPeerRegionBytes = MiB(1);
inline constexpr uint32_t kPeerWords = 2;
inline constexpr uint32_t kAskWord = 0;
inline constexpr uint32_t kAnswerWord = 1;

// What proves to the serving end that the asker knows the cluster's secret, over the challenge, the
// transport and the asker's region.
inline constexpr absl::string_view kAskerLabel = "lamina doctor 1: asker";

// For a message to cross, and for what is asked of the other end.
inline constexpr Nanos kPeerWait = Seconds(10);

// The URI of a transport with this host's options.
inline std::string UriOf(const std::string& scheme, const std::string& ucx_uri,
                         const std::string& verbs_uri) {
  return scheme == "ucx" ? ucx_uri : scheme == "verbs" ? verbs_uri : scheme + "://";
}

}  // namespace lamina::doctor
