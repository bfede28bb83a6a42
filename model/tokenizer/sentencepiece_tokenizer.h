// SPDX-License-Identifier: Apache-2.0
//
// SentencePieceTokenizer: special tokens found as strings, and the text between them encoded by the
// SentencePiece library.
//
// Threading: immutable; const calls from any thread.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/sentencepiece_library_internal.h"
#include "model/tokenizer/vocabulary_tokenizer.h"

namespace lamina::model {

struct SentencePieceOptions {
  std::string serialized;                // The content of a tokenizer.model file.
  std::vector<AddedToken> added_tokens;  // Beyond the model's own; may extend the vocabulary.
  bool add_bos = true;
  bool add_eos = false;
  // The model's leading space is put before every stretch of text between special tokens, and not
  // only where the user's text begins.
  bool prefix_after_special = true;
  TokenId bos = -1;  // Instead of the model's own, if given.
  TokenId eos = -1;
  std::vector<TokenId> end_tokens;
  std::string chat_template;
};

class SentencePieceTokenizer final : public VocabularyTokenizer {
 public:
  // Errors: kInvalidArgument  not a SentencePiece model; says what the library said.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(SentencePieceOptions options);

 private:
  SentencePieceTokenizer(TokenizerSettings settings, AddedTokens added_tokens,
                         std::unique_ptr<SentencePieceLibrary> first,
                         std::unique_ptr<SentencePieceLibrary> rest);

  absl::Status EncodeText(absl::string_view text, bool parse_special,
                          std::vector<TokenId>* out) const override;

  AddedTokens added_tokens_;
  std::unique_ptr<SentencePieceLibrary> first_;
  std::unique_ptr<SentencePieceLibrary> rest_;  // For text after a special token; may be nullptr.
};

}  // namespace lamina::model
