// SPDX-License-Identifier: Apache-2.0
//
// IdTokenizer: a tokenizer whose text shows token ids: token 17 reads " 17". Tests that think in
// tokens can so predict every text, and where a stop string falls in it.
//
// Threading: const calls from any thread.

#pragma once

#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace lamina::test_support {

class IdTokenizer final : public model::Tokenizer {
 public:
  // `end_tokens` end a generation; the first of them is eos().
  explicit IdTokenizer(size_t vocabulary, std::vector<TokenId> end_tokens = {},
                       std::string chat_template = "")
      : vocabulary_(vocabulary),
        end_tokens_(std::move(end_tokens)),
        chat_template_(std::move(chat_template)) {}

  // Takes " 1 2 3". Errors: kInvalidArgument  anything else.
  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text,
                                              const model::EncodeOptions& options) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const TokenId> tokens,
                                     bool skip_special) const override;
  std::string TokenBytes(TokenId token, bool skip_special) const override;
  absl::string_view TokenName(TokenId) const override { return "token"; }
  size_t tokens_min(absl::string_view text) const override {
    return text.size() / (1 + std::to_string(vocabulary_).size());
  }
  size_t vocabulary_size() const override { return vocabulary_; }
  TokenId bos() const override { return -1; }
  TokenId eos() const override { return end_tokens_.empty() ? -1 : end_tokens_.front(); }
  absl::Span<const TokenId> end_tokens() const override { return end_tokens_; }
  TokenId Find(absl::string_view) const override { return -1; }
  absl::string_view chat_template() const override { return chat_template_; }

 private:
  size_t vocabulary_;
  std::vector<TokenId> end_tokens_;
  std::string chat_template_;
};

}  // namespace lamina::test_support
