// SPDX-License-Identifier: Apache-2.0
#include "model/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "model/tokenizer/utf8.h"

namespace lamina::jinja {
namespace {

using model::AppendUtf8;
using model::ReadUtf8;

utf8proc_category_t CategoryOf(uint32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

bool IsLineBreak(uint32_t character) {
  return (character >= 0x0a && character <= 0x0d) || (character >= 0x1c && character <= 0x1e) ||
         character == 0x85 || character == 0x2028 || character == 0x2029;
}

// Where the last character of `text` begins.
size_t LastOffset(absl::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) {
    --at;
  }
  return at;
}

template <typename Drop>
absl::string_view Strip(absl::string_view text, Side side, const Drop& drop) {
  while ((side & kLeft) != 0 && !text.empty()) {
    const auto step = ReadUtf8(text);
    if (!drop(step.codepoint)) {
      break;
    }
    text.remove_prefix(step.length);
  }
  while ((side & kRight) != 0 && !text.empty()) {
    const size_t last = LastOffset(text);
    if (!drop(ReadUtf8(text.substr(last)).codepoint)) {
      break;
    }
    text = text.substr(0, last);
  }
  return text;
}

// Letters whose upper or lower case is more than one character.
bool AppendSpecialUpper(uint32_t character, std::string* out) {
  if (character == 0xDF) {
    out->append("SS");
    return true;
  }
  return false;
}

template <typename Map>
std::string MapCharacters(absl::string_view text, const Map& map) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto step = ReadUtf8(text);
    map(step.codepoint, &out);
    text.remove_prefix(step.length);
  }
  return out;
}

void AppendUpper(uint32_t character, std::string* out) {
  if (!AppendSpecialUpper(character, out)) {
    AppendUtf8(static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character))),
               out);
  }
}

void AppendLower(uint32_t character, std::string* out) {
  AppendUtf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))),
             out);
}

// Longer ones are looked for in linear time.
constexpr size_t kPlainSearchMax = 64;

std::string Reversed(absl::string_view text) { return std::string(text.rbegin(), text.rend()); }

}  // namespace

bool IsSpace(uint32_t character) {
  return (character >= 0x09 && character <= 0x0d) || (character >= 0x1c && character <= 0x20) ||
         character == 0x85 || character == 0xa0 || character == 0x1680 ||
         (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
         character == 0x2029 || character == 0x202f || character == 0x205f || character == 0x3000;
}

bool IsPrintable(uint32_t character) {
  if (character < 0x80) {
    return character >= 0x20 && character < 0x7f;
  }
  switch (CategoryOf(character)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool IsAlphabetic(uint32_t character) {
  const utf8proc_category_t category = CategoryOf(character);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsNumeric(uint32_t character) { return CategoryOf(character) == UTF8PROC_CATEGORY_ND; }
bool IsUpper(uint32_t character) { return CategoryOf(character) == UTF8PROC_CATEGORY_LU; }
bool IsLower(uint32_t character) { return CategoryOf(character) == UTF8PROC_CATEGORY_LL; }

size_t CountCharacters(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }));
}

size_t ByteOffset(absl::string_view text, size_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) {
      if (index == 0) {
        return at;
      }
      --index;
    }
  }
  return text.size();
}

std::vector<uint32_t> Characters(absl::string_view text) {
  std::vector<uint32_t> out;
  while (!text.empty()) {
    const auto step = ReadUtf8(text);
    out.push_back(step.codepoint);
    text.remove_prefix(step.length);
  }
  return out;
}

std::vector<std::string> SplitCharacters(absl::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const auto step = ReadUtf8(text);
    out.emplace_back(text.substr(0, step.length));
    text.remove_prefix(step.length);
  }
  return out;
}

absl::string_view StripSpace(absl::string_view text, Side side) {
  return Strip(text, side, IsSpace);
}

absl::string_view StripCharacters(absl::string_view text, absl::string_view set, Side side) {
  const std::vector<uint32_t> drop = Characters(set);
  return Strip(text, side, [&drop](uint32_t character) {
    return std::find(drop.begin(), drop.end(), character) != drop.end();
  });
}

std::string ToUpper(absl::string_view text) { return MapCharacters(text, AppendUpper); }
std::string ToLower(absl::string_view text) { return MapCharacters(text, AppendLower); }

std::string Capitalize(absl::string_view text) {
  const size_t first = ByteOffset(text, 1);
  return ToUpper(text.substr(0, first)) + ToLower(text.substr(first));
}

std::vector<std::string> SplitSpace(absl::string_view text, int64_t limit) {
  std::vector<std::string> out;
  text = StripSpace(text, kLeft);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(out.size()) == limit) {
      out.emplace_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      const auto step = ReadUtf8(text.substr(end));
      if (IsSpace(step.codepoint)) {
        break;
      }
      end += step.length;
    }
    out.emplace_back(text.substr(0, end));
    text = StripSpace(text.substr(end), kLeft);
  }
  return out;
}

std::vector<std::string> ReverseSplitSpace(absl::string_view text, int64_t limit) {
  std::vector<std::string> out;
  text = StripSpace(text, kRight);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(out.size()) == limit) {
      out.emplace_back(text);
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      const size_t last = LastOffset(text.substr(0, begin));
      if (IsSpace(ReadUtf8(text.substr(last)).codepoint)) {
        break;
      }
      begin = last;
    }
    out.emplace_back(text.substr(begin));
    text = StripSpace(text.substr(0, begin), kRight);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

size_t FindText(absl::string_view text, absl::string_view sub) {
  const void* const found = memmem(text.data(), text.size(), sub.data(), sub.size());
  return found == nullptr ? absl::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLastText(absl::string_view text, absl::string_view sub) {
  if (sub.size() <= kPlainSearchMax) {
    return text.rfind(sub);
  }
  const size_t found = FindText(Reversed(text), Reversed(sub));
  return found == absl::string_view::npos ? found : text.size() - found - sub.size();
}

std::vector<std::string> Split(absl::string_view text, absl::string_view separator, int64_t limit) {
  std::vector<std::string> out;
  size_t at = FindText(text, separator);
  while (at != absl::string_view::npos && (limit < 0 || static_cast<int64_t>(out.size()) < limit)) {
    out.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
    at = FindText(text, separator);
  }
  out.emplace_back(text);
  return out;
}

std::vector<std::string> ReverseSplit(absl::string_view text, absl::string_view separator,
                                      int64_t limit) {
  if (separator.size() > kPlainSearchMax) {
    std::vector<std::string> parts = Split(Reversed(text), Reversed(separator), limit);
    for (std::string& part : parts) {
      std::reverse(part.begin(), part.end());
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  std::vector<std::string> out;
  size_t at = text.rfind(separator);
  while (at != absl::string_view::npos && (limit < 0 || static_cast<int64_t>(out.size()) < limit)) {
    out.emplace_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
    at = text.rfind(separator);
  }
  out.emplace_back(text);
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> SplitLines(absl::string_view text, bool keep_ends) {
  std::vector<std::string> out;
  size_t start = 0;
  size_t at = 0;
  while (at < text.size()) {
    const auto step = ReadUtf8(text.substr(at));
    size_t next = at + step.length;
    if (IsLineBreak(step.codepoint)) {
      if (step.codepoint == '\r' && next < text.size() && text[next] == '\n') {
        ++next;
      }
      out.emplace_back(text.substr(start, (keep_ends ? next : at) - start));
      start = next;
    }
    at = next;
  }
  if (start < text.size()) {
    out.emplace_back(text.substr(start));
  }
  return out;
}

}  // namespace lamina::jinja
