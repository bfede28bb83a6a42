// SPDX-License-Identifier: Apache-2.0
//
// RandomHex: names that nobody else has.

#pragma once

#include <cstddef>
#include <string>

namespace lamina::gateway {

// So many random hexadecimal digits. Threading: any.
std::string RandomHex(size_t digits);

}  // namespace lamina::gateway
