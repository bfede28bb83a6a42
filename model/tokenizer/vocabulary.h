// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: what each token is called and which bytes it adds to a text.
//
// Threading: immutable once it is in a tokenizer; const calls from any thread.

#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/sampling_params.h"

namespace lamina::model {

// More entries than any tokenizer has; a file that claims more is damaged.
inline constexpr TokenId kVocabularyMax = 1 << 24;
// Ids that no token has, at most: those that a trainer left out, or that round a table up. They
// take memory as tokens do.
inline constexpr TokenId kVocabularyGapMax = 1 << 16;

struct VocabularyEntry {
  std::string name;   // As the file spells it.
  std::string bytes;  // What it decodes to.
  bool special = false;
};

class Vocabulary {
 public:
  // `tokens`: how many entries will be put, which bounds their ids.
  explicit Vocabulary(size_t tokens = 0) : tokens_(tokens) {}

  // Puts an entry at `id`, which may leave holes below (empty entries) or replace one.
  // Errors: kInvalidArgument  `id` is not below both kVocabularyMax and
  //                           tokens + kVocabularyGapMax.
  absl::Status Put(TokenId id, VocabularyEntry entry);

  size_t size() const { return entries_.size(); }
  bool Contains(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < size(); }
  // Requires: Contains(id).
  const VocabularyEntry& at(TokenId id) const { return entries_[static_cast<size_t>(id)]; }
  // The id of a name (the last put, if several), or -1.
  TokenId Find(absl::string_view name) const;

 private:
  size_t tokens_ = 0;
  std::vector<VocabularyEntry> entries_;
  absl::flat_hash_map<std::string, TokenId> ids_;
};

// Whether chat models call a token so that ends a turn or a text.
bool IsEndName(absl::string_view name);

// The tokens that end a generation: `eos`, then `more`, then those special entries that bear such a
// name. In a vocabulary of harmony's (gpt-oss) <|end|> ends a message alone.
std::vector<TokenId> FindEndTokens(const Vocabulary& vocabulary, TokenId eos,
                                   const std::vector<TokenId>& more);

}  // namespace lamina::model
