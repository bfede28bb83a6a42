// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/regex_dialect.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::model {
namespace {

// Characters of each category in Unicode 16 and not in Unicode 14, as members of a class.
// Found by asking both libraries about every code point.
constexpr absl::string_view kNewLetters =
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"
    "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"
    "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}"
    "\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}"
    "\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}"
    "\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}"
    "\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}"
    "\\x{31350}-\\x{323AF}";

constexpr absl::string_view kNewMarks =
    "\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}"
    "\\x{113B8}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}"
    "\\x{113D2}\\x{113E1}-\\x{113E2}\\x{11F00}-\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}"
    "\\x{11F3E}-\\x{11F42}\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}\\x{1611E}-\\x{1612F}"
    "\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}\\x{1E5EE}-\\x{1E5EF}";

constexpr absl::string_view kNewNumbers =
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}";

constexpr absl::string_view kNewPunctuation =
    "\\x{1B4E}-\\x{1B4F}\\x{1B7F}\\x{10D6E}\\x{113D4}-\\x{113D5}\\x{113D7}-\\x{113D8}"
    "\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11F43}-\\x{11F4F}\\x{16D6D}-\\x{16D6F}\\x{1E5FF}";

constexpr absl::string_view kNewSymbols =
    "\\x{2427}-\\x{2429}\\x{2FFC}-\\x{2FFF}\\x{31E4}-\\x{31E5}\\x{31EF}\\x{10D8E}-\\x{10D8F}"
    "\\x{1CC00}-\\x{1CCEF}\\x{1CD00}-\\x{1CEB3}\\x{1F6DC}\\x{1F774}-\\x{1F776}"
    "\\x{1F77B}-\\x{1F77F}\\x{1F7D9}\\x{1F8B2}-\\x{1F8BB}\\x{1F8C0}-\\x{1F8C1}"
    "\\x{1FA75}-\\x{1FA77}\\x{1FA87}-\\x{1FA89}\\x{1FA8F}\\x{1FAAD}-\\x{1FAAF}"
    "\\x{1FABB}-\\x{1FABF}\\x{1FAC6}\\x{1FACE}-\\x{1FACF}\\x{1FADA}-\\x{1FADC}\\x{1FADF}"
    "\\x{1FAE8}-\\x{1FAE9}\\x{1FAF7}-\\x{1FAF8}\\x{1FBCB}-\\x{1FBEF}";

constexpr absl::string_view kNewDigits =
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1E4F0}-\\x{1E4F9}"
    "\\x{1E5F1}-\\x{1E5FA}";

// Oniguruma's \s is exactly this; PCRE2's own has U+180E besides.
constexpr absl::string_view kSpace = "\\p{White_Space}";

// Members of \w. The superscripts and fractions of Latin-1 are words to Oniguruma, others are not.
std::string WordMembers() {
  return absl::StrCat("\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE", kNewLetters,
                      kNewMarks, kNewDigits);
}

absl::string_view NewMembers(absl::string_view category) {
  if (category.size() != 1) {
    return "";
  }
  switch (category[0]) {
    case 'L':
      return kNewLetters;
    case 'M':
      return kNewMarks;
    case 'N':
      return kNewNumbers;
    case 'P':
      return kNewPunctuation;
    case 'S':
      return kNewSymbols;
    default:
      return "";
  }
}

absl::Status Unsupported(absl::string_view construct, absl::string_view pattern) {
  return absl::UnimplementedError(absl::StrCat("the pattern ", pattern, " of the tokenizer uses ",
                                               construct, ", which is not supported"));
}

// Walks the pattern once; each Take... consumes one construct from `rest_` and appends to `out_`.
class Translator {
 public:
  explicit Translator(absl::string_view pattern) : pattern_(pattern), rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      LAMINA_RETURN_IF_ERROR(TakeOne());
    }
    return std::move(out_);
  }

 private:
  absl::Status TakeOne() {
    if (rest_[0] == '\\') {
      return TakeEscape();
    }
    if (in_class_) {
      return TakeInClass();
    }
    if (rest_[0] == '[') {
      OpenClass();
      return absl::OkStatus();
    }
    if (absl::StartsWith(rest_, "(?m")) {
      return Unsupported("(?m)", pattern_);
    }
    const bool interval_end = rest_[0] == '}';
    Copy(1);
    // Ruby's x{1,3}+ repeats the interval; PCRE2's makes it possessive.
    if (interval_end && absl::StartsWith(rest_, "+")) {
      return Unsupported("an interval followed by +", pattern_);
    }
    return absl::OkStatus();
  }

  void OpenClass() {
    in_class_ = true;
    Copy(1);
    if (absl::StartsWith(rest_, "^")) {
      Copy(1);
    }
    if (absl::StartsWith(rest_, "]")) {
      Copy(1);
    }
  }

  absl::Status TakeInClass() {
    if (absl::StartsWith(rest_, "[:")) {
      const size_t end = rest_.find(":]");
      if (end != absl::string_view::npos) {
        Copy(end + 2);
        return absl::OkStatus();
      }
    }
    if (rest_[0] == '[') {
      return Unsupported("a class inside a class", pattern_);
    }
    if (absl::StartsWith(rest_, "&&")) {
      return Unsupported("an intersection of classes (&&)", pattern_);
    }
    in_class_ = rest_[0] != ']';
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status TakeEscape() {
    if (rest_.size() < 2) {
      return absl::InvalidArgumentError(absl::StrCat("the pattern ", pattern_, " ends in \\"));
    }
    const char kind = rest_[1];
    switch (kind) {
      case 's':
      case 'S':
        rest_.remove_prefix(2);
        absl::StrAppend(&out_, kind == 's' ? kSpace : "\\P{White_Space}");
        return absl::OkStatus();
      case 'd':
      case 'D':
        rest_.remove_prefix(2);
        return PutSet(absl::StrCat("\\p{Nd}", kNewDigits), kind == 'D');
      case 'w':
      case 'W':
        rest_.remove_prefix(2);
        return PutSet(WordMembers(), kind == 'W');
      case 'p':
      case 'P':
        return TakeProperty();
      case 'u':
        return TakeCodepoint();
      case 'h':
      case 'H':
        return Unsupported("\\h", pattern_);
      default:
        Copy(2);
        return absl::OkStatus();
    }
  }

  // \p{X}, \P{X} or \p{^X}.
  absl::Status TakeProperty() {
    const size_t close = rest_.find('}');
    if (close == absl::string_view::npos || rest_.size() < 3 || rest_[2] != '{') {
      return Unsupported("a property without braces", pattern_);
    }
    absl::string_view name = rest_.substr(3, close - 3);
    bool negated = rest_[1] == 'P';
    if (absl::StartsWith(name, "^")) {
      negated = !negated;
      name.remove_prefix(1);
    }
    rest_.remove_prefix(close + 1);
    const absl::string_view added = NewMembers(name);
    if (added.empty()) {
      absl::StrAppend(&out_, negated ? "\\P{" : "\\p{", name, "}");
      return absl::OkStatus();
    }
    return PutSet(absl::StrCat("\\p{", name, "}", added), negated);
  }

  absl::Status TakeCodepoint() {
    const absl::string_view digits = rest_.substr(2, 4);
    const bool hexadecimal = std::all_of(digits.begin(), digits.end(), [](char c) {
      return absl::ascii_isxdigit(static_cast<unsigned char>(c));
    });
    if (digits.size() != 4 || !hexadecimal) {
      return Unsupported("\\u without four hexadecimal digits", pattern_);
    }
    absl::StrAppend(&out_, "\\x{", digits, "}");
    rest_.remove_prefix(2 + digits.size());
    return absl::OkStatus();
  }

  absl::Status PutSet(absl::string_view members, bool negated) {
    if (!in_class_) {
      absl::StrAppend(&out_, negated ? "[^" : "[", members, "]");
      return absl::OkStatus();
    }
    if (negated) {
      return Unsupported("a negated set inside a class", pattern_);
    }
    absl::StrAppend(&out_, members);
    return absl::OkStatus();
  }

  void Copy(size_t count) {
    absl::StrAppend(&out_, rest_.substr(0, count));
    rest_.remove_prefix(count);
  }

  const absl::string_view pattern_;
  absl::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(absl::string_view pattern) {
  return Translator(pattern).Run();
}

std::string QuotePattern(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_ispunct(static_cast<unsigned char>(c))) {
      out.push_back('\\');
    }
    out.push_back(c);
  }
  return out;
}

}  // namespace lamina::model
