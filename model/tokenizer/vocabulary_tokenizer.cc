// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/vocabulary_tokenizer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/tokenizer/utf8.h"

namespace lamina::model {

absl::StatusOr<std::vector<TokenId>> VocabularyTokenizer::Encode(
    absl::string_view text, const EncodeOptions& options) const {
  if (text.size() > kTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the text has ", text.size(), " bytes; at most ",
                                                   kTextBytesMax, " can be tokenized"));
  }
  std::vector<TokenId> out;
  if (options.add_special) {
    out = settings_.prefix;
  }
  LAMINA_RETURN_IF_ERROR(EncodeText(ToValidUtf8(text), options.parse_special, &out));
  if (options.add_special) {
    out.insert(out.end(), settings_.suffix.begin(), settings_.suffix.end());
  }
  return out;
}

absl::StatusOr<std::string> VocabularyTokenizer::Decode(absl::Span<const TokenId> tokens,
                                                        bool skip_special) const {
  std::string out;
  for (const TokenId token : tokens) {
    if (!settings_.vocabulary.Contains(token)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token, " is outside 0 to ", settings_.vocabulary.size() - 1));
    }
    const VocabularyEntry& entry = settings_.vocabulary.at(token);
    if (!(skip_special && entry.special)) {
      absl::StrAppend(&out, entry.bytes);
    }
  }
  if (settings_.strip_first_space && absl::StartsWith(out, " ")) {
    out.erase(0, 1);
  }
  return out;
}

std::string VocabularyTokenizer::TokenBytes(TokenId token, bool skip_special) const {
  if (!settings_.vocabulary.Contains(token)) {
    return "";
  }
  const VocabularyEntry& entry = settings_.vocabulary.at(token);
  return skip_special && entry.special ? "" : entry.bytes;
}

absl::string_view VocabularyTokenizer::TokenName(TokenId token) const {
  return settings_.vocabulary.Contains(token)
             ? absl::string_view(settings_.vocabulary.at(token).name)
             : absl::string_view();
}

}  // namespace lamina::model
