// SPDX-License-Identifier: Apache-2.0
#include "tests/support/id_tokenizer.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lamina::test_support {

absl::StatusOr<std::vector<TokenId>> IdTokenizer::Encode(absl::string_view text,
                                                         const model::EncodeOptions&) const {
  std::vector<TokenId> tokens;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    TokenId token = 0;
    if (!absl::SimpleAtoi(word, &token)) {
      return absl::InvalidArgumentError(absl::StrCat("'", word, "' is no token id"));
    }
    tokens.push_back(token);
  }
  return tokens;
}

absl::StatusOr<std::string> IdTokenizer::Decode(absl::Span<const TokenId> tokens,
                                                bool skip_special) const {
  std::string text;
  for (const TokenId token : tokens) {
    absl::StrAppend(&text, TokenBytes(token, skip_special));
  }
  return text;
}

std::string IdTokenizer::TokenBytes(TokenId token, bool) const { return absl::StrCat(" ", token); }

}  // namespace lamina::test_support
