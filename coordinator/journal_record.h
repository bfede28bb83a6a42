// SPDX-License-Identifier: Apache-2.0
//
// Records of the coordinator's journal as bytes, and what a file of them says. The format is in
// docs/formats/journal.md. A request's message is a string of bytes here.
//
// Determinism: same arguments, same bytes.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/request.h"
#include "plan/step_plan.h"

namespace lamina::coordinator {

struct AcceptedRecord {
  uint64_t number = 0;  // By which the other records name the request; never 0.
  std::string id;
  std::string followed_id;
  // lamina.v1.GenerateRequest: the prompt as tokens, the seed set; or lamina.v1.ScoreRequest with
  // the prompt as tokens.
  std::string message;
  bool score = false;  // Which of them.
};

struct CommittedRecord {
  uint64_t number = 0;
  uint32_t choice = 0;
  uint32_t index = 0;  // The place of the first token in the choice.
  // Their sequence and position are not told.
  std::vector<plan::SampledToken> tokens;
  plan::FinishReason finish = plan::FinishReason::kNone;  // The choice ends behind them.
};

// How a file begins. The identity names what answers depend on besides requests.
std::string JournalHead(absl::string_view identity);

std::string Encode(const AcceptedRecord& record);
std::string Encode(const CommittedRecord& record);
std::string EncodeEnded(uint64_t number);

// A request whose end the file does not tell.
struct UnfinishedRequest {
  AcceptedRecord accepted;
  std::vector<GeneratedChoice> choices;  // Up to the last one that has anything.
};

struct JournalContents {
  std::string identity;
  std::vector<UnfinishedRequest> unfinished;  // In the order of their numbers.
  uint64_t number_max = 0;
  // Bytes at the end from the first record on that is not whole, or not as it was written.
  uint64_t bytes_cut = 0;
};

// Empty: nothing is unfinished.
JournalContents ReadJournal(absl::string_view bytes);

}  // namespace lamina::coordinator
