// SPDX-License-Identifier: Apache-2.0
//
// CompletionHandler: answers one completion request: a generation at the backend for each prompt,
// whose chunks it turns into events, or gathers into one answer.
//
// The headers of a stream are sent with its first event, so that a request which the coordinator
// refuses gets an HTTP status that says so. After that an error is an event.
//
// Threading: the gateway's. A large answer in one piece, or large prompts that are echoed, are
//            written by a SideWork.
// Limits:    while the client has more than kPendingBytesMax to take, no generation is asked for
//            more. A chunk in flight of each generation comes on top.

#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gateway/apis/answer_format.h"
#include "gateway/backend.h"
#include "gateway/choice_parts.h"
#include "gateway/completion_format.h"
#include "gateway/completion_request.h"
#include "gateway/gateway_metrics.h"
#include "gateway/response_writer.h"
#include "gateway/side_work.h"

namespace lamina::gateway {

class CompletionHandler final : public RequestHandler,
                                public std::enable_shared_from_this<CompletionHandler> {
 public:
  static constexpr size_t kPendingBytesMax = 64 << 10;

  // How it ended, for the log. Called once, before the last bytes are written.
  struct Report {
    absl::Status status;
    TokenCounts tokens;
  };
  using DoneFunction = std::function<void(const Report& report)>;

  // What it uses; all outlives it.
  struct Services {
    Backend& backend;
    SideWork& side_work;
    GatewayMetrics& metrics;
  };

  // `writer` must live until the answer has ended or OnGone(). `format`: of another API than
  // OpenAI's completions, for one choice of a chat; or null.
  CompletionHandler(CompletionRequest request, CompletionHead head,
                    std::shared_ptr<AnswerFormat> format, const Services& services,
                    ResponseWriter& writer, DoneFunction done);

  void Start();

  void OnDrained() override;
  void OnSilence() override;
  void OnGone() override;

 private:
  struct Choice {
    ChoiceParts parts;
    std::vector<ShownToken> tokens;
    std::vector<TokenId> ids;
    client::FinishReason finish = client::FinishReason::kNotFinished;
    std::string stop;  // The stop string that ended it.
    uint32_t completion_tokens = 0;
    uint32_t characters = 0;  // Characters of the tokens shown so far.
    bool begun = false;       // Streaming: its first event is out.
    TokenTimes times;         // Streaming.
  };
  struct Prompt {
    CancelFunction cancel_score;  // Null when none is under way.
    std::shared_ptr<Generation> generation;
    bool paused = false;
    bool done = false;
    uint32_t tokens = 0;
    uint32_t cached = 0;                  // Tokens of these whose K and V were there already.
    uint32_t left_out = 0;                // Generated for choices that best_of does not show.
    std::vector<TokenId> ids;             // With return_token_ids.
    std::string echo;                     // Text of the prompt.
    std::vector<ShownToken> echo_tokens;  // With log-probabilities only.
    int64_t echo_offset = 0;              // Where they begin in the text, as TextMembers() has it.
    std::string echo_members;             // Streaming: what the event that shows it has.
    std::vector<Choice> choices;
  };

  void Prepare();
  void TokenizePrompt(size_t index);
  void PrepareTokens(size_t index, const std::vector<TokenId>& tokens);
  void ScorePrompt(size_t index, const client::Prompt& prompt);
  void TakeScore(size_t index, const client::ScoreResult& score);
  void Prepared(const absl::Status& status);
  void WriteEchoes();
  void Generate();
  void FinishWithoutTokens();
  std::vector<ShownToken> PromptTokens(const Prompt& prompt, uint32_t alternatives) const;

  void OnChunk(size_t index, const client::Chunk& chunk);
  void OnDone(size_t index, const absl::Status& status);
  void Stream(size_t index, const client::Chunk& chunk);
  void Begin(size_t index, uint32_t choice);
  void Gather(Choice& choice, const client::Chunk& chunk) const;
  void SendParts(uint32_t index, Choice& choice, const client::Chunk& chunk,
                 const std::vector<ShownToken>& tokens);
  void SendInOtherFormat(Choice& choice, const client::Chunk& chunk);
  std::vector<ShownToken> Shown(const client::Chunk& chunk) const;

  HttpHeaders LossyHeader() const;
  void Send(const std::string& event);
  void Fail(const absl::Status& error);
  void Complete();
  void CompleteWhole();
  void End(const absl::Status& status);
  void CancelAll();

  std::vector<FinishedChoice> FinishedChoices();
  FinishedChoice Finished(Prompt& prompt, Choice& choice, uint32_t index) const;
  uint32_t IndexOf(size_t prompt, uint32_t choice) const {
    return static_cast<uint32_t>(prompt) * request_.choices + choice;
  }
  CompletionFormat::Usage usage_of_events() const;
  TokenCounts Counts() const;

  const CompletionRequest request_;
  const CompletionHead head_;
  const CompletionFormat format_;
  const std::shared_ptr<AnswerFormat> other_format_;
  Backend& backend_;
  SideWork& side_work_;
  ResponseWriter* writer_;  // Null once the answer has ended or the client is gone.
  GatewayMetrics& metrics_;
  const std::chrono::steady_clock::time_point began_;
  DoneFunction done_;
  std::vector<Prompt> prompts_;
  size_t preparing_ = 0;
  size_t unfinished_ = 0;
  bool streaming_ = false;  // The headers are out.
};

}  // namespace lamina::gateway
