// SPDX-License-Identifier: Apache-2.0
//
// For targets whose seeds are files.
#include "tests/fuzz/fuzz_target.h"

std::vector<std::string> GeneratedSeeds() { return {}; }
