// SPDX-License-Identifier: Apache-2.0
//
// LetterTokenizer: a vocabulary for tests of grammars: token 0 ends, then one for each byte, then
// words.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/grammar/grammar.h"

namespace lamina::model {

class LetterTokenizer final : public Tokenizer {
 public:
  explicit LetterTokenizer(const std::vector<std::string>& words) : bytes_{""} {
    for (int byte = 0; byte < 256; ++byte) {
      bytes_.emplace_back(1, static_cast<char>(byte));
    }
    bytes_.insert(bytes_.end(), words.begin(), words.end());
  }

  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text,
                                              const EncodeOptions&) const override {
    std::vector<TokenId> tokens;
    for (const char byte : text) {
      tokens.push_back(1 + static_cast<unsigned char>(byte));
    }
    return tokens;
  }
  absl::StatusOr<std::string> Decode(absl::Span<const TokenId> tokens,
                                     bool skip_special) const override {
    std::string text;
    for (const TokenId token : tokens) {
      text += TokenBytes(token, skip_special);
    }
    return text;
  }
  std::string TokenBytes(TokenId token, bool skip_special) const override {
    return token == 0 && !skip_special ? "<end>" : bytes_[static_cast<size_t>(token)];
  }
  absl::string_view TokenName(TokenId token) const override {
    return bytes_[static_cast<size_t>(token)];
  }
  size_t tokens_min(absl::string_view text) const override { return text.size(); }
  size_t vocabulary_size() const override { return bytes_.size(); }
  TokenId bos() const override { return -1; }
  TokenId eos() const override { return 0; }
  absl::Span<const TokenId> end_tokens() const override { return ends_; }
  TokenId Find(absl::string_view) const override { return -1; }
  absl::string_view chat_template() const override { return ""; }

 private:
  std::vector<std::string> bytes_;
  std::vector<TokenId> ends_ = {0};
};

}  // namespace lamina::model
