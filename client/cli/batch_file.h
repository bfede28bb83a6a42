// SPDX-License-Identifier: Apache-2.0
//
// Lines of OpenAI's batch files: requests to what the client sends, answers to result lines.
//
// Threading: free functions without state.

#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/command.h"
#include "client/client.h"

namespace lamina::cli {

struct BatchRequest {
  std::string custom_id;
  std::string model;  // Empty: any.
  bool chat = false;  // /v1/chat/completions, else /v1/completions.
  // Why it cannot be sent; the result line then says so. OK for one that can.
  absl::Status status;
  client::GenerateOptions options;
};

struct BatchFile {
  std::vector<BatchRequest> requests;
  // Name the lines that can have no result: no JSON object, or without a custom_id of their own.
  std::vector<std::string> problems;
};

// The requests of a file, one a line; empty lines are skipped. What is wrong with one request's
// body is its status.
BatchFile ParseBatch(absl::string_view text);

// Has requests for another model than the one of these names fail.
void CheckModels(const std::vector<std::string>& names, std::vector<BatchRequest>& requests);

// Has chats fail whose answers batches would spoil, since they are not read for thoughts: all of a
// model that answers in channels, and those of a form where the model's thought would have it.
void CheckAnswers(const client::ModelInfo& model, std::vector<BatchRequest>& requests);

// What a result file already has.
struct BatchDone {
  std::set<std::string> custom_ids;
  uint64_t bytes = 0;  // Bytes of its whole lines; what is behind is of a run that was cut off.
};
// Keeps one line at a time.
// Errors: kInvalidArgument  a whole line that is no result, or what is behind them is not the
//                           beginning of one; names the line.
//         kDataLoss         it cannot be read.
absl::StatusOr<BatchDone> ReadBatchResults(std::istream& in);

// One choice as it came together.
struct BatchChoice {
  std::string text;
  client::FinishReason finish_reason = client::FinishReason::kNotFinished;
  client::Usage usage;
};

// The result line of a request that was answered.
Json BatchResult(const BatchRequest& request, const std::string& model,
                 const std::string& request_id, const std::map<uint32_t, BatchChoice>& choices,
                 int64_t created);
// The result line of a request that can never be answered.
Json BatchError(const BatchRequest& request, const absl::Status& status);

// Whether trying again later may help: such a request gets no result line.
bool IsTransient(const absl::Status& status);

}  // namespace lamina::cli
