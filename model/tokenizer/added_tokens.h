// SPDX-License-Identifier: Apache-2.0
//
// AddedTokens: finds tokens that are matched as whole strings, before anything else cuts the text:
// special tokens such as <|im_start|>, and words added after training. The longest of the leftmost
// wins.
//
// Threading: immutable after building; const calls from any thread.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/sampling_params.h"

namespace lamina::model {

// The most bytes of one token's content. Known ones have up to 200; looking for them takes the
// longest one's bytes at each place of a text.
inline constexpr size_t kAddedTokenBytesMax = 512;

struct AddedToken {
  std::string content;
  TokenId id = -1;
  bool special = false;
  bool normalized = false;   // Looked for in the normalised text.
  bool single_word = false;  // Only where no word character stands next to it.
  bool lstrip = false;       // Takes the white space on its left with it.
  bool rstrip = false;       // Takes the white space on its right with it.
};

// Errors: kInvalidArgument  a content of more than kAddedTokenBytesMax; names its id.
absl::Status CheckAddedTokens(const std::vector<AddedToken>& tokens);

struct AddedTokenSegment {
  TokenId id = -1;  // -1: text between added tokens.
  size_t begin = 0;
  size_t end = 0;
};

class AddedTokens {
 public:
  AddedTokens();
  // Empty contents are left out; of equal contents the last counts.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Cuts `text` (valid UTF-8) into added tokens and what lies between, in order, none empty.
  // Special ones are text unless `special`.
  // Cost: O(n times the longest content).
  std::vector<AddedTokenSegment> Split(absl::string_view text, bool special) const;

 private:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };

  void Insert(const std::string& content, int32_t index);
  // The longest token that `text` begins with, or nullptr.
  const AddedToken* LongestAt(absl::string_view text) const;
  // Applies the token's flags; false when they reject the match.
  static bool Adjust(absl::string_view text, size_t taken, Match* match);

  std::vector<AddedToken> tokens_;
  // A trie over bytes: (node, byte) to node; node 0 is the root.
  absl::flat_hash_map<uint64_t, int32_t> children_;
  std::vector<int32_t> token_of_node_;  // Index into tokens_, or -1.
  std::array<bool, 256> begins_{};      // Bytes that some content begins with.
};

}  // namespace lamina::model
