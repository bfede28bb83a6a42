// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/bpe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/utf8.h"

namespace lamina::model {
namespace {

constexpr size_t kCharacterBytesMax = 4;

uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Heap order: the earliest merge first, of equals the leftmost.
bool ComesLater(const BpeModel::Candidate& a, const BpeModel::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

void PushSymbol(TokenId id, std::vector<BpeModel::Symbol>* symbols) {
  const auto index = static_cast<int32_t>(symbols->size());
  if (index > 0) {
    symbols->back().next = index;
  }
  symbols->push_back({.id = id, .previous = index - 1, .next = -1});
}

}  // namespace

absl::StatusOr<BpeModel> BpeModel::Create(BpeOptions options) {
  BpeModel model;
  model.vocabulary_ = std::move(options.vocabulary);
  model.unknown_ = options.unknown;
  model.fuse_unknown_ = options.fuse_unknown;
  model.byte_fallback_ = options.byte_fallback;
  model.ignore_merges_ = options.ignore_merges;
  model.characters_.fill(-1);
  for (uint32_t codepoint = 0; codepoint < model.characters_.size(); ++codepoint) {
    std::string character;
    AppendUtf8(codepoint, &character);
    model.characters_[codepoint] = model.Find(character);
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    model.bytes_[byte] = model.Find(absl::StrFormat("<0x%02X>", byte));
  }
  model.merges_.reserve(options.merges.size());
  for (size_t rank = 0; rank < options.merges.size(); ++rank) {
    const auto& [left, right] = options.merges[rank];
    const TokenId left_id = model.Find(left);
    const TokenId right_id = model.Find(right);
    const TokenId merged = model.Find(absl::StrCat(left, right));
    if (left_id < 0 || right_id < 0 || merged < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", rank, " of the tokenizer, \"", left, "\" and \"", right,
                       "\": a part or the whole is not in its vocabulary"));
    }
    model.merges_[PairKey(left_id, right_id)] = {static_cast<uint32_t>(rank), merged};
  }
  return model;
}

TokenId BpeModel::Find(absl::string_view name) const {
  const auto found = vocabulary_.find(name);
  return found == vocabulary_.end() ? -1 : found->second;
}

bool BpeModel::HasEveryByte() const {
  return byte_fallback_ &&
         std::all_of(bytes_.begin(), bytes_.end(), [](TokenId id) { return id >= 0; });
}

std::bitset<256> BpeModel::BytesWithoutSpelling() const {
  std::bitset<256> without;
  for (size_t byte = 0; byte < without.size(); ++byte) {
    const char c = static_cast<char>(byte);
    std::string spelling;
    AppendAsByteCharacters(absl::string_view(&c, 1), &spelling);
    without[byte] = FindCharacter(spelling, ReadUtf8(spelling).codepoint) < 0;
  }
  return without;
}

size_t BpeModel::LongestEntry(bool spelled) const {
  size_t most = kCharacterBytesMax;
  for (const auto& [name, id] : vocabulary_) {
    // A character of the alphabet is a byte.
    const auto characters = std::count_if(
        name.begin(), name.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
    most = std::max(most, spelled ? static_cast<size_t>(characters) : name.size());
  }
  return most;
}

TextBound BpeModel::piece_bound(bool spelled) const {
  const bool one_each = unknown_ >= 0 && !fuse_unknown_;  // Unknown ones have tokens, too.
  if (one_each || HasEveryByte()) {
    return TextBound(LongestEntry(spelled));
  }
  return spelled ? TextBound(LongestEntry(spelled), BytesWithoutSpelling()) : TextBound();
}

TokenId BpeModel::FindCharacter(absl::string_view character, uint32_t codepoint) const {
  return codepoint < characters_.size() ? characters_[codepoint] : Find(character);
}

bool BpeModel::AppendBytes(absl::string_view character, Scratch* scratch) const {
  const auto id_of = [this](char c) { return bytes_[static_cast<uint8_t>(c)]; };
  if (!std::all_of(character.begin(), character.end(), [&](char c) { return id_of(c) >= 0; })) {
    return false;
  }
  for (const char c : character) {
    PushSymbol(id_of(c), &scratch->symbols);
  }
  return true;
}

void BpeModel::AppendSymbols(absl::string_view piece, Scratch* scratch) const {
  bool after_unknown = false;
  while (!piece.empty()) {
    const Utf8Step step = ReadUtf8(piece);
    const absl::string_view character = piece.substr(0, step.length);
    piece.remove_prefix(step.length);
    const TokenId id = FindCharacter(character, step.codepoint);
    if (id >= 0) {
      PushSymbol(id, &scratch->symbols);
      after_unknown = false;
    } else if (byte_fallback_ && AppendBytes(character, scratch)) {
      after_unknown = false;
    } else if (unknown_ >= 0) {
      if (!(fuse_unknown_ && after_unknown)) {
        PushSymbol(unknown_, &scratch->symbols);
      }
      after_unknown = true;
    }
  }
}

void BpeModel::Consider(int32_t left, Scratch* scratch) const {
  const Symbol& symbol = scratch->symbols[left];
  if (symbol.next < 0) {
    return;
  }
  const auto found = merges_.find(PairKey(symbol.id, scratch->symbols[symbol.next].id));
  if (found != merges_.end()) {
    scratch->heap.push_back({found->second.rank, left, found->second.merged});
    std::push_heap(scratch->heap.begin(), scratch->heap.end(), ComesLater);
  }
}

void BpeModel::MergeAll(Scratch* scratch) const {
  std::vector<Symbol>& symbols = scratch->symbols;
  while (!scratch->heap.empty()) {
    std::pop_heap(scratch->heap.begin(), scratch->heap.end(), ComesLater);
    const Candidate top = scratch->heap.back();
    scratch->heap.pop_back();
    Symbol& left = symbols[top.left];
    if (!left.alive || left.next < 0) {
      continue;
    }
    // An entry is out of date when its symbols have merged with others since; it counts when the
    // pair that stands there now makes the same token, as in the reference implementation.
    Symbol& right = symbols[left.next];
    const auto found = merges_.find(PairKey(left.id, right.id));
    if (found == merges_.end() || found->second.merged != top.merged) {
      continue;
    }
    left.id = top.merged;
    right.alive = false;
    left.next = right.next;
    if (left.next >= 0) {
      symbols[left.next].previous = top.left;
    }
    if (left.previous >= 0) {
      Consider(left.previous, scratch);
    }
    Consider(top.left, scratch);
  }
}

void BpeModel::Encode(absl::string_view piece, Scratch* scratch, std::vector<TokenId>* out) const {
  if (piece.empty()) {
    return;
  }
  if (ignore_merges_) {
    const TokenId whole = Find(piece);
    if (whole >= 0) {
      out->push_back(whole);
      return;
    }
  }
  scratch->symbols.clear();
  scratch->heap.clear();
  AppendSymbols(piece, scratch);
  for (size_t i = 0; i + 1 < scratch->symbols.size(); ++i) {
    Consider(static_cast<int32_t>(i), scratch);
  }
  MergeAll(scratch);
  for (const Symbol& symbol : scratch->symbols) {
    if (symbol.alive) {
      out->push_back(symbol.id);
    }
  }
}

}  // namespace lamina::model
