// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "model/tokenizer/utf8.h"

namespace lamina::model {
namespace {

constexpr uint32_t kCodepointEnd = 0x100 + 68;

struct Alphabet {
  std::array<uint32_t, 256> codepoint_of{};
  std::array<int16_t, kCodepointEnd> byte_of{};
};

constexpr bool StandsForItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  alphabet.byte_of.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t codepoint = StandsForItself(byte) ? byte : next++;
    alphabet.codepoint_of[byte] = codepoint;
    alphabet.byte_of[codepoint] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

void AppendAsByteCharacters(absl::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    AppendUtf8(kAlphabet.codepoint_of[static_cast<uint8_t>(c)], out);
  }
}

bool FromByteCharacters(absl::string_view text, std::string* bytes) {
  bytes->clear();
  while (!text.empty()) {
    const Utf8Step step = ReadUtf8(text);
    if (step.state != Utf8State::kCharacter || step.codepoint >= kCodepointEnd ||
        kAlphabet.byte_of[step.codepoint] < 0) {
      return false;
    }
    bytes->push_back(static_cast<char>(kAlphabet.byte_of[step.codepoint]));
    text.remove_prefix(step.length);
  }
  return true;
}

}  // namespace lamina::model
