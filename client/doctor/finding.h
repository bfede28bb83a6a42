// SPDX-License-Identifier: Apache-2.0
//
// Finding: what one check of `lamina doctor` says.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lamina::doctor {

enum class State : uint8_t { kOk, kWarn, kFail };

struct Finding {
  std::string check;  // "memlock", "transport.verbs"; stable, for scripts.
  State state = State::kOk;
  std::string found;
  std::string why;  // It matters.
  std::string fix;  // A command to type; empty when there is nothing to fix.
};

using Findings = std::vector<Finding>;

}  // namespace lamina::doctor
