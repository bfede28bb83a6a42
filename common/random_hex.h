// SPDX-License-Identifier: Apache-2.0
//
// RandomHex: names that nobody else has, and nobody guesses.

#pragma once

#include <cstddef>
#include <string>

namespace lamina {

// So many hexadecimal digits from the system's source of random bytes. Threading: any.
std::string RandomHex(size_t digits);

}  // namespace lamina
