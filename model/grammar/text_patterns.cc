// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/text_patterns.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace lamina::model {
namespace {

// Behind the class of characters that begins at `begin`.
size_t EndOfClass(absl::string_view regex, size_t begin) {
  size_t i = begin + 1;
  while (i < regex.size() && regex[i] != ']') {
    i += regex[i] == '\\' ? 2 : 1;
  }
  return std::min(i + 1, regex.size());
}

}  // namespace

bool RepeatsARepetition(absl::string_view regex) {
  bool repeated = false;  // What stands before `i` is.
  for (size_t i = 0; i < regex.size();) {
    switch (regex[i]) {
      case '*':
      case '+':
      case '?':
      case '{':
        if (repeated) {
          return true;
        }
        i = regex[i] == '{' ? std::min(regex.find('}', i), regex.size() - 1) + 1 : i + 1;
        i += i < regex.size() && regex[i] == '?' ? 1 : 0;
        repeated = true;
        break;
      case '^':
      case '$':
        ++i;  // XGrammar passes over them, and repeats what is before.
        break;
      case '(':
        // What follows says what group it is.
        i += i + 1 < regex.size() && regex[i + 1] == '?' ? 2 : 1;
        repeated = false;
        break;
      case '[':
        i = EndOfClass(regex, i);
        repeated = false;
        break;
      default:
        i += regex[i] == '\\' ? 2 : 1;
        repeated = false;
        break;
    }
  }
  return false;
}

// The range of control characters ends with such a character itself: only regular expressions that
// are ASCII without control characters become automata, which are slow to make of long repetitions.
std::string PatternOfLength(uint64_t least, std::optional<uint64_t> most) {
  return absl::StrCat(R"([^"\\\x00-)", "\x1f", "]{", least, ",",
                      most.has_value() ? absl::StrCat(*most) : "", "}");
}

}  // namespace lamina::model
