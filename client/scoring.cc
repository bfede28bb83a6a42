// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "client/convert_internal.h"
#include "client/resumption.h"
#include "client/scoring_internal.h"
#include "common/clock.h"
#include "common/trace_context.h"
#include "grpcpp/grpcpp.h"

namespace lamina::client::internal {
namespace {

// What one call has brought.
struct ScoreCall {
  StreamEnd end;
  bool went_on = false;  // It had begun, or was begun again, and came further.
  std::optional<ScoreResult> result;
};

// One that is counted as waiting from Begin() to End(), or its own end.
class Wait {
 public:
  explicit Wait(WaitingAnswers& waiting) : waiting_(waiting) {}
  ~Wait() { End(); }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  void Begin() {
    if (!std::exchange(waits_, true)) {
      waiting_.Begin();
    }
  }
  void End() {
    if (std::exchange(waits_, false)) {
      waiting_.End();
    }
  }

 private:
  WaitingAnswers& waiting_;
  bool waits_ = false;
};

// Reads a stream to its end.
ScoreCall ReadScore(grpc::ClientContext& context, grpc::ClientReader<v1::ScoreUpdate>& updates,
                    Wait& wait, const Client::ScoreProgress& on_progress) {
  ScoreCall call;
  updates.WaitForInitialMetadata();
  const auto& metadata = context.GetServerInitialMetadata();
  if (const auto id = metadata.find(kJournaledHeader); id != metadata.end()) {
    call.end.journaled_id = std::string(id->second.data(), id->second.size());
  }
  v1::ScoreUpdate update;
  while (updates.Read(&update)) {
    wait.End();
    call.went_on = true;
    if (update.has_result()) {
      call.result = FromProto(update.result());
    } else if (on_progress != nullptr) {
      on_progress(update.tokens_done(), update.tokens());
    }
  }
  call.end.status = FromGrpc(updates.Finish());
  // A coordinator that ends a stream says which request it was of.
  call.end.broke_off = absl::IsUnavailable(call.end.status) &&
                       context.GetServerTrailingMetadata().count(kRequestIdHeader) == 0;
  return call;
}

}  // namespace

absl::StatusOr<ScoreResult> RunScore(v1::Inference::Stub& stub, WaitingAnswers& waiting,
                                     const v1::ScoreRequest& request,
                                     const Client::ScoreProgress& on_progress) {
  Resumption resumption(RealClock(), /*choices=*/1);
  Wait wait(waiting);
  for (;;) {
    grpc::ClientContext context;
    const v1::AttachRequest place = ToProto(resumption.place());
    const auto updates = resumption.waits() ? stub.AttachScore(&context, place)
                                            : stub.ScoreStream(&context, request);
    ScoreCall call = ReadScore(context, *updates, wait, on_progress);
    if (call.result.has_value()) {
      return *std::move(call.result);
    }
    if (call.went_on) {
      resumption.TakeProgress();
    }
    const std::optional<absl::Status> ended = resumption.End(call.end);
    if (ended.has_value()) {
      return ended->ok() ? absl::InternalError("the server ended a score without its result")
                         : *ended;
    }
    wait.Begin();
    std::this_thread::sleep_for(std::chrono::nanoseconds(resumption.Pause()));
  }
}

}  // namespace lamina::client::internal
