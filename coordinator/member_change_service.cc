// SPDX-License-Identifier: Apache-2.0
#include "coordinator/member_change_service.h"

#include <grpcpp/alarm.h>

#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/foreign_text.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "coordinator/generate_call_service.h"

namespace lamina::coordinator {
namespace {

constexpr size_t kNameBytesShown = 100;

// Ends a call from outside for as long as it lives.
class Canceller {
 public:
  explicit Canceller(grpc::CallbackServerContext& context) : context_(&context) {}
  void Cancel() {
    const std::lock_guard lock(mutex_);
    if (context_ != nullptr) {
      context_->TryCancel();
    }
  }
  void Detach() {
    const std::lock_guard lock(mutex_);
    context_ = nullptr;
  }

 private:
  std::mutex mutex_;
  grpc::CallbackServerContext* context_;
};

class MemberChangeCall final : public MemberChangeReactor {
 public:
  MemberChangeCall(Engine& engine, std::unique_ptr<JoinGate::UnprovedStream> unproved,
                   grpc::CallbackServerContext& context)
      : engine_(engine),
        context_(context),
        unproved_(std::move(unproved)),
        canceller_(std::make_shared<Canceller>(context)) {
    if (unproved_ == nullptr) {
      Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
              absl::StrCat("there are ", JoinGate::kUnprovedMax,
                           " streams that have not proved themselves; try again")});
      return;
    }
    proof_due_.Set(
        std::chrono::system_clock::now() + std::chrono::nanoseconds(JoinGate::kProofWait),
        [canceller = canceller_](bool expired) {
          if (expired) {
            canceller->Cancel();
          }
        });
    *answer_.mutable_challenge() = unproved_->challenge();
    StartWrite(&answer_);
  }

 private:
  void OnWriteDone(bool ok) override {
    if (!ok) {
      return Finish(grpc::Status::CANCELLED);
    }
    // Only the challenge gets here: the answer is written and finished in one.
    StartRead(&change_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      return Finish(grpc::Status::CANCELLED);
    }
    const absl::Status checked = Check();
    proof_due_.Cancel();
    unproved_.reset();
    if (!checked.ok()) {
      LogWarning("refused a change of members: ", checked.message());
      return Finish(ToGrpc(checked));
    }
    // The call lives until it is finished, which is done here alone from now on.
    const auto done = [this](const absl::StatusOr<std::string>& what) { Answer(what); };
    if (change_.kind() == v1::MEMBER_CHANGE_KIND_ADD) {
      engine_.AddNode(change_.node(), done);
    } else {
      engine_.DrainNode(change_.node(), done);
    }
  }

  void OnDone() override {
    canceller_->Detach();
    delete this;
  }

  absl::Status Check() const {
    LAMINA_RETURN_IF_ERROR(unproved_->CheckChange(change_, context_));
    return change_.kind() == v1::MEMBER_CHANGE_KIND_ADD ||
                   change_.kind() == v1::MEMBER_CHANGE_KIND_DRAIN
               ? absl::OkStatus()
               : absl::InvalidArgumentError("a change of members that this version does not know");
  }

  void Answer(const absl::StatusOr<std::string>& what) {
    if (!what.ok()) {
      LogWarning("did not change members for ", ForeignText(change_.node(), kNameBytesShown), ": ",
                 what.status().message());
      return Finish(ToGrpc(what.status()));
    }
    answer_.set_done(*what);
    StartWriteAndFinish(&answer_, grpc::WriteOptions(), grpc::Status::OK);
  }

  Engine& engine_;
  grpc::CallbackServerContext& context_;
  std::unique_ptr<JoinGate::UnprovedStream> unproved_;  // Null once the proof has come.
  const std::shared_ptr<Canceller> canceller_;
  grpc::Alarm proof_due_;
  v1::MemberAnswer answer_;
  v1::MemberChange change_;
};

}  // namespace

MemberChangeReactor* AnswerMemberChange(Engine& engine,
                                        std::unique_ptr<JoinGate::UnprovedStream> unproved,
                                        grpc::CallbackServerContext& context) {
  return new MemberChangeCall(engine, std::move(unproved), context);
}

}  // namespace lamina::coordinator
