// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/utf8.h"

#include "absl/strings/str_cat.h"

namespace lamina::model {
namespace {

// What may follow a lead byte: how many bytes, and the bounds of the first of them (the others are
// 80..BF). The narrower bounds exclude overlong forms, surrogates and what is above U+10FFFF.
struct Lead {
  size_t continuation_bytes = 0;
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
  uint32_t payload = 0;
};

// False for a byte that starts nothing.
bool ReadLead(uint8_t byte, Lead* lead) {
  if (byte >= 0xC2 && byte <= 0xDF) {
    *lead = {1, 0x80, 0xBF, byte & 0x1Fu};
    return true;
  }
  if (byte >= 0xE0 && byte <= 0xEF) {
    *lead = {2, static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80),
             static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF), byte & 0x0Fu};
    return true;
  }
  if (byte >= 0xF0 && byte <= 0xF4) {
    *lead = {3, static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80),
             static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF), byte & 0x07u};
    return true;
  }
  return false;
}

// Appends the lossy decoding of `text` up to an incomplete end; returns the bytes taken.
size_t AppendValid(absl::string_view text, std::string* out) {
  size_t position = 0;
  while (position < text.size()) {
    const Utf8Step step = ReadUtf8(text.substr(position));
    if (step.state == Utf8State::kIncomplete) {
      break;
    }
    const absl::string_view bytes = text.substr(position, step.length);
    absl::StrAppend(out, step.state == Utf8State::kCharacter ? bytes : kReplacementCharacter);
    position += step.length;
  }
  return position;
}

}  // namespace

Utf8Step ReadUtf8(absl::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) {
    return {Utf8State::kCharacter, 1, first};
  }
  Lead lead;
  if (!ReadLead(first, &lead)) {
    return {Utf8State::kInvalid, 1, 0};
  }
  uint32_t codepoint = lead.payload;
  for (size_t i = 1; i <= lead.continuation_bytes; ++i) {
    if (i == text.size()) {
      return {Utf8State::kIncomplete, i, 0};
    }
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_min : uint8_t{0x80};
    const uint8_t high = i == 1 ? lead.second_max : uint8_t{0xBF};
    if (byte < low || byte > high) {
      return {Utf8State::kInvalid, i, 0};
    }
    codepoint = codepoint << 6 | (byte & 0x3Fu);
  }
  return {Utf8State::kCharacter, lead.continuation_bytes + 1, codepoint};
}

void AppendUtf8(uint32_t codepoint, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (codepoint < 0x80) {
    put(codepoint);
    return;
  }
  if (codepoint < 0x800) {
    put(0xC0 | codepoint >> 6);
  } else {
    if (codepoint < 0x10000) {
      put(0xE0 | codepoint >> 12);
    } else {
      put(0xF0 | codepoint >> 18);
      put(0x80 | (codepoint >> 12 & 0x3F));
    }
    put(0x80 | (codepoint >> 6 & 0x3F));
  }
  put(0x80 | (codepoint & 0x3F));
}

std::string ToValidUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (AppendValid(text, &out) < text.size()) {
    absl::StrAppend(&out, kReplacementCharacter);
  }
  return out;
}

std::string TakeWholeCharacters(std::string* pending) {
  std::string out;
  pending->erase(0, AppendValid(*pending, &out));
  return out;
}

}  // namespace lamina::model
