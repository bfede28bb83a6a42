// SPDX-License-Identifier: Apache-2.0
//
// BpeModel: byte-pair encoding of one piece of text. Starts from one symbol per character and
// merges, always the pair that training merged first, until no pair of neighbours is known.
//
// Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units".
// Threading: immutable after Create(); const calls from any thread, each with its own scratch.

#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/sampling_params.h"
#include "model/tokenizer/text_bound.h"

namespace lamina::model {

struct BpeOptions {
  // Id and spelling of each entry that merges may make.
  absl::flat_hash_map<std::string, TokenId> vocabulary;
  // Pairs of spellings; earlier ones merge first.
  std::vector<std::pair<std::string, std::string>> merges;
  TokenId unknown = -1;        // For characters without entry; -1 drops them.
  bool fuse_unknown = false;   // One unknown for neighbours.
  bool byte_fallback = false;  // "<0x41>" for the bytes of characters without entry.
  bool ignore_merges = false;  // A piece that is an entry is that entry, whatever the merges say.
};

class BpeModel {
 public:
  // Reused between pieces, so that encoding does not allocate per piece.
  struct Symbol {
    TokenId id = -1;
    int32_t previous = -1;
    int32_t next = -1;
    bool alive = true;
  };
  struct Candidate {
    uint32_t rank = 0;
    int32_t left = 0;
    TokenId merged = -1;
  };
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Errors: kInvalidArgument  a merge of, or into, what is not in the vocabulary; names it.
  static absl::StatusOr<BpeModel> Create(BpeOptions options);

  // Appends the tokens of `piece` (valid UTF-8). Cost: O(n log n).
  void Encode(absl::string_view piece, Scratch* scratch, std::vector<TokenId>* out) const;

  // The id of an entry, or -1.
  TokenId Find(absl::string_view name) const;

  // Bounds the bytes of pieces by their tokens. `spelled`: pieces are spelled in the alphabet of
  // byte_alphabet.h, and the bytes are those that they spell; those without entry are dropped, or
  // share a token. Otherwise it promises nothing if a character may be dropped.
  TextBound piece_bound(bool spelled) const;

 private:
  struct Merge {
    uint32_t rank = 0;
    TokenId merged = -1;
  };

  BpeModel() = default;
  bool HasEveryByte() const;
  std::bitset<256> BytesWithoutSpelling() const;
  size_t LongestEntry(bool spelled) const;
  TokenId FindCharacter(absl::string_view character, uint32_t codepoint) const;
  void AppendSymbols(absl::string_view piece, Scratch* scratch) const;
  bool AppendBytes(absl::string_view character, Scratch* scratch) const;
  void Consider(int32_t left, Scratch* scratch) const;
  void MergeAll(Scratch* scratch) const;

  absl::flat_hash_map<std::string, TokenId> vocabulary_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  // Entries of one character, by code point, for the characters that byte-level BPE uses.
  std::array<TokenId, 512> characters_{};
  std::array<TokenId, 256> bytes_{};
  TokenId unknown_ = -1;
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
};

}  // namespace lamina::model
