// SPDX-License-Identifier: Apache-2.0
//
// FakeBackend and RecordingWriter: both ends of a handler, driven by the test.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gateway/backend.h"
#include "gateway/response_writer.h"

namespace lamina::gateway {

class FakeGeneration : public Generation {
 public:
  void Next() override { ++asked; }
  void Cancel() override { cancelled = true; }

  // Gives what was asked for.
  void Send(const client::Chunk& chunk) {
    --asked;
    on_chunk(chunk);
  }
  void Finish(const absl::Status& status) {
    --asked;
    on_done(status);
  }

  client::GenerateOptions options;
  client::ChunkFunction on_chunk;
  client::DoneFunction on_done;
  int asked = 0;
  bool cancelled = false;
};

// Keeps generations for the test to drive; answers everything else at once.
class FakeBackend : public Backend {
 public:
  std::shared_ptr<Generation> Generate(const client::GenerateOptions& options,
                                       client::ChunkFunction on_chunk,
                                       client::DoneFunction on_done) override {
    auto generation = std::make_shared<FakeGeneration>();
    generation->options = options;
    generation->on_chunk = std::move(on_chunk);
    generation->on_done = std::move(on_done);
    generations.push_back(generation);
    return generation;
  }
  CancelFunction Score(const client::Prompt& prompt, const client::ScoreOptions& options,
                       AnswerFunction<client::ScoreResult> done) override {
    scored_prompt = prompt;
    scored_options = options;
    if (answers_scores) {
      done(score);
    }
    return [this] { ++scores_cancelled; };
  }
  void Tokenize(const client::Prompt&, const client::ChatOptions& chat, bool,
                AnswerFunction<client::TokenizeResult> done) override {
    tokenized_chat = chat;
    done(tokens);
  }
  void Detokenize(const std::vector<TokenId>& ids, AnswerFunction<std::string> done) override {
    detokenized = ids;
    done(std::string("ab"));
  }
  void ListModels(AnswerFunction<std::vector<client::ModelInfo>> done) override { done(models); }
  void GetStatus(AnswerFunction<client::ClusterStatus> done) override { done(status); }
  void GetRequestMetrics(AnswerFunction<std::string> done) override { done(request_metrics); }

  std::vector<std::shared_ptr<FakeGeneration>> generations;
  client::TokenizeResult tokens = {.tokens = {1, 2}, .pieces = {"a", "b"}};
  absl::StatusOr<client::ScoreResult> score = client::ScoreResult();
  client::ChatOptions tokenized_chat;
  bool answers_scores = true;
  int scores_cancelled = 0;
  std::optional<client::Prompt> scored_prompt;
  client::ScoreOptions scored_options;
  std::vector<TokenId> detokenized;
  absl::StatusOr<std::vector<client::ModelInfo>> models =
      std::vector<client::ModelInfo>{{.id = "m", .sequence_tokens_max = 100}};
  absl::StatusOr<std::string> request_metrics = std::string();
  absl::StatusOr<client::ClusterStatus> status = client::ClusterStatus{.state = "serving"};
};

class RecordingWriter : public ResponseWriter {
 public:
  void Respond(HttpResponse r) override { response = std::move(r); }
  void StartStream(const HttpHeaders& headers) override {
    started = true;
    stream_headers = headers;
  }
  void Write(absl::string_view bytes) override { stream.append(bytes.data(), bytes.size()); }
  void EndStream() override { ended = true; }
  size_t pending_bytes() const override { return pending; }

  std::optional<HttpResponse> response;
  bool started = false;
  HttpHeaders stream_headers;
  std::string stream;
  bool ended = false;
  size_t pending = 0;
};

}  // namespace lamina::gateway
