// SPDX-License-Identifier: Apache-2.0
//
// Journals as the coordinator before may have left them.

#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/journal_record.h"
#include "lamina/v1/inference.pb.h"
#include "plan/step_plan.h"

namespace lamina::coordinator {

// A journal with a request for three tokens that has them all, and whose client does not.
inline std::string JournalOfWholeAnswer() {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(7);
  message.set_max_tokens(3);
  message.mutable_sampling()->set_seed(5);
  return absl::StrCat(
      JournalHead("model"),
      Encode(AcceptedRecord{.number = 1, .id = "mine", .message = message.SerializeAsString()}),
      Encode(
          CommittedRecord{.number = 1, .tokens = {{.token = 10}, {.token = 11}, {.token = 12}}}));
}

// A journal with a whole answer of two choices, the second of which is less likely.
inline std::string JournalOfTwoChoices(uint32_t best_of = 0) {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(7);
  message.set_max_tokens(2);
  message.set_n(best_of == 0 ? 2 : 1);
  if (best_of > 0) {
    message.set_best_of(best_of);
  }
  message.mutable_sampling()->set_seed(5);
  const auto token = [](TokenId id, float logprob) {
    return plan::SampledToken{.token = id, .logprob = logprob};
  };
  return absl::StrCat(
      JournalHead("model"),
      Encode(AcceptedRecord{.number = 1, .id = "mine", .message = message.SerializeAsString()}),
      Encode(CommittedRecord{.number = 1, .tokens = {token(10, -1.0f), token(11, -1.0f)}}),
      Encode(CommittedRecord{.number = 1, .choice = 1, .tokens = {token(20, -2.0f)}}),
      Encode(CommittedRecord{.number = 1, .choice = 1, .index = 1, .tokens = {token(21, -2.0f)}}));
}

// A journal with requests that have no tokens yet; the first of them has the last id.
inline std::string JournalOfRequests(uint64_t count) {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(7);
  message.set_max_tokens(20);
  message.mutable_sampling()->set_seed(5);
  std::string bytes = JournalHead("model");
  for (uint64_t number = 1; number <= count; ++number) {
    bytes += Encode(AcceptedRecord{.number = number,
                                   .id = absl::StrCat("id", 100 - number),
                                   .message = message.SerializeAsString()});
  }
  return bytes;
}

// A journal with a score that was accepted.
inline std::string JournalOfScore() {
  v1::ScoreRequest message;
  message.mutable_tokens()->add_ids(7);
  message.mutable_tokens()->add_ids(8);
  return absl::StrCat(
      JournalHead("model"),
      Encode(AcceptedRecord{
          .number = 1, .id = "mine", .message = message.SerializeAsString(), .score = true}));
}

// A journal with a beam search that was accepted.
inline std::string JournalOfSearch() {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(7);
  message.set_max_tokens(3);
  message.set_n(2);
  message.mutable_beam_search()->set_width(2);
  message.mutable_sampling()->set_seed(5);
  return absl::StrCat(
      JournalHead("model"),
      Encode(AcceptedRecord{.number = 1, .id = "mine", .message = message.SerializeAsString()}));
}

}  // namespace lamina::coordinator
