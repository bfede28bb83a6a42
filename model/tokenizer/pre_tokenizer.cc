// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/text_growth.h"

namespace lamina::model {
namespace {

constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The Unicode that the reference implementation's punctuation comes from is older than the one of
// its patterns; these were assigned in between, as members of a class.
constexpr absl::string_view kPunctuationTooNew =
    "\\x{61D}\\x{9FD}\\x{A76}\\x{C77}\\x{C84}\\x{1B4E}-\\x{1B4F}\\x{1B7D}-\\x{1B7F}"
    "\\x{2E43}-\\x{2E4F}\\x{2E52}-\\x{2E5D}\\x{10D6E}\\x{10EAD}\\x{10F55}-\\x{10F59}"
    "\\x{10F86}-\\x{10F89}\\x{113D4}-\\x{113D5}\\x{113D7}-\\x{113D8}\\x{1144B}-\\x{1144F}"
    "\\x{1145A}-\\x{1145B}\\x{1145D}\\x{11660}-\\x{1166C}\\x{116B9}\\x{1183B}"
    "\\x{11944}-\\x{11946}\\x{119E2}\\x{11A3F}-\\x{11A46}\\x{11A9A}-\\x{11A9C}"
    "\\x{11A9E}-\\x{11AA2}\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11C41}-\\x{11C45}"
    "\\x{11C70}-\\x{11C71}\\x{11EF7}-\\x{11EF8}\\x{11F43}-\\x{11F4F}\\x{11FFF}"
    "\\x{12FF1}-\\x{12FF2}\\x{16D6D}-\\x{16D6F}\\x{16E97}-\\x{16E9A}\\x{16FE2}"
    "\\x{1E5FF}\\x{1E95E}-\\x{1E95F}";

absl::string_view TextOf(const PieceList& list, const TextRange& piece) {
  return absl::string_view(list.text).substr(piece.begin, piece.end - piece.begin);
}

// Joins neighbours of `cut` where `joins(left, right)`.
template <typename Joins>
void JoinNeighbours(const Joins& joins, std::vector<TextRange>* cut) {
  std::vector<TextRange> out;
  for (const TextRange& range : *cut) {
    if (!out.empty() && joins(out.back(), range)) {
      out.back().end = range.end;
      out.back().matched = range.matched;
    } else {
      out.push_back(range);
    }
  }
  *cut = std::move(out);
}

void ApplyBehavior(SplitBehavior behavior, std::vector<TextRange>* cut) {
  const auto touch = [](const TextRange& a, const TextRange& b) { return a.end == b.begin; };
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      std::erase_if(*cut, [](const TextRange& range) { return range.matched; });
      return;
    case SplitBehavior::kContiguous:
      JoinNeighbours([&](const TextRange& a,
                         const TextRange& b) { return touch(a, b) && a.matched == b.matched; },
                     cut);
      return;
    case SplitBehavior::kMergedWithPrevious:
      JoinNeighbours([&](const TextRange& a,
                         const TextRange& b) { return touch(a, b) && !a.matched && b.matched; },
                     cut);
      return;
    case SplitBehavior::kMergedWithNext:
      JoinNeighbours([&](const TextRange& a,
                         const TextRange& b) { return touch(a, b) && a.matched && !b.matched; },
                     cut);
      return;
  }
}

// Each piece of the list is cut for itself: neighbours of different pieces never join.
absl::Status ApplySplit(const SplitStep& step, PieceList* list) {
  std::vector<TextRange> cut;
  if (step.behavior == SplitBehavior::kIsolated) {
    LAMINA_RETURN_IF_ERROR(step.pattern.Cut(list->text, list->pieces, &cut));
    list->pieces = std::move(cut);
    return absl::OkStatus();
  }
  std::vector<TextRange> out;
  for (const TextRange& piece : list->pieces) {
    LAMINA_RETURN_IF_ERROR(step.pattern.Cut(list->text, {piece}, &cut));
    if (step.invert) {
      for (TextRange& range : cut) {
        range.matched = !range.matched;
      }
    }
    ApplyBehavior(step.behavior, &cut);
    out.insert(out.end(), cut.begin(), cut.end());
  }
  list->pieces = std::move(out);
  return absl::OkStatus();
}

void ApplyPrefixSpace(PieceList* list) {
  PieceList out;
  for (const TextRange& piece : list->pieces) {
    const absl::string_view text = TextOf(*list, piece);
    const size_t begin = out.text.size();
    absl::StrAppend(&out.text, absl::StartsWith(text, " ") ? "" : " ", text);
    out.pieces.push_back({begin, out.text.size()});
  }
  *list = std::move(out);
}

void ApplyByteLevel(PieceList* list) {
  PieceList out;
  out.text.reserve(list->text.size() * 2);
  out.pieces.reserve(list->pieces.size());
  for (const TextRange& piece : list->pieces) {
    const size_t begin = out.text.size();
    AppendAsByteCharacters(TextOf(*list, piece), &out.text);
    out.pieces.push_back({begin, out.text.size()});
  }
  *list = std::move(out);
}

void ApplyMetaspace(const MetaspaceStep& step, bool at_start, PieceList* list) {
  PieceList out;
  for (const TextRange& piece : list->pieces) {
    std::string text = absl::StrReplaceAll(TextOf(*list, piece), {{" ", step.mark}});
    const bool first = at_start && piece.begin == 0;
    const bool wanted = step.prepend == MetaspaceStep::Prepend::kAlways ||
                        (step.prepend == MetaspaceStep::Prepend::kFirst && first);
    if (wanted && !absl::StartsWith(text, step.mark)) {
      text.insert(0, step.mark);
    }
    size_t begin = out.text.size();
    absl::StrAppend(&out.text, text);
    size_t next = begin + 1;
    while (step.split && (next = out.text.find(step.mark, next)) != std::string::npos) {
      out.pieces.push_back({begin, next});
      begin = next++;
    }
    out.pieces.push_back({begin, out.text.size()});
  }
  *list = std::move(out);
}

}  // namespace

absl::StatusOr<PieceList> PreTokenizer::Apply(std::string text, bool at_start) const {
  PieceList list;
  list.text = std::move(text);
  const size_t bytes_max = GrownMax(list.text.size());
  if (!list.text.empty()) {
    list.pieces.push_back({0, list.text.size()});
  }
  for (const PreTokenizerStep& step : steps_) {
    if (const auto* split = std::get_if<SplitStep>(&step)) {
      LAMINA_RETURN_IF_ERROR(ApplySplit(*split, &list));
    } else if (std::holds_alternative<PrefixSpaceStep>(step)) {
      ApplyPrefixSpace(&list);
    } else if (std::holds_alternative<ByteLevelStep>(step)) {
      ApplyByteLevel(&list);
    } else {
      ApplyMetaspace(std::get<MetaspaceStep>(step), at_start, &list);
    }
    // One step makes at most kMarkBytesMax bytes of one.
    LAMINA_RETURN_IF_ERROR(CheckGrowth(list.text.size(), bytes_max));
  }
  return list;
}

absl::StatusOr<SplitStep> MakeSplit(absl::string_view pattern, SplitBehavior behavior,
                                    bool invert) {
  LAMINA_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  return SplitStep{std::move(regex), behavior, invert};
}

bool PreTokenizer::keeps_all() const {
  return std::none_of(steps_.begin(), steps_.end(), [](const PreTokenizerStep& step) {
    const auto* split = std::get_if<SplitStep>(&step);
    return split != nullptr && split->behavior == SplitBehavior::kRemoved;
  });
}

bool PreTokenizer::spells_bytes() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const PreTokenizerStep& step) {
    return std::holds_alternative<ByteLevelStep>(step);
  });
}

bool PreTokenizer::keeps_bytes() const {
  const auto count = [this](const auto& is) {
    return std::count_if(steps_.begin(), steps_.end(), is);
  };
  return count([](const PreTokenizerStep& step) {
           return std::holds_alternative<ByteLevelStep>(step);
         }) <= 1 &&
         count([](const PreTokenizerStep& step) {
           return std::holds_alternative<MetaspaceStep>(step);
         }) == 0;
}

absl::StatusOr<SplitStep> MakeGpt2Split() {
  return MakeSplit(kGpt2Pattern, SplitBehavior::kIsolated);
}

absl::StatusOr<SplitStep> MakeDigitsSplit(bool individual) {
  // The two ranges are numbers of Unicode 17, which the reference's digits know already.
  return MakeSplit("[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]",
                   individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

absl::StatusOr<SplitStep> MakePunctuationSplit(SplitBehavior behavior) {
  return MakeSplit(
      absl::StrCat("(?![", kPunctuationTooNew, "])[\\p{P}$+<=>^`|~\\x{166D}\\x{111C9}]"), behavior);
}

}  // namespace lamina::model
