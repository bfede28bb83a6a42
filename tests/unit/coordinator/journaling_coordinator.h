// SPDX-License-Identifier: Apache-2.0
//
// A coordinator that journals requests in memory, and clients that attach to these again.

#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/fnv1a.h"
#include "common/trace_context.h"
#include "coordinator/inference_service.h"
#include "coordinator/journaled_requests_service.h"
#include "tests/support/id_tokenizer.h"
#include "tests/unit/coordinator/idle_node.h"
#include "tests/unit/coordinator/small_limits.h"

namespace lamina::coordinator {

// The journal's file, in memory.
class MemoryFile {
 public:
  MemoryFile() = default;
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {}

  std::string Copy() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  void Write(absl::string_view bytes, bool behind) {
    const std::lock_guard lock(mutex_);
    bytes_ = absl::StrCat(behind ? bytes_ : "", bytes);
  }

 private:
  mutable std::mutex mutex_;
  std::string bytes_;
};

class MemoryJournalDisk final : public JournalDisk {
 public:
  explicit MemoryJournalDisk(MemoryFile& file) : file_(file) {}

  absl::StatusOr<std::string> Read() override { return file_.Copy(); }
  absl::Status Replace(absl::string_view bytes) override {
    file_.Write(bytes, /*behind=*/false);
    return absl::OkStatus();
  }
  absl::Status Append(absl::string_view bytes) override {
    file_.Write(bytes, /*behind=*/true);
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  void Remove() override {}

 private:
  MemoryFile& file_;
};

inline std::vector<UnfinishedRequest> UnfinishedIn(const MemoryFile& file) {
  return ReadJournal(file.Copy()).unfinished;
}

inline void AwaitNoneIn(const MemoryFile& file) {
  while (!UnfinishedIn(file).empty()) {
    std::this_thread::yield();
  }
}

// A coordinator from its start to its end, whose node never does a step.
class Coordinator {
 public:
  // `given`: so many requests that wait are given to the engine at once. `clock` is that of the
  // journaled requests.
  explicit Coordinator(MemoryFile& file, Nanos keep = Seconds(60),
                       uint32_t given = SmallLimits().waiting_max, const Clock& clock = RealClock())
      : journal_(*Journal::Open(std::make_unique<MemoryJournalDisk>(file),
                                {.identity = "model", .gather = 0})),
        journaled_(*journal_, engine_, tokenizer_, clock, {.keep = keep, .waiting_max = given}) {
    service_.UseJournal(journaled_);
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::Inference::NewStub(server_->InProcessChannel({}));
  }
  ~Coordinator() { server_->Shutdown(); }
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  void Serve() {
    node_ = IdleNode::Join(engine_, options_.nodes[0]);
    Await([](const EngineStatus& status) { return status.state == "serving"; });
  }
  void LoseNode() { engine_.NodeLeft(node_->source()); }
  // Until the engine has a request.
  void AwaitRequest() {
    Await([](const EngineStatus& status) {
      return status.scheduler.running + status.scheduler.waiting > 0;
    });
  }
  template <typename Condition>
  void Await(Condition condition) {
    while (!condition(engine_.GetStatus())) {
      std::this_thread::yield();
    }
  }
  v1::Inference::Stub& stub() { return *stub_; }
  JournaledRequests& journaled() { return journaled_; }
  const Engine& engine() const { return engine_; }

 private:
  const test_support::IdTokenizer tokenizer_{kIdleVocabulary};
  const model::ModelConfig config_{.vocabulary = kIdleVocabulary};
  const std::unique_ptr<Journal> journal_;
  const EngineOptions options_ = OneIdleNode();
  std::shared_ptr<IdleNode> node_;
  Engine engine_{options_, tokenizer_, RealClock()};
  JournaledRequests journaled_;
  InferenceService service_{engine_, tokenizer_, config_, 64};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

struct Answer {
  grpc::Status status;
  std::vector<TokenId> tokens;  // Those of choice 0.
  std::vector<TokenId> further;
  std::string text;
  std::vector<uint32_t> ends;  // Choices, as they end.
  v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED;
  double ttft_ms = 0;
  std::string journaled;
};

inline Answer Attach(Coordinator& coordinator, const v1::AttachRequest& request) {
  grpc::ClientContext context;
  const auto stream = coordinator.stub().Attach(&context, request);
  Answer answer;
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    for (const v1::TokenOutput& token : response.tokens()) {
      (response.index() == 0 ? answer.tokens : answer.further).push_back(token.token());
    }
    answer.text += response.text();
    if (response.has_usage()) {
      answer.ends.push_back(response.index());
    }
    answer.finish = response.finish_reason();
    answer.ttft_ms = response.usage().ttft_ms();
  }
  answer.status = stream->Finish();
  const auto& metadata = context.GetServerInitialMetadata();
  if (const auto id = metadata.find(kJournaledHeader); id != metadata.end()) {
    answer.journaled = std::string(id->second.data(), id->second.size());
  }
  return answer;
}

inline uint64_t DigestOf(const std::vector<TokenId>& tokens) {
  Fnv1a digest;
  for (const TokenId token : tokens) {
    digest.AddWord(static_cast<uint32_t>(token));
  }
  return digest.value();
}

inline v1::AttachRequest From(uint32_t index, const std::vector<TokenId>& tokens) {
  v1::AttachRequest request;
  request.set_request_id("mine");
  request.set_index(index);
  request.set_digest(DigestOf(tokens));
  return request;
}

// What the client has of choice 1.
inline v1::AttachRequest AndFurther(v1::AttachRequest request, const std::vector<TokenId>& tokens) {
  v1::ReceivedChoice& further = *request.add_further();
  further.set_index(static_cast<uint32_t>(tokens.size()));
  further.set_digest(DigestOf(tokens));
  return request;
}

}  // namespace lamina::coordinator
