// SPDX-License-Identifier: Apache-2.0
#include "control/node_link_service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/foreign_text.h"
#include "common/log.h"
#include "common/version.h"
#include "control/blame.h"
#include "control/counters_codec_service.h"
#include "control/epoch_codec_service.h"
#include "control/node_proof_service.h"
#include "control/plan_codec_service.h"
#include "control/reconnect_service.h"
#include "control/tls_service.h"
#include "control/transport_fault.h"
#include "lamina/v1/cluster.grpc.pb.h"
#include "plan/epoch_shape.h"
#include "telemetry/request_log.h"

namespace lamina::control {
namespace {

constexpr auto kStatusInterval = std::chrono::milliseconds(500);
constexpr auto kRetryPauseMin = std::chrono::milliseconds(100);
constexpr auto kRetryPauseMax = std::chrono::milliseconds(2000);
// For the coordinator to challenge a node and to welcome it.
constexpr auto kGreetingWait = std::chrono::seconds(10);
// For the coordinator to see the end of the stream that a member had before.
constexpr auto kFormerStreamWait = std::chrono::seconds(60);
constexpr size_t kMessageBytesMax = size_t{256} << 20;

using Stream = grpc::ClientReaderWriter<v1::NodeMessage, v1::CoordinatorMessage>;

// Nothing for compute nodes, and where sequences are spread: they have a part in every request.
std::optional<uint32_t> OwnMemoryIndex(const plan::EpochConfig& config,
                                       const NodeIdentity& identity) {
  const auto own = std::find(config.memory_nodes.begin(), config.memory_nodes.end(), identity.name);
  if (!identity.is_memory || plan::IsSpread(config) || own == config.memory_nodes.end()) {
    return std::nullopt;
  }
  return static_cast<uint32_t>(own - config.memory_nodes.begin());
}

void ToProto(const std::vector<plan::SliceTimes>& times,
             google::protobuf::RepeatedPtrField<v1::PolicyTimes::Slice>* proto) {
  for (const plan::SliceTimes& size : times) {
    v1::PolicyTimes::Slice* slice = proto->Add();
    slice->set_rows(size.rows);
    slice->set_slice_seconds(size.slice_seconds);
    slice->set_tail_seconds(size.tail_seconds);
  }
}

void ToProto(const plan::PolicyTimes& times, v1::PolicyTimes* proto) {
  for (const plan::PolicyTimes& end : times.ends) {
    ToProto(end, proto->add_ends());
  }
  ToProto(times.local, proto->mutable_local());
  ToProto(times.pools, proto->mutable_pools());
  proto->set_attention_local(times.attention_local);
  proto->set_attention_shared(times.attention_shared);
  proto->set_attention_pools(times.attention_pools);
  proto->set_read_bandwidth(times.read_bandwidth);
  proto->set_make_seconds(times.make_seconds);
  proto->set_reads_low(times.reads_low);
  proto->set_reads_high(times.reads_high);
}

v1::NodeMessage HelloMessage(const NodeIdentity& identity) {
  v1::NodeMessage message;
  v1::Hello* hello = message.mutable_hello();  // All but the proof.
  hello->set_name(identity.name);
  hello->set_role(identity.is_memory ? v1::ROLE_MEMORY : v1::ROLE_COMPUTE);
  hello->set_version(kVersion);
  hello->set_device(identity.device);
  hello->set_capacity_bytes(identity.capacity_bytes);
  hello->set_threads(identity.threads);
  hello->set_bandwidth_bytes_per_second(identity.bandwidth_bytes_per_second);
  hello->set_dense_speed(identity.dense_speed);
  hello->set_kernels(identity.kernels);
  hello->set_fast_attention(static_cast<uint32_t>(identity.fast_attention));
  hello->set_pid(getpid());
  hello->set_model_fingerprint(identity.model_fingerprint);
  if (identity.spill.capacity_bytes > 0) {
    v1::SpillTier* tier = hello->mutable_spill();
    tier->set_capacity_bytes(identity.spill.capacity_bytes);
    tier->set_write_bytes_per_second(identity.spill.write_bytes_per_second);
    tier->set_read_bytes_per_second(identity.spill.read_bytes_per_second);
  }
  if (identity.policy_times.attention_local > 0) {
    ToProto(identity.policy_times, hello->mutable_policy_times());
  }
  return message;
}

// Loads, and measures where that is asked for.
v1::NodeMessage LoadedMessage(const v1::LoadLayers& order, NodeHandler& handler) {
  v1::NodeMessage message;
  v1::LayersLoaded* loaded = message.mutable_layers_loaded();
  absl::Status status = handler.LoadLayers(FromProto(order.stage()));
  if (status.ok() && order.measure()) {
    const absl::StatusOr<plan::PolicyTimes> times = handler.MeasurePolicies();
    status = times.status();
    if (times.ok()) {
      ToProto(*times, loaded->mutable_policy_times());
    }
  }
  loaded->set_code(static_cast<int32_t>(status.code()));
  loaded->set_message(std::string(status.message()));
  return message;
}

v1::NodeMessage FaultMessage(uint64_t epoch, const absl::Status& status) {
  v1::NodeMessage message;
  v1::Fault* fault = message.mutable_fault();
  fault->set_epoch(epoch);
  fault->set_code(static_cast<int32_t>(status.code()));
  fault->set_message(std::string(status.message()));
  fault->set_peer(BlamedIn(status));
  fault->set_transport(IsTransportFault(status));
  return message;
}

v1::NodeMessage StatusMessage(const telemetry::NodeCounters& now,
                              const telemetry::NodeCounters& before, double seconds) {
  v1::NodeMessage message;
  v1::NodeStatus* status = message.mutable_status();
  status->set_busy_share(std::clamp((now.busy_seconds - before.busy_seconds) / seconds, 0.0, 1.0));
  status->set_bytes_sent(now.bytes_sent);
  status->set_bytes_received(now.bytes_received);
  status->set_refused_messages(now.refused_messages);
  status->set_kv_bytes_read(now.kv_bytes_read);
  status->set_units(now.units);
  status->set_busy_seconds(now.busy_seconds);
  status->set_unit_seconds_fixed(now.unit_seconds_fixed);
  status->set_unit_seconds_slope(now.unit_seconds_slope);
  control::ToProto(now, status->mutable_detail());
  return message;
}

}  // namespace

struct NodeLink::Impl {
  std::string coordinator;
  NodeIdentity identity;
  ClusterSecret secret;
  TlsFiles tls;
  Keepalive keepalive;
  telemetry::RequestLog request_log;  // Reader thread.
  std::atomic<bool> attached{false};

  std::mutex mutex;
  std::condition_variable wake;
  // Guarded by mutex.
  std::deque<v1::NodeMessage> outgoing;
  bool connected = false;
  bool stopping = false;
  std::shared_ptr<grpc::ClientContext> context;
  grpc::Alarm drain_over;

  void Send(v1::NodeMessage message) {
    {
      const std::lock_guard lock(mutex);
      if (!connected) {
        return;  // Whatever it was about ended with the stream.
      }
      outgoing.push_back(std::move(message));
    }
    wake.notify_one();
  }

  // The stream that is to end, behind which Run() does; null where there is none.
  std::shared_ptr<grpc::ClientContext> BeginDrain() {
    const std::lock_guard lock(mutex);
    stopping = connected;
    return connected ? context : nullptr;
  }

  // The only writer of the stream: messages in order, and a status twice a second. One comes before
  // Ready, so that what the node holds is known once the cluster serves.
  void WriteLoop(Stream& stream, NodeHandler& handler) {
    telemetry::NodeCounters before = handler.Counters();
    auto status_due = std::chrono::steady_clock::now() + kStatusInterval;
    std::unique_lock lock(mutex);
    while (connected) {
      wake.wait_until(lock, status_due, [&] { return !outgoing.empty() || !connected; });
      std::deque<v1::NodeMessage> batch;
      batch.swap(outgoing);
      lock.unlock();
      const bool ready =
          std::any_of(batch.begin(), batch.end(),
                      [](const v1::NodeMessage& message) { return message.has_ready(); });
      if (ready || std::chrono::steady_clock::now() >= status_due) {
        const telemetry::NodeCounters now = handler.Counters();
        batch.push_front(
            StatusMessage(now, before, std::chrono::duration<double>(kStatusInterval).count()));
        before = now;
        status_due = std::chrono::steady_clock::now() + kStatusInterval;
      }
      bool written = true;
      for (v1::NodeMessage& message : batch) {
        if (message.has_pong()) {
          message.mutable_pong()->set_sent(RealClock().Now());
        }
        written = written && stream.Write(message);
      }
      lock.lock();
      if (!written) {
        return;  // The reader sees the end too.
      }
    }
  }

  void Handle(const v1::CoordinatorMessage& message, NodeHandler& handler, absl::Status& refused) {
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kConfigure:
        return HandleConfigure(message.configure(), handler);
      case v1::CoordinatorMessage::kConnect:
        return HandleConnect(message.connect(), handler);
      case v1::CoordinatorMessage::kPlan: {
        absl::StatusOr<plan::StepPlan> plan = FromProto(message.plan());
        if (!plan.ok()) {
          Send(FaultMessage(message.plan().epoch(), Blame(plan.status(), "coordinator")));
          return;
        }
        request_log.Note(*plan);
        return handler.TakePlan(*std::move(plan));
      }
      case v1::CoordinatorMessage::kLoadLayers:
        return Send(LoadedMessage(message.load_layers(), handler));
      case v1::CoordinatorMessage::kLeave:
        if (!message.leave().reason().empty()) {
          LogWarning("the coordinator goes on without this node: ",
                     ForeignText(message.leave().reason()));
        }
        if (message.leave().for_good()) {
          LogInfo("drained: this node leaves the cluster for good");
          const std::lock_guard lock(mutex);
          stopping = true;
        }
        return handler.LeaveEpoch();
      case v1::CoordinatorMessage::kTrace:
        return HandleTrace(message.trace(), handler.ring());
      case v1::CoordinatorMessage::kPing: {
        v1::NodeMessage answer;
        answer.mutable_pong()->set_received(RealClock().Now());
        answer.mutable_pong()->set_ping_sent(message.ping().sent());
        return Send(std::move(answer));
      }
      case v1::CoordinatorMessage::kRefused:
        refused = RefusedFor(message.refused());
        return;
      case v1::CoordinatorMessage::kChallenge:  // Each comes once, and then in Greet().
      case v1::CoordinatorMessage::kWelcome:
      case v1::CoordinatorMessage::MESSAGE_NOT_SET:
        return;
    }
  }

  void HandleTrace(const v1::TraceOrder& order, telemetry::TraceRing& ring) {
    if (order.record_nanos() > 0) {
      ring.Start(RealClock().Now() + order.record_nanos());
    }
    if (order.collect_id() != 0) {
      ring.Stop();
      NodeTrace trace{.id = order.collect_id()};
      trace.events = ring.Take(trace.dropped);
      v1::NodeMessage message;
      ToProto(trace, message.mutable_trace());
      Send(std::move(message));
    }
  }

  void HandleConfigure(const v1::Configure& proto, NodeHandler& handler) {
    const plan::EpochConfig config = FromProto(proto);
    const absl::Status roles = plan::CheckRoles(config);
    request_log.StartEpoch(OwnMemoryIndex(config, identity),
                           roles.ok() && plan::IsPrefillNode(config, identity.name));
    absl::StatusOr<PreparedNode> prepared =
        roles.ok() ? handler.Configure(config) : absl::StatusOr<PreparedNode>(roles);
    if (!prepared.ok()) {
      LogError("configure epoch ", config.epoch, " failed ", prepared.status().message());
      Send(FaultMessage(config.epoch, Blame(prepared.status(), identity.name)));
      return;
    }
    v1::NodeMessage message;
    message.mutable_prepared()->set_epoch(config.epoch);
    message.mutable_prepared()->set_region(std::move(prepared->region));
    message.mutable_prepared()->set_windows(std::move(prepared->windows));
    message.mutable_prepared()->set_kv_arena(prepared->kv_arena);
    Send(std::move(message));
  }

  void HandleConnect(const v1::Connect& proto, NodeHandler& handler) {
    const plan::EpochPeers peers = FromProto(proto);
    const absl::Status status = handler.Connect(peers);
    if (!status.ok()) {
      LogError("connect epoch ", peers.epoch, " failed ", status.message());
      Send(FaultMessage(peers.epoch, status));
      return;
    }
    v1::NodeMessage message;
    message.mutable_ready()->set_epoch(peers.epoch);
    Send(std::move(message));
  }

  // AlreadyExists for a name that is taken, else FailedPrecondition.
  static absl::Status RefusedFor(const v1::Refused& refused) {
    const bool taken = refused.code() == static_cast<int32_t>(absl::StatusCode::kAlreadyExists);
    return absl::Status(
        taken ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kFailedPrecondition,
        absl::StrCat("refused by coordinator ", ForeignText(refused.reason())));
  }

  // Each proves to the other that it knows the secret. Returns whether both did; if not, `refused`
  // says whether that is final.
  bool Greet(Stream& stream, absl::Status& refused) {
    const auto leave = [&](const absl::Status& why) {
      refused = absl::FailedPreconditionError(
          absl::StrCat("did not join coordinator ", coordinator, ": ", why.message()));
      return false;
    };
    v1::CoordinatorMessage first;
    if (!stream.Read(&first) || !first.has_challenge()) {
      return false;
    }
    v1::NodeMessage message = HelloMessage(identity);
    v1::Hello& hello = *message.mutable_hello();
    if (const absl::Status proved = ProveNode(secret, first.challenge(), hello); !proved.ok()) {
      return leave(proved);
    }
    v1::CoordinatorMessage answer;
    if (!stream.Write(message) || !stream.Read(&answer)) {
      return false;
    }
    if (answer.has_refused()) {
      refused = RefusedFor(answer.refused());
      return false;
    }
    const absl::Status welcome = CheckWelcome(secret, first.challenge(), hello, answer.welcome());
    return welcome.ok() || leave(welcome);
  }

  // Greets as Greet() does, but gives up after kGreetingWait.
  bool GreetInTime(const std::shared_ptr<grpc::ClientContext>& stream_context, Stream& stream,
                   absl::Status& refused) {
    const auto was_late = std::make_shared<std::atomic<bool>>(false);
    grpc::Alarm alarm;
    alarm.Set(std::chrono::system_clock::now() + kGreetingWait,
              [stream_context, was_late](bool expired) {
                if (expired) {
                  was_late->store(true);
                  stream_context->TryCancel();
                }
              });
    const bool greeted = Greet(stream, refused);
    alarm.Cancel();
    if (was_late->load()) {
      LogWarning("coordinator ", coordinator, " did not welcome this node within ",
                 kGreetingWait.count(), " s; is it of another version, or behind a firewall?");
    }
    return greeted;
  }

  // One stream from its challenge to its end. Returns whether the coordinator welcomed this node.
  bool ServeOnce(v1::Cluster::Stub& stub, NodeHandler& handler,
                 const std::function<void()>& on_attached, absl::Status& refused) {
    const auto stream_context = std::make_shared<grpc::ClientContext>();
    {
      const std::lock_guard lock(mutex);
      if (stopping) {
        return false;
      }
      context = stream_context;
    }
    std::unique_ptr<Stream> stream = stub.Attach(stream_context.get());
    const bool reached = GreetInTime(stream_context, *stream, refused);
    if (reached) {
      LogInfo("attached to coordinator ", coordinator);
      attached = true;
      on_attached();
      {
        const std::lock_guard lock(mutex);
        connected = true;
        outgoing.clear();
      }
      std::thread writer([&] { WriteLoop(*stream, handler); });
      v1::CoordinatorMessage message;
      while (refused.ok() && stream->Read(&message)) {
        Handle(message, handler, refused);
      }
      {
        const std::lock_guard lock(mutex);
        connected = false;
      }
      attached = false;
      wake.notify_one();
      stream_context->TryCancel();
      writer.join();
      handler.LeaveEpoch();
    }
    stream_context->TryCancel();
    stream->Finish();
    const std::lock_guard lock(mutex);
    context = nullptr;
    return reached;
  }
};

NodeLink::NodeLink(std::string coordinator, NodeIdentity identity, ClusterSecret secret,
                   TlsFiles tls, Keepalive keepalive)
    : impl_(std::make_unique<Impl>()) {
  impl_->coordinator = std::move(coordinator);
  impl_->identity = std::move(identity);
  impl_->secret = std::move(secret);
  impl_->tls = std::move(tls);
  impl_->keepalive = keepalive;
}

NodeLink::~NodeLink() = default;

absl::Status NodeLink::Run(NodeHandler& handler, const std::function<void()>& on_attached) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(kRetryPauseMax.count()));
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  SetReconnect(arguments);
  SetKeepalive(impl_->keepalive, arguments);
  const auto channel =
      grpc::CreateCustomChannel(impl_->coordinator, ChannelCredentials(impl_->tls), arguments);
  const auto stub = v1::Cluster::NewStub(channel);
  auto pause = kRetryPauseMin;
  bool announced = false;
  std::optional<std::chrono::steady_clock::time_point> was_member;  // When its last stream ended.
  for (;;) {
    absl::Status refused;
    bool reached = impl_->ServeOnce(*stub, handler, on_attached, refused);
    const auto now = std::chrono::steady_clock::now();
    if (absl::IsAlreadyExists(refused) && was_member.has_value() &&
        now < *was_member + kFormerStreamWait) {
      LogWarning(refused.message(), "; it may mean this node's own former stream: trying again");
      reached = false;
    } else if (!refused.ok()) {
      return refused;
    } else if (reached) {
      was_member = now;
    }
    std::unique_lock lock(impl_->mutex);
    if (impl_->stopping) {
      return absl::OkStatus();
    }
    if (reached) {
      LogWarning("coordinator ", impl_->coordinator, " is gone; trying again");
      pause = kRetryPauseMin;
      announced = true;
    } else if (!announced) {
      announced = true;
      lock.unlock();
      const absl::Status why = ExplainTls(impl_->coordinator, impl_->tls);
      lock.lock();
      if (!why.ok()) {
        LogError(why.message(), "; trying again");
      } else {
        LogInfo("waiting for coordinator ", impl_->coordinator);
      }
    }
    impl_->wake.wait_for(lock, pause, [&] { return impl_->stopping; });
    pause = std::min(pause * 2, kRetryPauseMax);
  }
}

void NodeLink::Stop() {
  const std::lock_guard lock(impl_->mutex);
  impl_->stopping = true;
  if (impl_->context != nullptr) {
    impl_->context->TryCancel();
  }
  impl_->wake.notify_all();
}

void NodeLink::Drain(Nanos grace) {
  const std::shared_ptr<grpc::ClientContext> stream = impl_->BeginDrain();
  if (stream == nullptr || grace <= 0) {
    return Stop();
  }
  v1::NodeMessage message;
  message.mutable_leaving();
  impl_->Send(std::move(message));
  impl_->drain_over.Set(std::chrono::system_clock::now() + std::chrono::nanoseconds(grace),
                        [stream](bool expired) {
                          if (expired) {
                            LogWarning("the coordinator did not let this node go in time; leaving");
                            stream->TryCancel();
                          }
                        });
}

bool NodeLink::attached() const { return impl_->attached; }

void NodeLink::ReportResult(plan::StepResult result) {
  v1::NodeMessage message;
  ToProto(result, message.mutable_step_result());
  impl_->Send(std::move(message));
}

void NodeLink::ReportSpill(const plan::SpillReport& report) {
  v1::NodeMessage message;
  v1::SpillReport* proto = message.mutable_spill();
  proto->set_epoch(report.epoch);
  proto->set_spill(report.spill);
  proto->set_ok(report.ok);
  impl_->Send(std::move(message));
}

void NodeLink::ReportLinks(uint64_t epoch, std::vector<LinkReport> links) {
  v1::NodeMessage message;
  v1::NodeLinks* proto = message.mutable_links();
  proto->set_epoch(epoch);
  for (LinkReport& link : links) {
    v1::NodeLink* entry = proto->add_links();
    entry->set_peer(std::move(link.peer));
    entry->set_path(std::move(link.path));
    entry->set_latency_seconds(link.latency_seconds);
    entry->set_bytes_per_second(link.bytes_per_second);
    entry->set_r_squared(link.r_squared);
  }
  impl_->Send(std::move(message));
}

void NodeLink::ReportFault(uint64_t epoch, const absl::Status& status) {
  impl_->Send(FaultMessage(epoch, status));
}

}  // namespace lamina::control
