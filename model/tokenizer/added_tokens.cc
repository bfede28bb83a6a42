// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/character_class.h"
#include "model/tokenizer/utf8.h"

namespace lamina::model {
namespace {

uint64_t EdgeKey(int32_t node, char byte) {
  return static_cast<uint64_t>(static_cast<uint32_t>(node)) << 8 | static_cast<uint8_t>(byte);
}

// Where the last character of `text` begins; `text` is not empty.
size_t LastCharacter(absl::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  return begin;
}

bool EndsWithWord(absl::string_view text) {
  return !text.empty() && IsWordCharacter(ReadUtf8(text.substr(LastCharacter(text))).codepoint);
}

bool BeginsWithWord(absl::string_view text) {
  return !text.empty() && IsWordCharacter(ReadUtf8(text).codepoint);
}

// Where the white space at the end of text[0, end) begins, not before `least`.
size_t SpaceBegin(absl::string_view text, size_t end, size_t least) {
  while (end > least) {
    const size_t begin = LastCharacter(text.substr(0, end));
    if (begin < least || !IsWhiteSpace(ReadUtf8(text.substr(begin)).codepoint)) {
      break;
    }
    end = begin;
  }
  return end;
}

size_t SpaceEnd(absl::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = ReadUtf8(text.substr(begin));
    if (!IsWhiteSpace(step.codepoint)) {
      break;
    }
    begin += step.length;
  }
  return begin;
}

}  // namespace

absl::Status CheckAddedTokens(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) {
    if (token.content.size() > kAddedTokenBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the added token with id ", token.id, " has ", token.content.size(), " bytes; at most ",
          kAddedTokenBytesMax, ". No known one is longer: fetch the tokenizer's files again"));
    }
  }
  return absl::OkStatus();
}

AddedTokens::AddedTokens() : AddedTokens(std::vector<AddedToken>{}) {}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), token_of_node_{-1} {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (!tokens_[i].content.empty()) {
      Insert(tokens_[i].content, static_cast<int32_t>(i));
    }
  }
}

void AddedTokens::Insert(const std::string& content, int32_t index) {
  begins_[static_cast<uint8_t>(content[0])] = true;
  int32_t node = 0;
  for (const char byte : content) {
    const auto next = static_cast<int32_t>(token_of_node_.size());
    const auto [edge, added] = children_.try_emplace(EdgeKey(node, byte), next);
    if (added) {
      token_of_node_.push_back(-1);
    }
    node = edge->second;
  }
  token_of_node_[node] = index;
}

const AddedToken* AddedTokens::LongestAt(absl::string_view text) const {
  int32_t node = 0;
  int32_t longest = -1;
  for (const char byte : text) {
    const auto edge = children_.find(EdgeKey(node, byte));
    if (edge == children_.end()) {
      break;
    }
    node = edge->second;
    longest = token_of_node_[node] >= 0 ? token_of_node_[node] : longest;
  }
  return longest < 0 ? nullptr : &tokens_[longest];
}

bool AddedTokens::Adjust(absl::string_view text, size_t taken, Match* match) {
  const AddedToken& token = *match->token;
  if (token.single_word &&
      (EndsWithWord(text.substr(0, match->begin)) || BeginsWithWord(text.substr(match->end)))) {
    return false;
  }
  if (token.lstrip) {
    match->begin = SpaceBegin(text, match->begin, taken);
  }
  if (token.rstrip) {
    match->end = SpaceEnd(text, match->end);
  }
  return true;
}

std::vector<AddedTokenSegment> AddedTokens::Split(absl::string_view text, bool special) const {
  std::vector<AddedTokenSegment> out;
  size_t taken = 0;  // Everything before this is in `out`.
  size_t position = 0;
  while (position < text.size()) {
    const AddedToken* token =
        begins_[static_cast<uint8_t>(text[position])] ? LongestAt(text.substr(position)) : nullptr;
    if (token == nullptr) {
      ++position;
      continue;
    }
    Match match{position, position + token->content.size(), token};
    position = match.end;
    if ((token->special && !special) || !Adjust(text, taken, &match)) {
      continue;
    }
    if (match.begin > taken) {
      out.push_back({-1, taken, match.begin});
    }
    out.push_back({token->id, match.begin, match.end});
    taken = match.end;
    position = std::max(position, taken);
  }
  if (taken < text.size()) {
    out.push_back({-1, taken, text.size()});
  }
  return out;
}

}  // namespace lamina::model
