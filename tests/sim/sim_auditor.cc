// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/sim_auditor.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/beam_search.h"
#include "coordinator/core/loss_history.h"
#include "tests/sim/fake_model.h"

namespace lamina::sim {

void SimAuditor::Fail(plan::SequenceId sequence, const std::string& what) {
  if (failure_.empty()) {
    failure_ = absl::StrCat("client of sequence ", sequence, ": ", what);
  }
}

void SimAuditor::Submitted(const core::SequenceRequest& request) {
  Client& client = clients_[request.id];
  client = {.request = request, .tokens = request.prompt};
  client.tokens.insert(client.tokens.end(), request.generated.begin(), request.generated.end());
  if (request.beams.width > 0) {
    SearchedBeams(request);
  }
}

// Runs the search over the model, without a scheduler.
void SimAuditor::SearchedBeams(const core::SequenceRequest& request) {
  core::BeamSearch search(request.beams,
                          {.prompt_tokens = static_cast<uint32_t>(request.prompt.size()),
                           .tokens_max = request.tokens_max,
                           .tokens_min = request.tokens_min,
                           .end_tokens = request.end_tokens});
  const auto candidates =
      static_cast<int32_t>(core::BeamCandidates(request.beams, request.end_tokens.size()));
  while (!search.beams().empty()) {
    std::vector<std::vector<plan::TokenLogprob>> rows;
    for (const core::BeamSearch::Beam& beam : search.beams()) {
      FakeModel model(request.sampling.seed, window_);
      for (const TokenId token : request.prompt) {
        model.See(token);
      }
      for (const core::BeamSearch::BeamToken& token : beam.tokens) {
        model.See(token.token);
      }
      rows.push_back(model.Top(candidates));
    }
    search.Advance(rows);
  }
  for (size_t i = 0; i < request.answers.size(); ++i) {
    Client& client = clients_[request.answers[i]];
    client = {.request = request, .expected = request.prompt, .tokens = request.prompt};
    for (const core::BeamSearch::BeamToken& token : search.answers().at(i).tokens) {
      client.expected.push_back(token.token);
    }
  }
}

void SimAuditor::Cancelled(plan::SequenceId sequence) {
  Client& client = clients_[sequence];
  client.ended = true;
  client.cancelled = true;
}

plan::SequenceId SimAuditor::RequestOf(plan::SequenceId sequence) const {
  const auto works_for = works_for_.find(sequence);
  return works_for == works_for_.end() ? sequence : works_for->second;
}

bool SimAuditor::IsCancelled(plan::SequenceId sequence) const {
  const auto found = clients_.find(RequestOf(sequence));
  if (found == clients_.end() || !found->second.cancelled) {
    return false;
  }
  // A beam search goes on while anybody waits for one of its answers.
  const std::vector<plan::SequenceId>& answers = found->second.request.answers;
  return std::all_of(answers.begin(), answers.end(),
                     [&](plan::SequenceId answer) { return clients_.at(answer).cancelled; });
}

void SimAuditor::Planned(const plan::StepPlan& plan, const core::Scheduler& scheduler) {
  const auto check = [&](plan::SequenceId sequence, absl::string_view part) {
    if (IsCancelled(sequence)) {
      Fail(sequence, absl::StrCat(part, " was planned after it was cancelled"));
    }
  };
  for (const plan::SequenceJoin& join : plan.joins) {
    works_for_.emplace(join.id, scheduler.AnswerOf(join.id));
    check(join.id, "a join");
  }
  for (const plan::DecodeRow& row : plan.rows) {
    check(row.sequence, "a row");
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    check(chunk.sequence, "a chunk");
  }
}

// A fork has found what its parent found. Who comes with tokens is told of none.
void SimAuditor::Joined(const plan::SequenceJoin& join, uint32_t cached_tokens) {
  std::optional<uint32_t>& cached = clients_.at(join.id).cached_tokens;
  if (!clients_.at(join.id).request.generated.empty()) {
    cached = 0;
  } else if (join.parent != 0) {
    cached = clients_.at(join.parent).cached_tokens;
  } else if (!cached.has_value()) {
    cached = cached_tokens;
  }
}

void SimAuditor::ReadOfOthers(plan::SequenceId reader, plan::SequenceId maker) {
  const auto salt_of = [this](plan::SequenceId sequence) -> const std::string& {
    return clients_.at(RequestOf(sequence)).request.cache_salt;
  };
  if (salt_of(reader) != salt_of(maker)) {
    Fail(reader, absl::StrCat("reads K and V of sequence ", maker,
                              ", which works for a request with another salt"));
  }
}

void SimAuditor::NodesLost(const std::vector<std::string>& names, uint64_t slots_of_longest) {
  slots_of_longest_ = slots_of_longest;
  just_lost_ = true;
  for (auto& [id, client] : clients_) {
    if (!names.empty()) {
      client.losses.push_back(absl::StrJoin(names, " and "));
    }
  }
}

void SimAuditor::Saw(const core::Events& events) {
  for (const core::TokenEvent& event : events.tokens) {
    SawToken(event);
  }
  for (const core::ScoreEvent& event : events.scores) {
    SawScore(event);
  }
  for (const core::FinishEvent& event : events.finished) {
    SawEnd(event);
  }
  for (const plan::SequenceId sequence : events.preempted) {
    if (clients_.at(sequence).ended) {
      Fail(sequence, "preempted after its end");
    }
  }
  just_lost_ = false;
}

void SimAuditor::SawToken(const core::TokenEvent& event) {
  Client& client = clients_[event.sequence];
  const size_t prompt = client.request.prompt.size();
  if (client.ended || client.request.score || client.request.id == 0) {
    return Fail(event.sequence, "a token that nobody waits for");
  }
  if (prompt + event.index != client.tokens.size() ||
      event.token.position != client.tokens.size()) {
    return Fail(event.sequence, absl::StrCat("token index ", event.index, " instead of ",
                                             client.tokens.size() - prompt));
  }
  if (event.cached_tokens != client.cached_tokens.value_or(event.cached_tokens)) {
    return Fail(event.sequence,
                absl::StrCat("is told of ", event.cached_tokens,
                             " cached tokens, and joined behind ", *client.cached_tokens));
  }
  FakeModel model(client.request.sampling.seed, window_);
  for (const TokenId token : client.tokens) {
    model.See(token);
  }
  const size_t shown = client.tokens.size();
  const TokenId right = client.expected.empty()          ? model.Next()
                        : shown < client.expected.size() ? client.expected[shown]
                                                         : -1;
  if (event.token.token != right) {
    return Fail(event.sequence, absl::StrCat("wrong token at index ", event.index));
  }
  client.tokens.push_back(event.token.token);
  client.losses.clear();
}

void SimAuditor::SawScore(const core::ScoreEvent& event) {
  Client& client = clients_[event.sequence];
  if (client.ended || client.scored || !client.request.score) {
    return Fail(event.sequence, "a score that nobody waits for");
  }
  client.scored = true;
  FakeModel model(client.request.sampling.seed, window_);
  model.See(client.tokens[0]);
  std::vector<float> expected;
  for (size_t i = 1; i < client.tokens.size(); ++i) {
    expected.push_back(model.Logprob(client.tokens[i]));
    model.See(client.tokens[i]);
  }
  if (event.logprobs != expected) {
    Fail(event.sequence, "a wrong score");
  }
}

// A loss ends only what no node left can hold, and what has seen too many losses without a token.
// (Whoever waited in some of them has seen more than the scheduler counts.)
void SimAuditor::SawError(const Client& client, const core::FinishEvent& event) {
  const core::SequenceRequest& request = client.request;
  const uint64_t slots = request.score ? request.prompt.size() : request.tokens_max - 1;
  // What hides behind a window takes none; the block that it begins in does.
  const uint64_t at_once = window_ > 0 ? std::min<uint64_t>(slots, window_ + more_) : slots;
  const bool too_long = at_once > slots_of_longest_;
  const bool too_many = client.losses.size() >= core::LossHistory::kLossesMax &&
                        absl::StrContains(event.status.message(), client.losses.back());
  if (!just_lost_ || !absl::IsUnavailable(event.status) || !(too_long || too_many)) {
    Fail(event.sequence, absl::StrCat("an error for no reason: ", event.status.message()));
  }
}

void SimAuditor::SawEnd(const core::FinishEvent& event) {
  Client& client = clients_[event.sequence];
  if (client.ended) {
    return Fail(event.sequence, "ended twice");
  }
  client.ended = true;
  if (event.reason == plan::FinishReason::kError) {
    return SawError(client, event);
  }
  const core::SequenceRequest& request = client.request;
  if (request.score) {
    return client.scored ? void() : Fail(event.sequence, "ended without a score");
  }
  if (client.tokens.size() == request.prompt.size() + request.generated.size()) {
    return Fail(event.sequence, "ended without a token");
  }
  if (client.tokens.size() < client.expected.size()) {
    return Fail(event.sequence, "ended before the end of its answer");
  }
  const bool stop = client.tokens.size() >= request.tokens_min &&
                    std::find(request.end_tokens.begin(), request.end_tokens.end(),
                              client.tokens.back()) != request.end_tokens.end();
  if (stop != (event.reason == plan::FinishReason::kStop) ||
      (!stop && client.tokens.size() != request.tokens_max)) {
    Fail(event.sequence, "ended too early, too late, or for the wrong reason");
  }
}

void SimAuditor::AtEnd() {
  for (const auto& [id, client] : clients_) {
    if (!client.ended) {
      Fail(id, absl::StrCat("never ended; saw ",
                            client.tokens.size() - client.request.prompt.size(), " tokens"));
    }
  }
}

}  // namespace lamina::sim
