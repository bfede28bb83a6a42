// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/vocabulary.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace lamina::model {
namespace {

// The most bytes of a name that an error shows.
constexpr size_t kShownBytes = 64;

constexpr absl::string_view kEndNames[] = {
    "<|im_end|>", "<|eot_id|>",    "<|eom_id|>",      "<|endoftext|>", "<|end_of_text|>",
    "<|end|>",    "<end_of_turn>", "<|end_of_turn|>", "<|eot|>",       "<|END_OF_TURN_TOKEN|>",
};

// In harmony's format, gpt-oss', <|end|> ends a message, behind which the answer goes on.
constexpr absl::string_view kHarmonyEnds[] = {"<|return|>", "<|call|>"};
constexpr absl::string_view kHarmonyMessageEnd = "<|end|>";

}  // namespace

bool IsEndName(absl::string_view name) {
  return std::find(std::begin(kEndNames), std::end(kEndNames), name) != std::end(kEndNames);
}

absl::Status Vocabulary::Put(TokenId id, VocabularyEntry entry) {
  const size_t end = std::min<size_t>(tokens_ + size_t{kVocabularyGapMax}, size_t{kVocabularyMax});
  if (id < 0 || static_cast<size_t>(id) >= end) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token \"", absl::CHexEscape(entry.name.substr(0, kShownBytes)), "\" has id ", id,
        ", outside 0 to ", end - 1, ", which a vocabulary of ", tokens_, " tokens and ",
        kVocabularyGapMax, " unused ids has: fetch the tokenizer's files again"));
  }
  const auto index = static_cast<size_t>(id);
  if (index >= entries_.size()) {
    entries_.resize(index + 1);
  }
  ids_[entry.name] = id;
  entries_[index] = std::move(entry);
  return absl::OkStatus();
}

TokenId Vocabulary::Find(absl::string_view name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? -1 : found->second;
}

std::vector<TokenId> FindEndTokens(const Vocabulary& vocabulary, TokenId eos,
                                   const std::vector<TokenId>& more) {
  std::vector<TokenId> out;
  const auto add = [&](TokenId id) {
    if (vocabulary.Contains(id) && std::find(out.begin(), out.end(), id) == out.end()) {
      out.push_back(id);
    }
  };
  add(eos);
  std::for_each(more.begin(), more.end(), add);
  const auto special = [&](absl::string_view name) {
    const TokenId id = vocabulary.Find(name);
    return id >= 0 && vocabulary.at(id).special ? id : TokenId{-1};
  };
  const bool harmony = std::all_of(std::begin(kHarmonyEnds), std::end(kHarmonyEnds),
                                   [&](absl::string_view name) { return special(name) >= 0; });
  for (const absl::string_view name : kEndNames) {
    if (!harmony || name != kHarmonyMessageEnd) {
      add(special(name));
    }
  }
  if (harmony) {
    for (const absl::string_view name : kHarmonyEnds) {
      add(special(name));
    }
  }
  return out;
}

}  // namespace lamina::model
