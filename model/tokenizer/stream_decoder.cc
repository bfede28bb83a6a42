// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/utf8.h"

namespace lamina::model {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special,
                             absl::Span<const TokenId> before)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      first_(std::all_of(before.begin(), before.end(), [&](TokenId token) {
        return tokenizer.TokenBytes(token, skip_special).empty();
      })) {}

std::string StreamDecoder::Push(TokenId token) {
  std::string bytes = tokenizer_.TokenBytes(token, skip_special_);
  if (first_ && !bytes.empty()) {
    // Some tokenizers drop the space at the beginning of a text, and only Decode() knows.
    first_ = false;
    bytes = tokenizer_.Decode({token}, skip_special_).value_or(bytes);
  }
  absl::StrAppend(&pending_, bytes);
  return TakeWholeCharacters(&pending_);
}

std::string StreamDecoder::Finish() {
  std::string out = ToValidUtf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace lamina::model
