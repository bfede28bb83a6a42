// SPDX-License-Identifier: Apache-2.0
//
// The numbers of VerbsConfig: what they are called and may be.

#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "config/cluster_config.h"

namespace lamina::internal {

struct VerbsKey {
  const char* name;
  std::optional<uint32_t> VerbsConfig::*value;
  uint32_t least;
  uint32_t most;
};

inline constexpr std::array kVerbsKeys = {
    VerbsKey{"port", &VerbsConfig::port, 1, 254},
    VerbsKey{"gid", &VerbsConfig::gid, 0, 255},
    VerbsKey{"mtu", &VerbsConfig::mtu, 256, 4096},
    VerbsKey{"timeout", &VerbsConfig::timeout, 1, 31},
    VerbsKey{"retries", &VerbsConfig::retries, 0, 6},
    VerbsKey{"rnr_retries", &VerbsConfig::rnr_retries, 0, 7},
    VerbsKey{"queue", &VerbsConfig::queue, 128, 8192},
};

}  // namespace lamina::internal
