// SPDX-License-Identifier: Apache-2.0
#include "plan/token_sets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/kv_form.h"
#include "plan/epoch_shape.h"

namespace lamina::plan {

TokenSets::TokenSets(uint32_t layers, absl::Span<const FetchRun> runs)
    : layers_(layers), runs_(runs.size()) {
  for (const FetchRun& run : runs) {
    words_ = std::max(words_, WordsFor(run.before));
  }
}

void AppendSlot(uint32_t slot, std::vector<Extent>& slots) {
  AppendExtent(slots, {.first_slot = slot, .tokens = 1});
}

void TakeFirst(uint32_t tokens, absl::Span<uint64_t> set) {
  std::fill(set.begin(), set.end(), 0);
  std::fill_n(set.begin(), tokens / 64, ~uint64_t{0});
  if (tokens % 64 != 0) {
    set[tokens / 64] = (uint64_t{1} << tokens % 64) - 1;
  }
}

bool EndsBefore(absl::Span<const uint64_t> set, uint32_t tokens) {
  const size_t whole = tokens / 64;
  for (size_t word = whole; word < set.size(); ++word) {
    const uint64_t own = word == whole ? (uint64_t{1} << tokens % 64) - 1 : 0;
    if ((set[word] & ~own) != 0) {
      return false;
    }
  }
  return true;
}

bool IsWhole(absl::Span<const uint64_t> set, uint32_t tokens) {
  return EndsBefore(set, tokens) && CountTokens(set) == tokens;
}

FetchRun ChosenRun(const FetchRun& run, absl::Span<const uint64_t> set, uint64_t kept, bool int8) {
  if (!int8) {
    const auto tokens = static_cast<uint32_t>(kept);
    return {.before = CountTokens(set) + tokens, .tokens = run.tokens, .kept = tokens};
  }
  if (run.tokens > 1) {
    return {.before = run.before, .tokens = run.tokens};
  }
  const Int8Tokens come = Int8Tokens::Of(run, set);
  const Int8Tokens stay = Int8Tokens::FromWord(kept);
  return {.before = come.all() + stay.all(),
          .tokens = run.tokens,
          .kept = stay.all(),
          .chosen = true,
          .chosen_closed = come.closed,
          .chosen_blocks = come.blocks,
          .kept_blocks = stay.blocks,
          .kept_open = stay.open};
}

Int8Tokens Int8Tokens::Of(const FetchRun& run, absl::Span<const uint64_t> set) {
  static_assert(kInt8BlockTokens == 64, "a word is a block");
  const auto whole = set.first(Int8TokensOf(run.before) / kInt8BlockTokens);
  const auto some = [](uint64_t word) { return word != 0; };
  return {.closed = CountTokens(whole),
          .blocks = static_cast<uint32_t>(std::count_if(whole.begin(), whole.end(), some)),
          .open = CountTokens(set.subspan(whole.size()))};
}

Int8Tokens Int8Tokens::FromWord(uint64_t word) {
  return {.closed = static_cast<uint32_t>(word),
          .blocks = static_cast<uint32_t>(word >> 32) & 0xffffff,
          .open = static_cast<uint32_t>(word >> 56)};
}

uint32_t TokenSetRunsMax(const EpochConfig& config) {
  const uint32_t spans =
      config.partition == Partition::kTokenRange
          ? (config.sequence_tokens_max + config.span_tokens - 1) / config.span_tokens
          : 1;
  return RowSequencesMax(config) * spans;
}

uint64_t TokenSetsBytesMax(const EpochConfig& config) {
  return config.attention_paths.Has(AttentionPath::kSparse)
             ? config.layers.size() * uint64_t{TokenSetRunsMax(config)} *
                   (TokenSets::WordsFor(RunTokensMax(config)) + 1) * sizeof(uint64_t)
             : 0;
}

absl::Status CheckSparse(const EpochConfig& config) {
  const bool sparse = config.attention_paths.Has(AttentionPath::kSparse);
  const bool in_range = config.sparse_ratio > 0 && config.sparse_ratio <= 1;
  if (sparse ? !in_range : config.sparse_ratio != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the configuration of epoch ", config.epoch, " has a caching ratio of ",
        config.sparse_ratio,
        sparse ? ", which is not in (0, 1]" : " and no path that attends to a part of the tokens"));
  }
  if (config.sparse_tokens > SparseTokens::kStrided) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch, " chooses tokens by pattern ",
                     static_cast<uint32_t>(config.sparse_tokens), "; this version knows 0 to ",
                     static_cast<uint32_t>(SparseTokens::kStrided)));
  }
  const bool takes_all = config.sparse_tokens == SparseTokens::kLocal && config.sparse_ratio == 1;
  if (sparse && config.partition == Partition::kTokenRange && !takes_all) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the configuration of epoch ", config.epoch,
        " chooses tokens, which a row attends to as to one sequence, and spans of them lie on "
        "several memory nodes; this version serves partition request or head"));
  }
  const bool windows =
      std::any_of(config.layers.begin(), config.layers.end(),
                  [](const AttentionDescriptor& layer) { return layer.window != 0; });
  return sparse && windows
             ? absl::InvalidArgumentError(absl::StrCat(
                   "the configuration of epoch ", config.epoch,
                   " has layers that attend to a window of tokens, of which fetch_sparse and "
                   "fetch.resident name none; this version serves models without them"))
             : absl::OkStatus();
}

}  // namespace lamina::plan
