// SPDX-License-Identifier: Apache-2.0
//
// ListeningAddresses: where this process waits for TCP connections, so that a test can tell whom a
// part of it lets in. Threading: any thread.

#pragma once

#include <string>
#include <vector>

namespace lamina::test_support {

// Returns the address of each socket that listens, in numbers: "127.0.0.1", "::ffff:127.0.0.1",
// "::".
std::vector<std::string> ListeningAddresses();

}  // namespace lamina::test_support
