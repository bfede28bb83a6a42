// SPDX-License-Identifier: Apache-2.0
//
// Path sparse: of which tokens K and V come to the compute node, layer by layer. The compute node
// chooses them for all layers when a step begins, and puts them to each memory node that has rows
// of the step, in one window:
//
//   window   header | layers x runs x (words of a set | tokens that are kept)
//
// A run is some consecutive rows of one sequence (plan/fetch_pieces.h), in the order of the plan,
// with partition token_range what of these is of one span that lies on the memory node; the header
// says how many there are (rows). Token t of it is bit t % 64 of word t / 64; bits of tokens
// that are not before the run's first row are 0. Words are those of the run with most tokens before
// it, so that both sides know them; little endian. Tokens that are kept are attended as well
// and not in the set: the compute node has their K and V, and puts them into the pieces itself
// (FetchRun::kept). Their word says how many they are; with INT8 it is Int8Tokens::word().
//
// The signal is the step. The window is free again when all pieces of the step have come: they were
// cut from it.
//
// Threading: plain values. Determinism: pure functions.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/extent.h"
#include "plan/epoch_config.h"
#include "plan/fetch_pieces.h"
#include "plan/window_layout.h"

namespace lamina::plan {

// Where the sets of a step lie behind the header.
class TokenSets {
 public:
  TokenSets() = default;  // It has no runs.
  TokenSets(uint32_t layers, absl::Span<const FetchRun> runs);

  size_t words() const { return words_; }  // Words of one set.
  size_t bytes() const { return SetOf(static_cast<uint32_t>(layers_), 0) * sizeof(uint64_t); }
  // Where the set begins, in words, and where the word with how many tokens are kept lies.
  size_t SetOf(uint32_t layer, uint32_t run) const { return (layer * runs_ + run) * (words_ + 1); }
  size_t KeptOf(uint32_t layer, uint32_t run) const { return SetOf(layer, run) + words_; }

  static size_t WordsFor(uint32_t tokens) { return (size_t{tokens} + 63) / 64; }

 private:
  size_t layers_ = 0;
  size_t runs_ = 0;
  size_t words_ = 0;
};

// How many tokens a set has.
inline uint32_t CountTokens(absl::Span<const uint64_t> set) {
  uint32_t count = 0;
  for (const uint64_t word : set) {
    count += static_cast<uint32_t>(std::popcount(word));
  }
  return count;
}

// Appends the slot of a set's next token, or makes the last extent longer.
void AppendSlot(uint32_t slot, std::vector<Extent>& slots);

// Makes the set that of the first `tokens`.
void TakeFirst(uint32_t tokens, absl::Span<uint64_t> set);

// Whether the set has no tokens from `tokens` on.
bool EndsBefore(absl::Span<const uint64_t> set, uint32_t tokens);

// Whether the set has all of the first `tokens`, and no others.
bool IsWhole(absl::Span<const uint64_t> set, uint32_t tokens);

// How many tokens some of those before a run are where K and V are INT8: of closed blocks, of how
// many of these (fewer than 2^24), and of the open one.
struct Int8Tokens {
  uint32_t closed = 0;
  uint32_t blocks = 0;
  uint32_t open = 0;

  // Requires: the set has no tokens from the run's first row on.
  static Int8Tokens Of(const FetchRun& run, absl::Span<const uint64_t> set);
  uint32_t all() const { return closed + open; }

  // They travel as one word, which is this.
  uint64_t word() const { return closed | uint64_t{blocks} << 32 | uint64_t{open} << 56; }
  static Int8Tokens FromWord(uint64_t word);
};

// What comes for a run of which `set` is chosen and has to come, and more are kept, as the word
// `kept` says. Where K and V are INT8 one row has tokens of some blocks; consecutive ones attend to
// all before them (IsWhole()), some of which they may close, and none is kept.
FetchRun ChosenRun(const FetchRun& run, absl::Span<const uint64_t> set, uint64_t kept, bool int8);

// Says which word and window of a memory node's region the compute node's sets of a lane have.
class TokenSetWindows {
 public:
  // The layout must outlive this.
  explicit TokenSetWindows(const WindowLayout& layout) : layout_(layout) {}

  uint32_t word(uint32_t compute_node, uint32_t lane) const {
    return layout_.Word(WindowKind::kTokenSets, compute_node, lane);
  }
  size_t Window(uint32_t compute_node, uint32_t lane) const {
    return layout_.Window(WindowKind::kTokenSets, compute_node, lane, 0);
  }

 private:
  const WindowLayout& layout_;
};

// Runs of rows in one step, over all memory nodes, that sets are of: at most one for each sequence
// that has rows, or for each of its spans.
uint32_t TokenSetRunsMax(const EpochConfig& config);

// The most that sets of one step take; 0 without path sparse.
uint64_t TokenSetsBytesMax(const EpochConfig& config);

// Errors: kInvalidArgument  a ratio without path sparse, or one that is not in (0, 1] with it;
//                           an unknown pattern; a layer with a window together with it; partition
//                           token_range, unless all tokens are attended and none is weighed.
absl::Status CheckSparse(const EpochConfig& config);

}  // namespace lamina::plan
