// SPDX-License-Identifier: Apache-2.0
#include "model/jinja/lexer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "model/jinja/limits.h"
#include "model/jinja/text.h"
#include "model/tokenizer/utf8.h"

namespace lamina::jinja {
namespace {

// Longest first.
constexpr absl::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                            "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool IsNameStart(char c) {
  return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_' ||
         (static_cast<unsigned char>(c) & 0x80) != 0;
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      LAMINA_RETURN_IF_ERROR(LexText());
    }
    Add(TokenKind::kEnd, "");
    return std::move(out_);
  }

 private:
  absl::string_view Rest() const { return absl::string_view(source_).substr(at_); }
  bool At(absl::string_view text) const { return absl::StartsWith(Rest(), text); }

  void Add(TokenKind kind, std::string text) {
    out_.push_back({.kind = kind, .text = std::move(text), .line = line_});
  }

  void Advance(size_t bytes) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                    source_.begin() + static_cast<ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
  }

  void SkipSpace() {
    const absl::string_view rest = Rest();
    Advance(rest.size() - StripSpace(rest, kLeft).size());
  }

  // The text before a tag, cut as the tag's sign asks for: '-' cuts all white space; without '+',
  // a block or comment that begins its line loses its indentation.
  void AddData(absl::string_view text, char sign, bool is_variable) {
    const bool line_starting = at_ == 0 || source_[at_ - 1] == '\n';
    absl::string_view kept = text;
    if (sign == '-') {
      kept = StripSpace(text, kRight);
    } else if (sign != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == absl::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_starting) && StripSpace(text.substr(line), kLeft).empty()) {
        kept = text.substr(0, line);
      }
    }
    if (!kept.empty()) {
      Add(TokenKind::kData, std::string(kept));
    }
    Advance(text.size());
  }

  // Ends a block or comment: `close` may follow '-' or '+', which keeps the newline after it.
  // Returns false when it does not end here.
  bool SkipClose(absl::string_view close, bool plus) {
    if (At(absl::StrCat("-", close))) {
      Advance(close.size() + 1);
      SkipSpace();
      return true;
    }
    if (plus && At(absl::StrCat("+", close))) {
      Advance(close.size() + 1);
      return true;
    }
    if (At(close)) {
      Advance(close.size());
      if (plus && At("\n")) {
        Advance(1);
      }
      return true;
    }
    return false;
  }

  static char SignOf(absl::string_view text) {
    return !text.empty() && (text[0] == '-' || text[0] == '+') ? text[0] : '\0';
  }

  // From here to behind the next tag.
  absl::Status LexText() {
    const absl::string_view rest = Rest();
    size_t tag = rest.find('{');
    while (tag != absl::string_view::npos &&
           (tag + 1 == rest.size() ||
            (rest[tag + 1] != '{' && rest[tag + 1] != '%' && rest[tag + 1] != '#'))) {
      tag = rest.find('{', tag + 1);
    }
    if (tag == absl::string_view::npos) {
      Add(TokenKind::kData, std::string(rest));
      Advance(rest.size());
      return absl::OkStatus();
    }
    const char kind = rest[tag + 1];
    const char sign = SignOf(rest.substr(tag + 2));
    AddData(rest.substr(0, tag), sign, kind == '{');
    const int line = line_;
    Advance(sign == '\0' ? 2 : 3);
    if (kind == '#') {
      return LexComment(line);
    }
    if (kind == '%' && SkipRawBegin()) {
      return LexRaw(line);
    }
    return LexTag(line, kind == '{');
  }

  absl::Status LexComment(int line) {
    const size_t end = Rest().find("#}");
    if (end == absl::string_view::npos) {
      return ErrorAt(line, "a comment that does not end");
    }
    const char sign = end > 0 ? SignOf(Rest().substr(end - 1)) : '\0';
    Advance(sign == '\0' ? end : end - 1);
    SkipClose("#}", true);
    return absl::OkStatus();
  }

  // {% raw %} up to its end, of which nothing is trimmed.
  bool SkipRawBegin() {
    absl::string_view rest = StripSpace(Rest(), kLeft);
    if (!absl::ConsumePrefix(&rest, "raw")) {
      return false;
    }
    rest = StripSpace(rest, kLeft);
    if (!absl::StartsWith(rest, "%}") && !absl::StartsWith(rest, "-%}")) {
      return false;
    }
    Advance(Rest().size() - rest.size());
    return SkipClose("%}", false);
  }

  absl::Status LexRaw(int line) {
    const absl::string_view rest = Rest();
    for (size_t tag = rest.find("{%"); tag != absl::string_view::npos;
         tag = rest.find("{%", tag + 1)) {
      absl::string_view inner = rest.substr(tag + 2);
      const char sign = SignOf(inner);
      inner = StripSpace(inner.substr(sign == '\0' ? 0 : 1), kLeft);
      if (!absl::ConsumePrefix(&inner, "endraw")) {
        continue;
      }
      inner = StripSpace(inner, kLeft);
      const size_t close = rest.size() - inner.size();
      if (absl::StartsWith(inner, "%}") || absl::StartsWith(inner, "-%}") ||
          absl::StartsWith(inner, "+%}")) {
        AddData(rest.substr(0, tag), sign, false);
        Advance(close - tag);
        SkipClose("%}", true);
        return absl::OkStatus();
      }
    }
    return ErrorAt(line, "{% raw %} that does not end");
  }

  absl::Status LexTag(int line, bool variable) {
    Add(variable ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    for (;;) {
      SkipSpace();
      if (at_ == source_.size()) {
        return ErrorAt(line, variable ? "{{ that does not end" : "{% that does not end");
      }
      // Inside brackets a }} ends dicts.
      if (brackets_.empty() && SkipClose(variable ? "}}" : "%}", !variable)) {
        Add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "");
        return absl::OkStatus();
      }
      LAMINA_RETURN_IF_ERROR(LexToken());
    }
  }

  absl::Status LexToken() {
    const absl::string_view rest = Rest();
    if (IsDigit(rest[0])) {
      return LexNumber();
    }
    if (IsNameStart(rest[0])) {
      size_t end = 1;
      while (end < rest.size() && (IsNameStart(rest[end]) || IsDigit(rest[end]))) {
        ++end;
      }
      Add(TokenKind::kName, std::string(rest.substr(0, end)));
      Advance(end);
      return absl::OkStatus();
    }
    if (rest[0] == '\'' || rest[0] == '"') {
      return LexString();
    }
    for (const absl::string_view op : kOperators) {
      if (absl::StartsWith(rest, op)) {
        LAMINA_RETURN_IF_ERROR(Balance(op[0]));
        Add(TokenKind::kOperator, std::string(op));
        Advance(op.size());
        return absl::OkStatus();
      }
    }
    return ErrorAt(line_, absl::StrCat("unexpected character '", rest.substr(0, 1), "'"));
  }

  absl::Status Balance(char op) {
    constexpr absl::string_view kOpen = "([{";
    constexpr absl::string_view kClose = ")]}";
    if (const size_t kind = kOpen.find(op); kind != absl::string_view::npos) {
      brackets_.push_back(kClose[kind]);
    } else if (kClose.find(op) != absl::string_view::npos) {
      if (brackets_.empty() || brackets_.back() != op) {
        return ErrorAt(line_, absl::StrCat("unexpected '", std::string(1, op), "'"));
      }
      brackets_.pop_back();
    }
    return absl::OkStatus();
  }

  // Digits, with single underscores between them.
  static size_t DigitsEnd(absl::string_view text, size_t at) {
    while (at < text.size() && (IsDigit(text[at]) || (text[at] == '_' && at + 1 < text.size() &&
                                                      IsDigit(text[at + 1])))) {
      ++at;
    }
    return at;
  }

  absl::Status LexNumber() {
    const absl::string_view rest = Rest();
    if (rest.size() > 2 && rest[0] == '0' &&
        absl::ascii_isalpha(static_cast<unsigned char>(rest[1])) &&
        absl::ascii_tolower(static_cast<unsigned char>(rest[1])) != 'e') {
      return UnsupportedAt(line_, "a number that is not decimal");
    }
    size_t end = DigitsEnd(rest, 0);
    bool real = false;
    const bool after_dot =
        !out_.empty() && out_.back().kind == TokenKind::kOperator && out_.back().text == ".";
    if (!after_dot && end + 1 < rest.size() && rest[end] == '.' && IsDigit(rest[end + 1])) {
      end = DigitsEnd(rest, end + 1);
      real = true;
    }
    if (!after_dot && end < rest.size() && (rest[end] == 'e' || rest[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < rest.size() && (rest[digits] == '+' || rest[digits] == '-')) {
        ++digits;
      }
      if (digits < rest.size() && IsDigit(rest[digits])) {
        end = DigitsEnd(rest, digits);
        real = true;
      }
    }
    const std::string text = absl::StrReplaceAll(rest.substr(0, end), {{"_", ""}});
    int64_t whole = 0;
    if (!real && !absl::SimpleAtoi(text, &whole)) {
      return ErrorAt(line_, absl::StrCat("the number ", text, " does not fit 64 bits"));
    }
    if (!real && text.size() > 1 && text[0] == '0' && whole != 0) {
      return ErrorAt(line_, absl::StrCat("a number with leading zeros: ", text));
    }
    Add(real ? TokenKind::kFloat : TokenKind::kInteger, text);
    Advance(end);
    return absl::OkStatus();
  }

  absl::Status LexString() {
    const absl::string_view rest = Rest();
    size_t end = 1;
    while (end < rest.size() && rest[end] != rest[0]) {
      end += rest[end] == '\\' ? 2 : 1;
    }
    if (end >= rest.size()) {
      return ErrorAt(line_, "a string that does not end");
    }
    std::string text;
    LAMINA_RETURN_IF_ERROR(Unescape(rest.substr(1, end - 1), &text));
    Add(TokenKind::kString, std::move(text));
    Advance(end + 1);
    return absl::OkStatus();
  }

  absl::Status Unescape(absl::string_view text, std::string* out) const {
    static constexpr std::pair<char, char> kSimple[] = {
        {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'\\', '\\'}, {'\'', '\''},
        {'"', '"'},  {'a', '\a'}, {'b', '\b'}, {'f', '\f'},  {'v', '\v'}};
    while (!text.empty()) {
      if (text[0] != '\\') {
        out->push_back(text[0]);
        text.remove_prefix(1);
        continue;
      }
      const char kind = text[1];  // A string does not end within an escape.
      const auto* simple = std::find_if(std::begin(kSimple), std::end(kSimple),
                                        [kind](const auto& entry) { return entry.first == kind; });
      if (simple != std::end(kSimple)) {
        out->push_back(simple->second);
        text.remove_prefix(2);
      } else if (kind == '\n') {
        text.remove_prefix(2);
      } else if (kind == 'x' || kind == 'u' || kind == 'U') {
        LAMINA_RETURN_IF_ERROR(UnescapeHex(kind == 'x' ? 2 : kind == 'u' ? 4 : 8, &text, out));
      } else if (kind == 'N') {
        return UnsupportedAt(line_, "\\N{...} in a string");
      } else if (kind >= '0' && kind <= '7') {
        UnescapeOctal(&text, out);
      } else {
        out->push_back('\\');  // Python keeps what it does not know.
        text.remove_prefix(1);
      }
    }
    return absl::OkStatus();
  }

  absl::Status UnescapeHex(size_t digits, absl::string_view* text, std::string* out) const {
    uint32_t value = 0;
    const absl::string_view hex = text->substr(2, digits);
    const bool whole = hex.size() == digits &&
                       absl::ascii_isxdigit(static_cast<unsigned char>(hex[0])) &&
                       absl::SimpleHexAtoi(hex, &value);
    if (!whole || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      return ErrorAt(line_, absl::StrCat("a string has the escape ", text->substr(0, 2), hex,
                                         ", which is no character"));
    }
    model::AppendUtf8(value, out);
    text->remove_prefix(2 + digits);
    return absl::OkStatus();
  }

  static void UnescapeOctal(absl::string_view* text, std::string* out) {
    uint32_t value = 0;
    size_t length = 1;
    while (length < 4 && length < text->size() && (*text)[length] >= '0' &&
           (*text)[length] <= '7') {
      value = value * 8 + static_cast<uint32_t>((*text)[length] - '0');
      ++length;
    }
    model::AppendUtf8(value, out);
    text->remove_prefix(length);
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  std::string brackets_;  // The closing ones that are due.
  std::vector<Token> out_;
};

}  // namespace

absl::Status ErrorAt(int line, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("chat template, line ", line, ": ", message));
}

absl::Status UnsupportedAt(int line, absl::string_view construct) {
  return absl::UnimplementedError(
      absl::StrCat("chat template, line ", line, ": ", construct, " is not supported"));
}

absl::StatusOr<std::vector<Token>> Lex(absl::string_view source) {
  if (source.size() > kSourceBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the chat template has ", source.size(), " bytes; at most ", kSourceBytesMax));
  }
  std::string text = absl::StrReplaceAll(model::ToValidUtf8(source), {{"\r\n", "\n"}});
  std::replace(text.begin(), text.end(), '\r', '\n');
  if (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  return Lexer(std::move(text)).Run();
}

}  // namespace lamina::jinja
