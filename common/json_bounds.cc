// SPDX-License-Identifier: Apache-2.0
#include "common/json_bounds.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

namespace lamina {
namespace {

// The objects and arrays that are open, of which the innermost kJsonDepthMax at most are known.
class OpenOnes {
 public:
  void Open(bool is_object, JsonSize& size) {
    ++depth_;
    size.depth = std::max(size.depth, depth_);
    if (depth_ <= kJsonDepthMax) {
      keys_[depth_ - 1] = is_object ? 1 : 0;  // The first one has no comma before it.
      size.keys = std::max(size.keys, keys_[depth_ - 1]);
    }
  }
  void Close() { depth_ -= depth_ > 0 ? 1 : 0; }
  void Comma(JsonSize& size) {
    if (depth_ == 0 || depth_ > kJsonDepthMax || keys_[depth_ - 1] == 0) {
      return;
    }
    size.comparisons += keys_[depth_ - 1];
    size.keys = std::max(size.keys, ++keys_[depth_ - 1]);
  }

 private:
  size_t depth_ = 0;
  std::array<size_t, kJsonDepthMax> keys_ = {};  // 0: an array.
};

}  // namespace

JsonSize MeasureJson(absl::string_view text) {
  JsonSize size;
  OpenOnes open;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++size.values;
      open.Open(c == '{', size);
    } else if (c == ']' || c == '}') {
      open.Close();
    } else if (c == ',') {
      ++size.values;
      open.Comma(size);
    }
  }
  return size;
}

absl::Status CheckRequestJson(absl::string_view text, absl::string_view what) {
  const JsonSize size = MeasureJson(text);
  if (size.depth > kJsonDepthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is nested deeper than ", kJsonDepthMax, " levels"));
  }
  if (size.keys > kRequestKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has an object of ", size.keys, " keys; at most ", kRequestKeysMax));
  }
  if (size.comparisons > kRequestComparisonsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has too many objects of many keys, the largest of ", size.keys,
                     "; with ", kRequestKeysMax, " keys each there may be two, with 1000 thirty"));
  }
  return absl::OkStatus();
}

}  // namespace lamina
