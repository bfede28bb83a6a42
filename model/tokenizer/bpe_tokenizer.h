// SPDX-License-Identifier: Apache-2.0
//
// BpeTokenizer: added tokens, normaliser, pre-tokenizer and BPE in a row.
//
// Threading: immutable; const calls from any thread.

#pragma once

#include <vector>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/vocabulary_tokenizer.h"

namespace lamina::model {

struct BpePipeline {
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
};

class BpeTokenizer final : public VocabularyTokenizer {
 public:
  // Errors: those of normalising the contents of added tokens.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(BpePipeline pipeline,
                                                           TokenizerSettings settings);

 private:
  BpeTokenizer(BpePipeline pipeline, TokenizerSettings settings);

  absl::Status EncodeText(absl::string_view text, bool parse_special,
                          std::vector<TokenId>* out) const override;
  // `segment` has no added token that is looked for before normalising.
  absl::Status EncodeSegment(absl::string_view segment, bool at_start, bool parse_special,
                             BpeModel::Scratch* scratch, std::vector<TokenId>* out) const;

  BpePipeline pipeline_;
  AddedTokens raw_tokens_;         // Looked for in the text as it came.
  AddedTokens normalized_tokens_;  // Looked for in the normalised text.
};

}  // namespace lamina::model
