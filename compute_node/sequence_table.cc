// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sequence_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "plan/table_changes.h"

namespace lamina::compute_node {

absl::Status SequenceTable::Apply(const plan::StepPlan& plan, uint32_t vocabulary,
                                  uint32_t span_tokens) {
  const Limits limits{.vocabulary = vocabulary, .span_tokens = span_tokens};
  return plan::ApplyChanges(plan, [&](const auto& change) { return ApplyChange(change, limits); });
}

// What lies in spill tiers is the memory nodes' business.
absl::Status SequenceTable::ApplyChange(const plan::SpillDrop&, const Limits&) {
  return absl::OkStatus();
}
absl::Status SequenceTable::ApplyChange(const plan::SpillOut&, const Limits&) {
  return absl::OkStatus();
}
absl::Status SequenceTable::ApplyChange(const plan::SpillIn&, const Limits&) {
  return absl::OkStatus();
}

absl::Status SequenceTable::ApplyChange(const plan::SequenceLeave& leave, const Limits&) {
  sequences_.erase(leave.id);
  return absl::OkStatus();
}

// Tokens without slots are not made again (plan/fetch_split.h). Slots themselves are the holders'
// business, and a span without any still sends its partial.
absl::Status SequenceTable::ApplyChange(const plan::SlotRelease& release, const Limits&) {
  if (Sequence* sequence = Find(release.sequence); sequence != nullptr) {
    sequence->released = release.tokens;
  }
  return absl::OkStatus();
}

absl::Status SequenceTable::ApplyChange(const plan::SequenceJoin& join, const Limits& limits) {
  if (join.tokens.empty() || join.prompt_tokens > join.tokens.size()) {
    return absl::InternalError(absl::StrCat("sequence ", join.id, " joins with ",
                                            join.tokens.size(), " tokens and a prompt of ",
                                            join.prompt_tokens));
  }
  for (const TokenId token : join.tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= limits.vocabulary) {
      return absl::InternalError(absl::StrCat("sequence ", join.id, " has token ", token,
                                              "; the vocabulary has ", limits.vocabulary));
    }
  }
  const auto [entry, is_new] = sequences_.try_emplace(join.id);
  if (!is_new) {
    return absl::InternalError(absl::StrCat("sequence ", join.id, " joins twice"));
  }
  entry->second.join = join;
  entry->second.tokens = join.tokens;
  entry->second.tokens.reserve(std::max<size_t>(join.tokens_max, join.tokens.size()) + 2);
  if (join.parent != 0) {
    Sequence* parent = Find(join.parent);
    if (parent == nullptr) {
      return absl::InternalError(
          absl::StrCat("sequence ", join.id, " has an unknown parent ", join.parent));
    }
    parent->children.push_back(join.id);
  }
  return absl::OkStatus();
}

absl::Status SequenceTable::ApplyChange(const plan::SlotAllocation& allocation,
                                        const Limits& limits) {
  if (limits.span_tokens == 0) {
    return absl::OkStatus();  // The memory node of the join has them all.
  }
  Sequence* sequence = Find(allocation.sequence);
  if (sequence == nullptr) {
    return absl::InternalError(
        absl::StrCat("slots are allocated to the unknown sequence ", allocation.sequence));
  }
  if (sequence->slots / limits.span_tokens == sequence->spans.size()) {
    sequence->spans.push_back(allocation.memory_node);
  }
  sequence->slots += allocation.extent.tokens;
  return absl::OkStatus();
}

Sequence* SequenceTable::Find(plan::SequenceId id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : &found->second;
}

namespace {

std::vector<plan::TokenLogprob> ToCore(const std::vector<kernels::TokenLogprob>& tokens) {
  std::vector<plan::TokenLogprob> out;
  for (const kernels::TokenLogprob& token : tokens) {
    out.push_back({.token = token.token, .logprob = token.logprob});
  }
  return out;
}

bool Has(absl::Span<const uint32_t> mask, TokenId token) {
  const size_t word = static_cast<size_t>(token) / 32;
  return word < mask.size() && ((mask[word] >> (token % 32)) & 1) != 0;
}

// All tokens of the vocabulary but those that end the sequence.
absl::Span<const uint32_t> WithoutEnds(size_t vocabulary, Sequence& sequence) {
  std::vector<uint32_t>& bits = sequence.without_ends;
  if (bits.empty()) {
    bits.assign((vocabulary + 31) / 32, ~uint32_t{0});
    if (vocabulary % 32 != 0) {
      bits.back() = (uint32_t{1} << vocabulary % 32) - 1;
    }
    for (const TokenId end : sequence.join.end_tokens) {
      const auto token = static_cast<size_t>(end);
      if (end >= 0 && token < vocabulary) {
        bits[token / 32] &= ~(uint32_t{1} << token % 32);
      }
    }
  }
  return bits;
}

// Whether `mask` has a token; where some are listed, one of these.
bool HasAny(absl::Span<const uint32_t> mask, const std::vector<TokenId>& listed) {
  if (listed.empty()) {
    return std::any_of(mask.begin(), mask.end(), [](uint32_t bits) { return bits != 0; });
  }
  return std::any_of(listed.begin(), listed.end(),
                     [mask](TokenId token) { return Has(mask, token); });
}

// What a form allows (empty: all tokens) without what ends the sequence; where nothing is left to
// draw from then, all that it allows: it is whole, or cannot do without such a token.
absl::Span<const uint32_t> GoingOn(absl::Span<const uint32_t> allowed, size_t vocabulary,
                                   Sequence& sequence) {
  std::vector<uint32_t>& both = sequence.going_on;
  const absl::Span<const uint32_t> without_ends = WithoutEnds(vocabulary, sequence);
  both.assign(without_ends.begin(), without_ends.end());
  for (size_t word = 0; word < both.size() && !allowed.empty(); ++word) {
    both[word] &= word < allowed.size() ? allowed[word] : 0;
  }
  const bool can = HasAny(both, sequence.join.sampling.allowed_tokens);
  return can ? absl::Span<const uint32_t>(both) : allowed;
}

// What the form of an output makes of a token that was appended.
enum class Fit : uint8_t {
  kGoesOn,   // Others may follow; so it is where there is no form.
  kWhole,    // The form is whole with it.
  kLast,     // Nothing may follow.
  kOutside,  // It does not fit: nothing did.
};

// The token that was appended last.
plan::SampledToken Judged(const kernels::SampleResult& sampled, Sequence& sequence, Fit fit) {
  const plan::SequenceJoin& join = sequence.join;
  plan::SampledToken result{.sequence = join.id,
                            .position = static_cast<uint32_t>(sequence.tokens.size() - 1),
                            .token = sampled.token,
                            .logprob = sampled.logprob,
                            .outside = fit == Fit::kOutside};
  const bool is_end = std::find(join.end_tokens.begin(), join.end_tokens.end(), sampled.token) !=
                      join.end_tokens.end();
  const bool may_end = !result.outside && sequence.tokens.size() >= join.tokens_min;
  const bool cut = result.outside || fit == Fit::kLast;
  if (fit == Fit::kWhole || (is_end && may_end)) {
    result.finish = plan::FinishReason::kStop;
  } else if (cut || sequence.tokens.size() >= join.tokens_max) {
    result.finish = plan::FinishReason::kLength;
  }
  sequence.finished = result.finish != plan::FinishReason::kNone;
  return result;
}

// Whether a sampler that was given `mask` (empty: all tokens) had leave to draw `token`. Where
// nothing is left to draw from, its token is any.
bool IsAllowed(TokenId token, absl::Span<const uint32_t> mask, const SamplingParams& sampling) {
  const std::vector<TokenId>& listed = sampling.allowed_tokens;
  return (mask.empty() || Has(mask, token)) &&
         (listed.empty() || std::find(listed.begin(), listed.end(), token) != listed.end());
}

// `could_fit`: the grammar had a mask, and the token has leave by it.
Fit FitOf(bool could_fit, Sequence& sequence, model::GrammarCache& grammars) {
  if (!could_fit) {
    return Fit::kOutside;
  }
  if (!FollowGrammar(sequence, grammars)) {
    return Fit::kLast;  // It takes too long.
  }
  return sequence.grammar->ended() ? Fit::kWhole : Fit::kGoesOn;
}

}  // namespace

bool FollowGrammar(Sequence& sequence, model::GrammarCache& grammars, ThreadBeat* beat) {
  const plan::SequenceJoin& join = sequence.join;
  if (sequence.grammar == nullptr) {
    const model::GrammarCache::Result grammar = grammars.Get(join.sampling.form, beat);
    if (!grammar.ok()) {
      LogError("request ", join.request_id,
               " has a form that its coordinator took and this node does not: ",
               grammar.status().message());
      return false;
    }
    sequence.grammar = (*grammar)->Begin();
    sequence.in_grammar = join.prompt_tokens;
  }
  for (; sequence.in_grammar < sequence.tokens.size(); ++sequence.in_grammar) {
    if (!sequence.grammar->Accept(sequence.tokens[sequence.in_grammar])) {
      return false;
    }
    if (beat != nullptr) {
      beat->Raise();
    }
  }
  return true;
}

plan::SampledToken SampleNext(absl::Span<const float> logits, Sequence& sequence,
                              model::GrammarCache& grammars, kernels::SampleScratch& scratch) {
  const plan::SequenceJoin& join = sequence.join;
  const absl::Span<const TokenId> tokens = sequence.tokens;
  const auto position = static_cast<uint32_t>(tokens.size());
  const bool formed = !join.sampling.form.any();
  const bool fits = !formed || (FollowGrammar(sequence, grammars) && !sequence.grammar->ended());
  absl::Span<const uint32_t> allowed;
  if (formed && fits) {
    allowed = sequence.grammar->Allowed();
  }
  if (fits && sequence.may_not_end()) {
    allowed = GoingOn(allowed, logits.size(), sequence);
  }
  const kernels::SampleResult sampled =
      kernels::Sample(logits, join.sampling, tokens.first(join.prompt_tokens),
                      tokens.subspan(join.prompt_tokens), position, scratch, allowed);
  // If no token fits, because the vocabulary cannot spell what must come or allowed_tokens have
  // none of it, or if the grammar takes too long, the output is cut off.
  const bool could_fit = fits && IsAllowed(sampled.token, allowed, join.sampling);
  sequence.tokens.push_back(sampled.token);
  const Fit fit = formed ? FitOf(could_fit, sequence, grammars) : Fit::kGoesOn;
  plan::SampledToken result = Judged(sampled, sequence, fit);
  result.top = ToCore(sampled.top);
  return result;
}

plan::SampledToken AppendSampled(TokenId token, Sequence& sequence) {
  sequence.tokens.push_back(token);
  return Judged({.token = token}, sequence, Fit::kGoesOn);
}

plan::TokenRank RankOf(absl::Span<const float> logits, TokenId token, const Sequence& sequence,
                       kernels::SampleScratch& scratch) {
  const int32_t alternatives = sequence.join.sampling.logprobs;
  if (alternatives < 0) {
    return {};
  }
  const kernels::TokenRank ranked =
      kernels::RankOf(logits, token, static_cast<uint32_t>(alternatives), scratch);
  return {.rank = ranked.rank, .top = ToCore(ranked.top)};
}

}  // namespace lamina::compute_node
