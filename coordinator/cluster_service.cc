// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/version.h"
#include "control/counters_codec_service.h"
#include "control/epoch_codec_service.h"
<<<<<<< HEAD
=======
#include "control/plan_codec_service.h"
#include "control/reported_figures.h"
#include "control/transport_fault.h"
>>>>>>> alisa3
#include "coordinator/coordinator_metrics.h"
#include "coordinator/inference_service.h"
#include "coordinator/member_change_service.h"
#include "coordinator/node_stream_service.h"
#include "coordinator/status_codec_service.h"

namespace lamina::coordinator {
namespace {

constexpr double kTraceSecondsMax = 60;
<<<<<<< HEAD
=======
// The most bytes of a name, and of what a node says of itself.
constexpr size_t kTextBytesMax = 1000;

// One attached node: the queue of messages to it. The engine and the reactor share it.
class NodeStream final : public NodePort {
 public:
  // `context` lives until Detach().
  explicit NodeStream(grpc::CallbackServerContext* context)
      : peer_(context->peer()), context_(context) {}

  class Reactor final : public grpc::ServerBidiReactor<v1::NodeMessage, v1::CoordinatorMessage> {
   public:
    Reactor(std::shared_ptr<NodeStream> stream, Engine& engine, LateStreams& streams,
            std::unique_ptr<JoinGate::UnprovedStream> unproved)
        : stream_(std::move(stream)),
          engine_(engine),
          streams_(streams),
          unproved_(std::move(unproved)) {
      v1::CoordinatorMessage message;
      *message.mutable_challenge() = unproved_->challenge();
      stream_->Send(std::move(message));
      proof_due_.Set(
          std::chrono::system_clock::now() + std::chrono::nanoseconds(JoinGate::kProofWait),
          [waiting = stream_](bool expired) {
            if (expired) {
              waiting->Abort();
            }
          });
      StartRead(&message_);
    }

    void OnReadDone(bool ok) override {
      if (!ok) {
        Leave();
        stream_->End();
        return;
      }
      Handle();
      StartRead(&message_);
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
    Send(std::move(message));
  }
  void Configure(const plan::EpochConfig& config) override;
  void Connect(const plan::EpochPeers& peers) override;
  void Leave(const std::string& why) override {
    v1::CoordinatorMessage message;
    message.mutable_leave()->set_reason(why);
    Send(std::move(message));
  }
  void Dismiss() override {
    v1::CoordinatorMessage message;
    message.mutable_leave()->set_for_good(true);
    Send(std::move(message));
    End();
  }
  void SendPlan(const plan::StepPlan& plan) override {
    v1::CoordinatorMessage message;
    control::ToProto(plan, message.mutable_plan());
    Send(std::move(message));
  }
  void Refuse(const absl::Status& why) override {
    v1::CoordinatorMessage message;
    message.mutable_refused()->set_reason(std::string(why.message()));
    message.mutable_refused()->set_code(static_cast<int32_t>(why.code()));
    Send(std::move(message));
    End();
  }

  void StartTrace(Nanos length) override {
    v1::CoordinatorMessage message;
    message.mutable_trace()->set_record_nanos(length);
    Send(std::move(message));
  }
  void CollectTrace(uint64_t id) override {
    v1::CoordinatorMessage message;
    message.mutable_trace()->set_collect_id(id);
    Send(std::move(message));
  }
  void PingClock() override {
    v1::CoordinatorMessage message;
    message.mutable_ping();  // Gets its time when it is written.
    Send(std::move(message));
  }

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

  void Send(v1::CoordinatorMessage message) {
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
      current_ = std::move(queue_.front());
      queue_.pop_front();
      if (current_.has_ping()) {
        current_.mutable_ping()->set_sent(RealClock().Now());
      }
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
  std::deque<v1::CoordinatorMessage> queue_;  // Bounded by plan_ahead steps of each lane.
  v1::CoordinatorMessage current_;
  bool writing_ = false;
  bool ending_ = false;
  bool finishing_ = false;
  Reactor* reactor_ = nullptr;
};

void NodeStream::Configure(const plan::EpochConfig& config) {
  v1::CoordinatorMessage message;
  control::ToProto(config, message.mutable_configure());
  Send(std::move(message));
}

void NodeStream::Connect(const plan::EpochPeers& peers) {
  v1::CoordinatorMessage message;
  control::ToProto(peers, message.mutable_connect());
  Send(std::move(message));
}

void NodeStream::Reactor::Handle() {
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
  stream_->Send(std::move(message));
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
>>>>>>> alisa3

const char* Name(core::MemberState state) {
  switch (state) {
    case core::MemberState::kAbsent:
      return "absent";
    case core::MemberState::kJoined:
      return "joined";
    case core::MemberState::kPrepared:
      return "prepared";
    case core::MemberState::kReady:
      return "ready";
    case core::MemberState::kFailed:
      return "failed";
  }
  return "";
}

void ToProto(const NodeReport& report, const std::string& transport, v1::Node* node) {
  node->set_name(report.member.name);
  node->set_role(std::string(core::RoleOf(report.member)));
  node->set_state(Name(report.member.state));
  node->set_device(report.hello.identity.device);
  node->set_transport(transport);
  node->set_kernels(report.hello.identity.kernels);
  node->set_slots_used(report.kv.slots_held + report.kv.slots_quarantined);
  node->set_slots_total(report.kv.slots_total);
  node->set_slots_kept(report.kv.slots_kept);
  AddSlotForms(report, node);
  node->set_mean_extent_tokens(report.kv.mean_extent_tokens);
  node->set_busy_share(report.busy_share);
  node->set_bytes_sent(report.counters.bytes_sent);
  node->set_bytes_received(report.counters.bytes_received);
  node->set_refused_messages(report.counters.refused_messages);
  node->set_kv_bytes_read(report.counters.kv_bytes_read);
  node->set_units(report.counters.units);
  node->set_busy_seconds(report.counters.busy_seconds);
  control::ToProto(report.counters, node->mutable_detail());
  node->set_reports(report.reports);
  node->set_pid(report.hello.pid);
  node->set_replica(report.member.replica);
  node->set_layers(report.layers);
  node->set_windows(report.windows);
  node->set_data_thread_still_seconds(ToSeconds(report.thread_still));
  node->set_bandwidth_bytes_per_second(report.hello.identity.bandwidth_bytes_per_second);
}

void ToProto(const Histogram::Snapshot& values, v1::Distribution* proto) {
  proto->mutable_upper_seconds()->Add(values.bounds.begin(), values.bounds.end());
  proto->mutable_counts()->Add(values.counts.begin(), values.counts.end());
}

void ToProto(const cost::Work& work, v1::TokenWork* proto) {
  proto->set_input(work.input);
  proto->set_output(work.output);
  proto->set_cached(work.cached);
}

void ToProto(const TracedStep& step, v1::TracedStep* proto) {
  proto->set_epoch(step.epoch);
  proto->set_lane(step.lane);
  proto->set_step(step.step);
  proto->set_planned(step.planned);
  proto->set_done(step.done);
  proto->set_rows(step.rows);
  proto->set_chunk_tokens(step.chunk_tokens);
  proto->mutable_requests()->Add(step.requests.begin(), step.requests.end());
}

void ToProto(const RequestRecord& record, v1::TracedRequest* proto) {
  proto->set_request_id(TracedId(record.followed_id));
  proto->set_id(TracedId(record.id));
  proto->set_arrived(record.arrived);
  proto->set_started(record.started);
  proto->set_first_token(record.first_token);
  proto->set_ended(record.ended);
}

void ToProto(const EngineTrace& trace, v1::CollectTraceResponse* proto) {
  proto->set_epoch(trace.epoch);
  proto->mutable_compute_nodes()->Add(trace.compute_nodes.begin(), trace.compute_nodes.end());
  proto->mutable_memory_nodes()->Add(trace.memory_nodes.begin(), trace.memory_nodes.end());
  for (const TracedStep& step : trace.steps) {
    ToProto(step, proto->add_steps());
  }
  proto->mutable_names()->Add(trace.names.begin(), trace.names.end());
  for (const RequestRecord& record : trace.requests) {
    ToProto(record, proto->add_requests());
  }
  proto->set_dropped(trace.dropped);
  proto->set_began(trace.began);
  proto->set_ended(trace.ended);
  proto->set_prefill_nodes(trace.prefill_nodes);
  proto->set_prefill_lane(trace.prefill_lane);
}

// Ends a stream for which there is no place now: its node tries again.
class NoPlace final : public NodeReactor {
 public:
  NoPlace() {
    Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrCat("there are ", JoinGate::kUnprovedMax,
                         " streams whose nodes have not proved themselves; try again")});
  }
  void OnDone() override { delete this; }
};

}  // namespace

ClusterService::ClusterService(Engine& engine, LateStreams& streams, ModelNames model,
                               const Clock& clock, ClusterSecret secret, TlsFiles tls)
    : engine_(engine),
      streams_(streams),
      model_(std::move(model)),
      clock_(clock),
      started_(clock.Now()),
      gate_(std::move(secret), std::move(tls)) {}

NodeReactor* ClusterService::Attach(grpc::CallbackServerContext* context) {
  std::unique_ptr<JoinGate::UnprovedStream> unproved = gate_.Enter();
  if (unproved == nullptr) {
    return new NoPlace();
  }
  return AttachNode(context, engine_, streams_, std::move(unproved));
}

grpc::ServerBidiReactor<v1::MemberChange, v1::MemberAnswer>* ClusterService::ChangeMembers(
    grpc::CallbackServerContext* context) {
  return AnswerMemberChange(engine_, gate_.Enter(), *context);
}

grpc::ServerUnaryReactor* ClusterService::GetStatus(grpc::CallbackServerContext* context,
                                                    const v1::GetStatusRequest*,
                                                    v1::GetStatusResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  engine_.GetStatus([this, reactor, response](const EngineStatus& status) {
    Fill(status, response);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

void ClusterService::Fill(const EngineStatus& status, v1::GetStatusResponse* response) const {
  response->set_epoch(status.epoch);
  response->set_state(status.state);
  response->set_model(model_.own);
  for (const NodeReport& report : status.nodes) {
    ToProto(report, status.transport, response->add_nodes());
  }
  AddLinks(status, response);
  for (const std::string& warning : status.warnings) {
    response->add_warnings(warning);
  }
  AddLanes(status, response);
  response->set_partition(status.partition);
  response->set_attention(status.attention);
  response->set_prefill(status.prefill);
  response->set_policy(status.policy);
  response->set_policy_choice(status.policy_choice);
  AddPolicies(status, response);
  response->set_stages(status.stages);
  response->set_stages_odd(status.stages_odd);
  response->set_chunk_choice(status.scheduler.sub_batches.why);
  response->set_fetch_choice(status.scheduler.fetch_share.why);
  response->set_lane_choice(status.scheduler.lane_count.why);
  response->set_lane_moves(status.scheduler.lane_moves);
  response->set_running(status.scheduler.running);
  response->set_waiting(status.scheduler.waiting);
  response->set_tokens_per_second(status.tokens_per_second);
  response->set_preemptions(status.scheduler.preemptions);
  response->set_requests_finished(status.requests_finished);
  response->set_requests_failed(status.requests_failed);
  response->set_uptime_seconds(ToSeconds(clock_.Now() - started_));
  response->set_version(kVersion);
  response->set_tokens_generated(status.tokens_generated);
  v1::TokenCost* cost = response->mutable_token_cost();
  cost->set_compute_price(status.pool_prices.compute);
  cost->set_prompts_price(status.pool_prices.prompts);
  cost->set_memory_price(status.pool_prices.memory);
  ToProto(status.token_work.compute, cost->mutable_compute());
  ToProto(status.token_work.memory, cost->mutable_memory());
  cost->set_input_tokens(status.tokens_prefilled);
  cost->set_cached_tokens(status.tokens_cached);
  const Histogram::Snapshot first = engine_.metrics().time_to_first_token.Take();
  response->set_ttft_seconds_sum(first.sum);
  response->set_ttft_count(first.count);
  ToProto(first, response->mutable_time_to_first_token());
  const Histogram::Snapshot next = engine_.metrics().inter_token_latency.Take();
  response->set_itl_seconds_sum(next.sum);
  response->set_itl_count(next.count);
  ToProto(next, response->mutable_inter_token_latency());
}

grpc::ServerUnaryReactor* ClusterService::GetRequestMetrics(
    grpc::CallbackServerContext* context, const v1::GetRequestMetricsRequest*,
    v1::GetRequestMetricsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  engine_.GetStatus([this, reactor, response](const EngineStatus& status) {
    response->set_text(RequestMetricsText(engine_, status, model_.served));
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::StartTrace(grpc::CallbackServerContext* context,
                                                     const v1::StartTraceRequest* request,
                                                     v1::StartTraceResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const double seconds = request->seconds();
  if (!(seconds > 0 && seconds <= kTraceSecondsMax)) {
    reactor->Finish(
        {grpc::StatusCode::INVALID_ARGUMENT,
         absl::StrCat("seconds is ", seconds, "; it must be in (0, ", kTraceSecondsMax, "]")});
    return reactor;
  }
  engine_.StartTrace(static_cast<Nanos>(seconds * 1e9),
                     [reactor] { reactor->Finish(grpc::Status::OK); });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::CollectTrace(grpc::CallbackServerContext* context,
                                                       const v1::CollectTraceRequest*,
                                                       v1::CollectTraceResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  engine_.CollectTrace([reactor, response](const EngineTrace& trace) {
    ToProto(trace, response);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::ReadTrace(grpc::CallbackServerContext* context,
                                                    const v1::ReadTraceRequest* request,
                                                    v1::ReadTraceResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  engine_.ReadTrace(request->node(), [reactor, response](const absl::StatusOr<TracedNode>& node) {
    if (!node.ok()) {
      reactor->Finish(ToGrpc(node.status()));
      return;
    }
    control::ToProto(node->trace, response->mutable_trace());
    response->set_clock_offset(node->clock.offset);
    response->set_clock_error(node->clock.error);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace lamina::coordinator
