// SPDX-License-Identifier: Apache-2.0
//
// VocabularyTokenizer: what all kinds of tokenizer share. A kind only says how valid UTF-8 becomes
// tokens.
//
// Threading: immutable; const calls from any thread.

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/tokenizer/text_bound.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/vocabulary.h"

namespace lamina::model {

// A longer text is refused: positions inside are 32 bits wide.
inline constexpr size_t kTextBytesMax = size_t{256} << 20;

struct TokenizerSettings {
  Vocabulary vocabulary;
  TokenId bos = -1;
  TokenId eos = -1;
  std::vector<TokenId> end_tokens;
  std::vector<TokenId> prefix;     // Put before and after the tokens of a text that gets its
  std::vector<TokenId> suffix;     // special tokens.
  bool strip_first_space = false;  // Decoding drops a space at the beginning of the text.
  std::string chat_template;
  TextBound text_bound;  // What tokens_min() promises.
};

class VocabularyTokenizer : public Tokenizer {
 public:
  // Errors: kInvalidArgument  text longer than kTextBytesMax.
  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text,
                                              const EncodeOptions& options) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const TokenId> tokens,
                                     bool skip_special) const override;
  std::string TokenBytes(TokenId token, bool skip_special) const override;
  absl::string_view TokenName(TokenId token) const override;
  size_t tokens_min(absl::string_view text) const override {
    return settings_.text_bound.TokensMin(text);
  }
  size_t vocabulary_size() const override { return settings_.vocabulary.size(); }
  TokenId bos() const override { return settings_.bos; }
  TokenId eos() const override { return settings_.eos; }
  absl::Span<const TokenId> end_tokens() const override { return settings_.end_tokens; }
  TokenId Find(absl::string_view name) const override { return settings_.vocabulary.Find(name); }
  absl::string_view chat_template() const override { return settings_.chat_template; }

 protected:
  explicit VocabularyTokenizer(TokenizerSettings settings) : settings_(std::move(settings)) {}

  // Appends the tokens of valid UTF-8.
  virtual absl::Status EncodeText(absl::string_view text, bool parse_special,
                                  std::vector<TokenId>* out) const = 0;

 private:
  const TokenizerSettings settings_;
};

}  // namespace lamina::model
