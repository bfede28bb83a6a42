// SPDX-License-Identifier: Apache-2.0
//
// The second moment of a step: what its rows and chunks read, store, score and sample, and whether
// they find there what their plan promises.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/fake_model.h"
#include "tests/sim/sim_nodes.h"
#include "tests/sim/sim_slots.h"

namespace lamina::sim {

plan::StepResult SimNodes::End(const plan::StepPlan& plan) {
  plan::StepResult result{.epoch = plan.epoch, .lane = plan.lane, .step = plan.step};
  if (!failure_.empty()) {
    return result;  // The tables cannot be trusted any more.
  }
  for (const plan::DecodeRow& row : plan.rows) {
    EndRow(row, result);
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    EndChunk(chunk, result);
  }
  std::erase_if(left_places_, [&](const LeftPlaces& left) {
    return left.lane == plan.lane && left.step <= plan.step;
  });
  return result;
}

void SimNodes::EndRow(const plan::DecodeRow& row, plan::StepResult& result) {
  Entry& entry = table_.at(row.sequence);
  entry.row_under_way = false;
  if (row.position < entry.released) {
    return Fail(absl::StrCat("the row of sequence ", row.sequence, " at ", row.position,
                             " has no slot any more"));
  }
  const Slot& target = SlotOf(entry, row.position);
  // A prompt's slots are its forks' too.
  const bool owned =
      std::all_of(target.owners.begin(), target.owners.end(), [&](plan::SequenceId owner) {
        return owner == row.sequence ||
               (!entry.prefilled && table_.at(owner).join.parent == row.sequence);
      });
  if (!owned || target.owners.empty()) {
    return Fail(absl::StrCat("sequence ", row.sequence, " writes a shared slot"));
  }
  if (entry.finished) {
    // A discarded row: real nodes may compute it or not. Here, what it writes is rubbish.
    const auto token = static_cast<TokenId>(random_.Below(kVocabulary));
    Store(entry, row.position, {.token = token});
    if (random_.Chance(0.5)) {
      result.tokens.push_back(
          {.sequence = row.sequence, .position = row.position + 1, .token = token});
    }
    return;
  }
  if (entry.prefilled && entry.tokens.size() != row.position + size_t{1}) {
    return Fail(absl::StrCat("the row of sequence ", row.sequence, " is at ", row.position,
                             ", its last token at ", entry.tokens.size() - 1));
  }
  Store(entry, row.position,
        {.token = entry.tokens[row.position],
         .history = HistoryOf(entry.tokens, row.position + size_t{1}),
         .maker = row.sequence,
         .bare = StoresBare(entry)});
  CheckActivations(entry, row.position);
  CheckReads(entry, row.position);
  if (!failure_.empty()) {
    return;
  }
  if (entry.join.score) {
    return ScoreRow(entry, row, result);
  }
  if (!entry.prefilled) {
    if (row.position + size_t{1} == entry.join.tokens.size()) {
      EndPrompt(entry, result);
    }
    return;
  }
  FakeModel model(entry.join.sampling.seed, options_.windows.longest());
  for (size_t i = entry.released; i < entry.slots.size(); ++i) {
    model.See(Seen(entry, i, row.position).token);
  }
  Sample(entry, model, result);
}

void SimNodes::CheckReads(const Entry& entry, uint32_t position) {
  const plan::SequenceId reader = entry.join.id;
  for (uint32_t i = FirstSeen(position); i < position; ++i) {
    if (i < entry.released ||
        Seen(entry, i, position).history != HistoryOf(entry.tokens, i + size_t{1})) {
      return Fail(absl::StrCat("the row of sequence ", reader, " at ", position,
                               " reads K and V of other tokens at ", i));
    }
    const plan::SequenceId maker = Seen(entry, i, position).maker;
    if (maker != reader && read_of_others_) {
      read_of_others_(reader, maker);
    }
  }
}

// Scores the token behind the row's, if there is one.
void SimNodes::ScoreRow(Entry& entry, const plan::DecodeRow& row, plan::StepResult& result) {
  if (row.position + size_t{1} == entry.join.tokens.size()) {
    entry.prefilled = true;
    return;
  }
  FakeModel model(entry.join.sampling.seed, options_.windows.longest());
  for (uint32_t i = entry.released; i <= row.position; ++i) {
    model.See(Seen(entry, i, row.position).token);
  }
  if (result.scores.empty() || result.scores.back().sequence != row.sequence) {
    result.scores.push_back({.sequence = row.sequence, .first_token = row.position + 1});
  }
  result.scores.back().logprobs.push_back(model.Logprob(entry.join.tokens[row.position + 1]));
}

// The first token of the sequence, and of its forks, from what lies in slots.
void SimNodes::EndPrompt(Entry& entry, plan::StepResult& result) {
  const size_t tokens = entry.join.tokens.size();
  for (auto& [id, other] : table_) {
    if (&other != &entry && (other.join.parent != entry.join.id || other.prefilled)) {
      continue;
    }
    other.prefilled = true;
    FakeModel model(other.join.sampling.seed, options_.windows.longest());
    for (size_t i = entry.released; i < tokens; ++i) {
      model.See(Seen(entry, i, tokens - 1).token);
    }
    Sample(other, model, result);
  }
}

void SimNodes::EndChunk(const plan::PrefillChunk& chunk, plan::StepResult& result) {
  Entry& entry = table_.at(chunk.sequence);
  const uint32_t end = chunk.first_token + chunk.tokens;
  if (chunk.first_token < entry.released) {
    return Fail(absl::StrCat("the chunk of sequence ", chunk.sequence, " has no slots any more"));
  }
  std::vector<TokenId>& scratch = ScratchOf(entry.lane);
  if (entry.scratch_offset + end > scratch.size() ||
      !std::equal(entry.tokens.begin(), entry.tokens.begin() + chunk.first_token,
                  scratch.begin() + entry.scratch_offset)) {
    return Fail(absl::StrCat("the chunk of sequence ", chunk.sequence, " at ", chunk.first_token,
                             " leaves the scratch, or reads there what is another one's"));
  }
  for (uint32_t i = chunk.first_token; i < end; ++i) {
    scratch[entry.scratch_offset + i] = entry.tokens[i];
    Store(entry, i,
          {.token = entry.tokens[i],
           .history = HistoryOf(entry.tokens, i + size_t{1}),
           .maker = entry.join.id,
           .bare = StoresBare(entry)});
  }
  entry.chunked = end;
  if (entry.join.score) {
    Score(entry, chunk, result);
  }
  entry.has_scratch = end < ScratchTokensOf(entry);
  if (!chunk.last) {
    return;
  }
  for (auto& [id, other] : table_) {
    if (id != chunk.sequence && (other.join.parent != chunk.sequence || other.prefilled)) {
      continue;
    }
    other.prefilled = true;
    if (other.join.score) {
      continue;
    }
    FakeModel model(other.join.sampling.seed, options_.windows.longest());
    for (uint32_t i = 0; i < end; ++i) {
      model.See(ScratchOf(entry.lane)[entry.scratch_offset + i]);
    }
    Sample(other, model, result);
  }
}

// Scores the tokens that follow those of the chunk, the last token of all excepted: nothing follows
// it.
void SimNodes::Score(const Entry& entry, const plan::PrefillChunk& chunk,
                     plan::StepResult& result) {
  plan::ScoredTokens scored{.sequence = chunk.sequence, .first_token = chunk.first_token + 1};
  FakeModel model(entry.join.sampling.seed, options_.windows.longest());
  const uint32_t end = chunk.first_token + chunk.tokens;
  for (uint32_t i = 0; i < end && i + 1 < entry.join.tokens.size(); ++i) {
    model.See(ScratchOf(entry.lane)[entry.scratch_offset + i]);
    if (i >= chunk.first_token) {
      scored.logprobs.push_back(model.Logprob(entry.join.tokens[i + 1]));
    }
  }
  if (!scored.logprobs.empty()) {
    result.scores.push_back(std::move(scored));
  }
}

void SimNodes::Sample(Entry& entry, const FakeModel& model, plan::StepResult& result) {
  const TokenId token = model.Next();
  plan::SampledToken sampled{.sequence = entry.join.id,
                             .position = static_cast<uint32_t>(entry.tokens.size()),
                             .token = token,
                             .top = model.Top(entry.join.sampling.logprobs)};
  entry.tokens.push_back(token);
  const auto& ends = entry.join.end_tokens;
  if (entry.tokens.size() >= entry.join.tokens_min &&
      std::find(ends.begin(), ends.end(), token) != ends.end()) {
    sampled.finish = plan::FinishReason::kStop;
  } else if (entry.tokens.size() >= entry.join.tokens_max) {
    sampled.finish = plan::FinishReason::kLength;
  }
  entry.finished = sampled.finish != plan::FinishReason::kNone;
  result.tokens.push_back(std::move(sampled));
}

}  // namespace lamina::sim
