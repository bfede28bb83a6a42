// SPDX-License-Identifier: Apache-2.0
#include "tests/support/source_path.h"

#include "absl/strings/str_cat.h"

namespace lamina::test_support {

std::string SourcePath(absl::string_view file) {
  return absl::StrCat(LAMINA_SOURCE_DIR, "/", file);
}

}  // namespace lamina::test_support
