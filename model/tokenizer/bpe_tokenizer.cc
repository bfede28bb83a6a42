// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/status_macros.h"
#include "model/tokenizer/text_bound.h"
#include "model/tokenizer/utf8.h"

namespace lamina::model {
namespace {

// Text that belongs to one of `tokens`, at most; 0 if one takes white space without end.
size_t LongestOf(const std::vector<AddedToken>& tokens) {
  size_t longest = 1;
  for (const AddedToken& token : tokens) {
    if (token.lstrip || token.rstrip) {
      return 0;
    }
    longest = std::max(longest, token.content.size());
  }
  return longest;
}

// Invalid bytes of a text become this character, which must count for no fewer than they do.
bool DropsReplacement(const std::bitset<256>& dropped) {
  return std::any_of(kReplacementCharacter.begin(), kReplacementCharacter.end(),
                     [&](char byte) { return dropped[static_cast<uint8_t>(byte)]; });
}

// `raw` and `normalized` added tokens are looked for before and behind the normalizer.
TextBound TextBoundOf(const BpePipeline& pipeline, const std::vector<AddedToken>& raw,
                      const std::vector<AddedToken>& normalized) {
  const size_t shrink = pipeline.normalizer.shrink_max();
  const TextBound piece = pipeline.model.piece_bound(pipeline.pre_tokenizer.spells_bytes());
  const size_t longest_raw = LongestOf(raw);
  const size_t longest_normalized = LongestOf(normalized);
  if (shrink == 0 || piece.bytes_per_token_max() == 0 || longest_raw == 0 ||
      longest_normalized == 0 || !pipeline.pre_tokenizer.keeps_all()) {
    return TextBound();
  }
  // A step that turns bytes into others might turn those that count into those that are dropped.
  const bool keeps = pipeline.normalizer.is_identity() && pipeline.pre_tokenizer.keeps_bytes();
  if (piece.dropped().any() && (!keeps || DropsReplacement(piece.dropped()))) {
    return TextBound();
  }
  return TextBound(
      std::max(longest_raw, shrink * std::max(piece.bytes_per_token_max(), longest_normalized)),
      piece.dropped());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BpeTokenizer::Create(BpePipeline pipeline,
                                                                TokenizerSettings settings) {
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  for (AddedToken& token : pipeline.added_tokens) {
    if (token.normalized) {
      // The text that it is compared with went through the normaliser, too.
      LAMINA_ASSIGN_OR_RETURN(token.content, pipeline.normalizer.Apply(token.content));
    }
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  LAMINA_RETURN_IF_ERROR(CheckAddedTokens(raw));
  LAMINA_RETURN_IF_ERROR(CheckAddedTokens(normalized));
  pipeline.added_tokens.clear();
  settings.text_bound = TextBoundOf(pipeline, raw, normalized);
  std::unique_ptr<BpeTokenizer> tokenizer(
      new BpeTokenizer(std::move(pipeline), std::move(settings)));
  tokenizer->raw_tokens_ = AddedTokens(std::move(raw));
  tokenizer->normalized_tokens_ = AddedTokens(std::move(normalized));
  return tokenizer;
}

BpeTokenizer::BpeTokenizer(BpePipeline pipeline, TokenizerSettings settings)
    : VocabularyTokenizer(std::move(settings)), pipeline_(std::move(pipeline)) {}

absl::Status BpeTokenizer::EncodeText(absl::string_view text, bool parse_special,
                                      std::vector<TokenId>* out) const {
  BpeModel::Scratch scratch;
  for (const AddedTokenSegment& segment : raw_tokens_.Split(text, parse_special)) {
    if (segment.id >= 0) {
      out->push_back(segment.id);
      continue;
    }
    LAMINA_RETURN_IF_ERROR(EncodeSegment(text.substr(segment.begin, segment.end - segment.begin),
                                         segment.begin == 0, parse_special, &scratch, out));
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::EncodeSegment(absl::string_view segment, bool at_start,
                                         bool parse_special, BpeModel::Scratch* scratch,
                                         std::vector<TokenId>* out) const {
  LAMINA_ASSIGN_OR_RETURN(const std::string text, pipeline_.normalizer.Apply(segment));
  for (const AddedTokenSegment& part : normalized_tokens_.Split(text, parse_special)) {
    if (part.id >= 0) {
      out->push_back(part.id);
      continue;
    }
    LAMINA_ASSIGN_OR_RETURN(
        const PieceList list,
        pipeline_.pre_tokenizer.Apply(text.substr(part.begin, part.end - part.begin),
                                      at_start && part.begin == 0));
    for (const TextRange& piece : list.pieces) {
      pipeline_.model.Encode(
          absl::string_view(list.text).substr(piece.begin, piece.end - piece.begin), scratch, out);
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::model
