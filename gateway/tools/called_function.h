// SPDX-License-Identifier: Apache-2.0
//
// CalledFunction: a call of one of the client's functions, as answers show it.

#pragma once

#include <string>

namespace lamina::gateway {

struct CalledFunction {
  std::string id;
  std::string name;
  std::string arguments;  // JSON in a text.
};

}  // namespace lamina::gateway
