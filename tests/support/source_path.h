// SPDX-License-Identifier: Apache-2.0
//
// SourcePath: where a committed file lies that a test reads. The tree's folder is compiled into one
// file alone, so that compilers' caches serve checkouts in other folders.

#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace lamina::test_support {

// `file`: from the root of the source tree, like "tests/fidelity/goldens/sampling.json".
std::string SourcePath(absl::string_view file);

}  // namespace lamina::test_support
