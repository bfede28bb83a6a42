// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/text_growth.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::model {

absl::Status CheckGrowth(size_t bytes, size_t bytes_max) {
  if (bytes <= bytes_max) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the tokenizer's steps make ", bytes, " bytes or more of a text that may become ", bytes_max,
      " (", kGrowthMax, " times its bytes, and ", kGrowthSlackBytes,
      "): no known tokenizer does; fetch its files again"));
}

absl::StatusOr<std::string> ReplaceWithin(size_t bytes_max, absl::string_view text,
                                          absl::string_view from, absl::string_view to) {
  std::string out;
  for (size_t found = 0; !from.empty() && found != absl::string_view::npos;) {
    found = text.find(from);
    const absl::string_view before = text.substr(0, found);
    const bool matched = found != absl::string_view::npos;
    LAMINA_RETURN_IF_ERROR(
        CheckGrowth(out.size() + before.size() + (matched ? to.size() : 0), bytes_max));
    absl::StrAppend(&out, before, matched ? to : "");
    text.remove_prefix(matched ? found + from.size() : text.size());
  }
  absl::StrAppend(&out, text);
  return out;
}

}  // namespace lamina::model
