// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node_stream_service.h"

#include <google/protobuf/arena.h>
#include <grpcpp/alarm.h>
#include <grpcpp/support/slice.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/foreign_text.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/blame.h"
#include "control/counters_codec_service.h"
#include "control/epoch_codec_service.h"
#include "control/plan_codec_service.h"
#include "control/reported_figures.h"
#include "control/transport_fault.h"
#include "coordinator/hello_codec_service.h"
#include "lamina/v1/cluster.pb.h"

namespace lamina::coordinator {
namespace {

// The most bytes of a name, and of what a node says of itself.
constexpr size_t kTextBytesMax = 1000;

std::shared_ptr<const std::string> Encode(const v1::CoordinatorMessage& message) {
  return std::make_shared<const std::string>(message.SerializeAsString());
}

// The bytes themselves, which live as long as the buffer.
grpc::ByteBuffer BufferOf(std::shared_ptr<const std::string> bytes) {
  using Held = std::shared_ptr<const std::string>;
  void* const data = const_cast<char*>(bytes->data());
  const size_t size = bytes->size();
  const grpc::Slice slice(
      data, size, [](void* held) { delete static_cast<Held*>(held); }, new Held(std::move(bytes)));
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer PingOfNow() {
  v1::CoordinatorMessage message;
  message.mutable_ping()->set_sent(RealClock().Now());
  return BufferOf(Encode(message));
}

// False for bytes that are no message.
bool Decode(const grpc::ByteBuffer& buffer, v1::NodeMessage& message) {
  grpc::Slice slice;
  return buffer.DumpToSingleSlice(&slice).ok() && slice.size() <= INT32_MAX &&
         message.ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
}

// One attached node: the queue of messages to it. The engine and the reactor share it.
class NodeStream final : public NodePort {
 public:
  // `context` lives until Detach().
  explicit NodeStream(grpc::CallbackServerContext* context)
      : peer_(context->peer()), context_(context) {}

  class Reactor final : public NodeReactor {
   public:
    Reactor(std::shared_ptr<NodeStream> stream, Engine& engine, LateStreams& streams,
            std::unique_ptr<JoinGate::UnprovedStream> unproved)
        : stream_(std::move(stream)),
          engine_(engine),
          streams_(streams),
          unproved_(std::move(unproved)) {
      v1::CoordinatorMessage message;
      *message.mutable_challenge() = unproved_->challenge();
      stream_->Send(message);
      proof_due_.Set(
          std::chrono::system_clock::now() + std::chrono::nanoseconds(JoinGate::kProofWait),
          [waiting = stream_](bool expired) {
            if (expired) {
              waiting->Abort();
            }
          });
      StartRead(&received_);
    }

    void OnReadDone(bool ok) override {
      if (!ok || !Decode(received_, message_)) {
        Leave();
        stream_->End();
        return;
      }
      Handle();
      StartRead(&received_);
    }
    void OnWriteDone(bool ok) override { stream_->WriteDone(ok); }
    void OnCancel() override {
      Leave();
      stream_->End();
    }
    void OnDone() override {
      Leave();
      streams_.Forget(stream_.get());
      stream_->Detach();
      delete this;
    }

   private:
    void Handle();
    void HandleHello(const v1::Hello& hello);
    // Says what the node has reported that cannot be, once.
    void WarnOf(const control::ReportedFigures& figures) {
      if (source_.port != nullptr && !figures.refused().empty() && !std::exchange(warned_, true)) {
        LogWarning("node ", source_.name, " reports ", figures.refused(),
                   ", which it cannot have measured: it counts as not measured");
      }
    }
    // Sends Welcome; an error refuses the node.
    absl::Status Admit(const v1::Hello& hello);
    void Leave() {
      const std::lock_guard lock(leave_mutex_);
      if (source_.port != nullptr && !std::exchange(left_, true)) {
        engine_.NodeLeft(source_);
      }
    }

    const std::shared_ptr<NodeStream> stream_;
    Engine& engine_;
    LateStreams& streams_;
    std::unique_ptr<JoinGate::UnprovedStream> unproved_;  // Null once its node is welcome.
    grpc::Alarm proof_due_;
    grpc::ByteBuffer received_;
    v1::NodeMessage message_;
    std::mutex leave_mutex_;
    NodeSource source_;  // Set once by Hello.
    bool greeted_ = false;
    bool warned_ = false;
    bool left_ = false;
  };

  void Attach(Reactor* reactor) {
    const std::lock_guard lock(mutex_);
    reactor_ = reactor;
    Pump();
  }

  void LoadLayers(const plan::Stage& stage, bool measure) override {
    v1::CoordinatorMessage message;
    control::ToProto(stage, message.mutable_load_layers()->mutable_stage());
    message.mutable_load_layers()->set_measure(measure);
    Send(message);
  }
  void Configure(const plan::EpochConfig& config) override;
  void Connect(const plan::EpochPeers& peers) override;
  void Leave(const std::string& why) override {
    v1::CoordinatorMessage message;
    message.mutable_leave()->set_reason(why);
    Send(message);
  }
  void Dismiss() override {
    v1::CoordinatorMessage message;
    message.mutable_leave()->set_for_good(true);
    Send(message);
    End();
  }
  void SendPlan(const OutgoingPlan& plan) override { Send(BufferOf(plan.Encoded(&EncodePlan))); }
  void Refuse(const absl::Status& why) override {
    v1::CoordinatorMessage message;
    message.mutable_refused()->set_reason(std::string(why.message()));
    message.mutable_refused()->set_code(static_cast<int32_t>(why.code()));
    Send(message);
    End();
  }

  void StartTrace(Nanos length) override {
    v1::CoordinatorMessage message;
    message.mutable_trace()->set_record_nanos(length);
    Send(message);
  }
  void CollectTrace(uint64_t id) override {
    v1::CoordinatorMessage message;
    message.mutable_trace()->set_collect_id(id);
    Send(message);
  }
  void PingClock() override { Send(std::nullopt); }

  // Ends the stream at once, whether or not its peer reads.
  void Abort() {
    const std::lock_guard lock(mutex_);
    if (reactor_ != nullptr) {
      context_->TryCancel();
    }
  }

  // Finishes the stream once everything queued has been written.
  void End() override {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    Pump();
  }

 private:
  friend class Reactor;

  void Send(const v1::CoordinatorMessage& message) { Send(BufferOf(Encode(message))); }
  // Without a message: a ping, which gets its time when it is written.
  void Send(std::optional<grpc::ByteBuffer> message) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(message));
    Pump();
  }
  void WriteDone(bool ok) {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) {
      queue_.clear();
      ending_ = true;
    }
    Pump();
  }
  void Detach() {
    const std::lock_guard lock(mutex_);
    reactor_ = nullptr;
  }
  void Pump() {
    if (reactor_ == nullptr || writing_ || finishing_) {
      return;
    }
    if (!queue_.empty()) {
      current_ = queue_.front().has_value() ? *std::move(queue_.front()) : PingOfNow();
      queue_.pop_front();
      writing_ = true;
      reactor_->StartWrite(&current_);
    } else if (ending_) {
      finishing_ = true;
      reactor_->Finish(grpc::Status::OK);
    }
  }

  const std::string peer_;
  grpc::CallbackServerContext* const context_;
  std::mutex mutex_;
  // Bounded by plan_ahead steps of each lane.
  std::deque<std::optional<grpc::ByteBuffer>> queue_;
  grpc::ByteBuffer current_;
  bool writing_ = false;
  bool ending_ = false;
  bool finishing_ = false;
  Reactor* reactor_ = nullptr;
};

void NodeStream::Configure(const plan::EpochConfig& config) {
  v1::CoordinatorMessage message;
  control::ToProto(config, message.mutable_configure());
  Send(message);
}

void NodeStream::Connect(const plan::EpochPeers& peers) {
  v1::CoordinatorMessage message;
  control::ToProto(peers, message.mutable_connect());
  Send(message);
}

void NodeStream::Reactor::Handle() {
  if (source_.port == nullptr && message_.message_case() != v1::NodeMessage::kHello) {
    return;  // Who has not proved itself has nothing else to say.
  }
  switch (message_.message_case()) {
    case v1::NodeMessage::kHello:
      return HandleHello(message_.hello());
    case v1::NodeMessage::kPrepared:
      return engine_.NodePrepared(
          source_, message_.prepared().epoch(),
          {.region = message_.prepared().region(),
           .windows = ForeignText(message_.prepared().windows(), kTextBytesMax),
           .kv_arena = message_.prepared().kv_arena()});
    case v1::NodeMessage::kLayersLoaded:
      return engine_.NodeLoaded(source_, FromProto(message_.layers_loaded()));
    case v1::NodeMessage::kLeaving:
      return engine_.NodeLeaving(source_);
    case v1::NodeMessage::kReady:
      return engine_.NodeReady(source_, message_.ready().epoch());
    case v1::NodeMessage::kStepResult:
      return engine_.StepDone(source_, control::FromProto(message_.step_result()));
    case v1::NodeMessage::kSpill:
      return engine_.NodeSpilled(source_, {.epoch = message_.spill().epoch(),
                                           .spill = message_.spill().spill(),
                                           .ok = message_.spill().ok()});
    case v1::NodeMessage::kStatus: {
      control::ReportedFigures figures;
      const telemetry::NodeCounters counters = FromProto(message_.status(), figures);
      const double busy_share = figures.Take("busy_share", message_.status().busy_share());
      WarnOf(figures);
      streams_.Heard({.source = source_,
                      .peer = stream_->peer_,
                      .busy_share = busy_share,
                      .counters = counters});
      return engine_.NodeStatus(source_, busy_share, counters);
    }
    case v1::NodeMessage::kFault: {
      const v1::Fault& fault = message_.fault();
      absl::Status status = control::Blame(
          absl::Status(static_cast<absl::StatusCode>(fault.code()), ForeignText(fault.message())),
          ForeignText(fault.peer(), kTextBytesMax));
      return engine_.NodeFault(
          source_, fault.epoch(),
          fault.transport() ? control::TransportFault(std::move(status)) : std::move(status));
    }
    case v1::NodeMessage::kLinks: {
      control::ReportedFigures figures;
      std::vector<control::LinkReport> links = FromProto(message_.links(), figures);
      WarnOf(figures);
      return engine_.NodeLinks(source_, message_.links().epoch(), std::move(links));
    }
    case v1::NodeMessage::kTrace:
      return engine_.NodeTrace(source_, control::FromProto(message_.trace()));
    case v1::NodeMessage::kPong:
      return engine_.NodeClock(source_, {.sent = message_.pong().ping_sent(),
                                         .node_received = message_.pong().received(),
                                         .node_sent = message_.pong().sent(),
                                         .received = RealClock().Now()});
    case v1::NodeMessage::MESSAGE_NOT_SET:
      return;
  }
}

absl::Status NodeStream::Reactor::Admit(const v1::Hello& hello) {
  if (std::string problem = ProblemOf(hello); !problem.empty()) {
    return absl::InvalidArgumentError(problem);
  }
  LAMINA_RETURN_IF_ERROR(unproved_->CheckCertificate(hello, *stream_->context_));
  LAMINA_ASSIGN_OR_RETURN(v1::Welcome welcome, unproved_->Welcome(hello));
  unproved_.reset();
  proof_due_.Cancel();
  v1::CoordinatorMessage message;
  *message.mutable_welcome() = std::move(welcome);
  stream_->Send(message);
  return absl::OkStatus();
}

void NodeStream::Reactor::HandleHello(const v1::Hello& hello) {
  if (std::exchange(greeted_, true)) {
    return;  // A second Hello changes nothing.
  }
  if (const absl::Status admitted = Admit(hello); !admitted.ok()) {
    LogWarning("refused a node: ", admitted.message());
    return stream_->Refuse(admitted);
  }
  // The lock is held until it is posted: a cancelled stream would leave before it joined.
  const std::lock_guard lock(leave_mutex_);
  source_ = {.name = hello.name(), .port = stream_.get()};
  engine_.NodeJoined(FromProto(hello), stream_);
}

}  // namespace

std::string EncodePlan(const plan::StepPlan& plan) {
  // A plan of many rows has a message for each slot: they are freed together.
  google::protobuf::Arena arena;
  auto* const message = google::protobuf::Arena::CreateMessage<v1::CoordinatorMessage>(&arena);
  control::ToProto(plan, message->mutable_plan());
  return message->SerializeAsString();
}

NodeReactor* AttachNode(grpc::CallbackServerContext* context, Engine& engine, LateStreams& streams,
                        std::unique_ptr<JoinGate::UnprovedStream> unproved) {
  auto stream = std::make_shared<NodeStream>(context);
  auto* reactor = new NodeStream::Reactor(stream, engine, streams, std::move(unproved));
  stream->Attach(reactor);
  return reactor;
}

}  // namespace lamina::coordinator
