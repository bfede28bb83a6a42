// SPDX-License-Identifier: Apache-2.0
#include "common/output_form.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/json_bounds.h"
#include "common/status_macros.h"

namespace lamina {
namespace {

static_assert(kJsonDepthMax == kOutputFormDepthMax);

// Where `last`, which no backslash stands before, ends what begins at `begin`; or behind the text.
size_t EndOf(absl::string_view text, size_t begin, char last) {
  size_t i = begin + 1;
  while (i < text.size() && text[i] != last) {
    i += text[i] == '\\' ? 2 : 1;
  }
  return std::min(i, text.size());
}

// Groups within each other; classes of characters have none.
size_t RegexDepth(absl::string_view text) {
  size_t depth = 0;
  size_t deepest = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '\\':
        ++i;
        break;
      case '[':
        i = EndOf(text, i, ']');
        break;
      case '(':
        deepest = std::max(deepest, ++depth);
        break;
      case ')':
        depth -= depth > 0 ? 1 : 0;
        break;
      default:
        break;
    }
  }
  return deepest;
}

// Attributes of a rule stand in brackets too, and may quote one: root[capture="]"].
bool MayQuote(absl::string_view brackets) {
  return absl::StrContains(brackets, "capture") &&
         std::count(brackets.begin(), brackets.end(), '"') % 2 == 1;
}

// Groups within each other, outside strings, classes and comments.
size_t GrammarDepth(absl::string_view text) {
  size_t depth = 0;
  size_t deepest = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '#':
        i = std::min(text.find_first_of("\r\n", i), text.size());
        break;
      case '"':
        i = EndOf(text, i, '"');
        break;
      case '[': {
        const size_t end = EndOf(text, i, ']');
        if (MayQuote(text.substr(i, end - i))) {
          // What is quoted behind it is not known, so every group counts.
          const absl::string_view rest = text.substr(end);
          return std::max(deepest,
                          depth + static_cast<size_t>(std::count(rest.begin(), rest.end(), '(')));
        }
        i = end;
        break;
      }
      case '(':
        deepest = std::max(deepest, ++depth);
        break;
      case ')':
        depth -= depth > 0 ? 1 : 0;
        break;
      default:
        break;
    }
  }
  return deepest;
}

// What the escape at `i` stands for, and a blank for what is not ASCII. Leaves `i` at its end.
char Unescaped(absl::string_view json, size_t& i) {
  ++i;
  const char kind = i < json.size() ? json[i] : ' ';
  switch (kind) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 'b':
    case 'f':
    case 't':
      return ' ';
    case 'u': {
      uint32_t code = 0;
      const bool is_hex = absl::SimpleHexAtoi(json.substr(i + 1, 4), &code);
      i += 4;
      return is_hex && code < 128 ? static_cast<char>(code) : ' ';
    }
    default:
      return kind;
  }
}

// Schemas have regular expressions among their strings; structural tags may have grammars, too.
size_t StringsDepth(absl::string_view json, bool with_grammars) {
  size_t deepest = 0;
  std::string text;
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] != '"') {
      continue;
    }
    text.clear();
    for (++i; i < json.size() && json[i] != '"'; ++i) {
      text += json[i] == '\\' ? Unescaped(json, i) : json[i];
    }
    deepest = std::max(deepest, RegexDepth(text));
    if (with_grammars) {
      deepest = std::max(deepest, GrammarDepth(text));
    }
  }
  return deepest;
}

absl::Status CheckDepth(size_t depth) {
  return depth <= kOutputFormDepthMax
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("the form of the output has brackets ",
                                                       depth, " deep inside each other; at most ",
                                                       kOutputFormDepthMax, " are allowed"));
}

}  // namespace

absl::Status CheckOutputForm(const OutputForm& form) {
  if (form.text.size() > kOutputFormBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the form of the output has ", form.text.size(),
                                                   " bytes; at most ", kOutputFormBytesMax,
                                                   " are allowed"));
  }
  switch (form.kind) {
    case OutputForm::Kind::kAny:
      break;
    case OutputForm::Kind::kJsonSchema:
    case OutputForm::Kind::kStructuralTag:
      LAMINA_RETURN_IF_ERROR(CheckRequestJson(form.text, "the form of the output"));
      return CheckDepth(StringsDepth(form.text, form.kind == OutputForm::Kind::kStructuralTag));
    case OutputForm::Kind::kRegex:
      return CheckDepth(RegexDepth(form.text));
    case OutputForm::Kind::kGrammar:
      return CheckDepth(GrammarDepth(form.text));
  }
  return absl::OkStatus();
}

}  // namespace lamina
