// SPDX-License-Identifier: Apache-2.0
//
// PreTokenizer: cuts a normalised text into the pieces inside which BPE merges, by the steps that
// tokenizer.json lists or that a GGUF file's pre-tokenizer name stands for.
//
// Threading: immutable after building; const calls from any thread.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/regex.h"

namespace lamina::model {

// What becomes of the matches of a splitting pattern.
enum class SplitBehavior : uint8_t {
  kRemoved,             // Dropped.
  kIsolated,            // Pieces of their own.
  kMergedWithPrevious,  // End the piece before them.
  kMergedWithNext,      // Begin the piece after them.
  kContiguous,          // Neighbouring matches are one piece.
};

struct SplitStep {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // What lies between the matches counts as the match.
};

// Spells every byte by a printable character (byte_alphabet.h).
struct ByteLevelStep {};

// Puts a space before each piece that does not begin with one.
struct PrefixSpaceStep {};

// Turns spaces into `mark`, and cuts before each mark if told to.
struct MetaspaceStep {
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };
  std::string mark = "\xE2\x96\x81";   // U+2581.
  Prepend prepend = Prepend::kAlways;  // kFirst: only where the whole text begins.
  bool split = true;
};

using PreTokenizerStep = std::variant<SplitStep, PrefixSpaceStep, ByteLevelStep, MetaspaceStep>;

// A text and its pieces, in order.
struct PieceList {
  std::string text;
  std::vector<TextRange> pieces;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // One piece.
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  // `at_start`: the text is the beginning of what the user wrote.
  // Errors: those of Regex::Cut, and of CheckGrowth: the text may not grow without end.
  absl::StatusOr<PieceList> Apply(std::string text, bool at_start) const;

  // Whether all of a text is in its pieces.
  bool keeps_all() const;
  // Whether pieces are spelled in the alphabet of byte_alphabet.h.
  bool spells_bytes() const;
  // Whether that, once, and spaces that are put before pieces are all that is changed.
  bool keeps_bytes() const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

// The regular expression that ByteLevel applies unless told not to: the one of GPT-2.
absl::StatusOr<SplitStep> MakeGpt2Split();
// One step that cuts at numbers: at each digit, or around each run of digits.
absl::StatusOr<SplitStep> MakeDigitsSplit(bool individual);
// Cuts at what ASCII or Unicode calls punctuation.
absl::StatusOr<SplitStep> MakePunctuationSplit(SplitBehavior behavior);
absl::StatusOr<SplitStep> MakeSplit(absl::string_view pattern, SplitBehavior behavior,
                                    bool invert = false);

}  // namespace lamina::model
