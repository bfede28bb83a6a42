// SPDX-License-Identifier: Apache-2.0
#include "client/tracing.h"

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/convert_internal.h"
#include "common/status_macros.h"
#include "control/tls_service.h"
#include "grpcpp/grpcpp.h"
#include "lamina/v1/cluster.grpc.pb.h"

namespace lamina::client {
namespace {

using internal::FromGrpc;

constexpr int kMessageBytesMax = 64 << 20;
constexpr auto kCallSeconds = std::chrono::seconds(30);
// For a node's part to come.
constexpr Nanos kPartMax = Seconds(20);
constexpr auto kPartPoll = std::chrono::milliseconds(20);

std::unique_ptr<v1::Cluster::Stub> MakeStub(const std::string& server, const TlsFiles& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  return v1::Cluster::NewStub(
      grpc::CreateCustomChannel(server, control::ChannelCredentials(tls), arguments));
}

template <typename Response, typename Request>
absl::StatusOr<Response> Call(v1::Cluster::Stub& stub,
                              grpc::Status (v1::Cluster::Stub::*method)(grpc::ClientContext*,
                                                                        const Request&, Response*),
                              const Request& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallSeconds);
  Response response;
  const grpc::Status status = (stub.*method)(&context, request, &response);
  if (!status.ok()) {
    return FromGrpc(status);
  }
  return response;
}

// Until `length` has passed or somebody cancels.
void Wait(Nanos length, const Cancellation& cancellation) {
  const auto cancelled = std::make_shared<absl::Notification>();
  const uint64_t listener = cancellation.Listen([cancelled] { cancelled->Notify(); });
  cancelled->WaitForNotificationWithTimeout(absl::Nanoseconds(length));
  cancellation.Remove(listener);
}

absl::StatusOr<NodeTimeline> ReadNode(v1::Cluster::Stub& stub, const std::string& name,
                                      bool is_memory) {
  v1::ReadTraceRequest request;
  request.set_node(name);
  const Nanos deadline = RealClock().Now() + kPartMax;
  for (;;) {
    const auto response = Call<v1::ReadTraceResponse>(stub, &v1::Cluster::Stub::ReadTrace, request);
    if (response.ok()) {
      NodeTimeline node{.name = name,
                        .is_memory = is_memory,
                        .dropped = response->trace().dropped(),
                        .clock_offset = response->clock_offset(),
                        .clock_error = response->clock_error()};
      const auto& words = response->trace().words();
      constexpr int kWords = telemetry::TraceEvent::kWords;
      for (int i = 0; i + kWords <= words.size(); i += kWords) {
        node.events.push_back(telemetry::TraceEvent::FromWords(words.data() + i));
      }
      return node;
    }
    if (!absl::IsUnavailable(response.status())) {
      return response.status();
    }
    if (RealClock().Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the timeline of ", name, " did not come within ", ToSeconds(kPartMax), " s"));
    }
    std::this_thread::sleep_for(kPartPoll);
  }
}

void TakeOwn(const v1::CollectTraceResponse& response, Timeline& timeline) {
  timeline.epoch = response.epoch();
  timeline.began = response.began();
  timeline.ended = response.ended();
  timeline.dropped = response.dropped();
  for (const v1::TracedStep& step : response.steps()) {
    StepTimeline entry{.epoch = step.epoch(),
                       .lane = step.lane(),
                       .step = step.step(),
                       .planned = step.planned(),
                       .done = step.done(),
                       .rows = step.rows(),
                       .chunk_tokens = step.chunk_tokens()};
    for (const uint32_t request : step.requests()) {
      if (request < static_cast<uint32_t>(response.names_size())) {
        entry.requests.push_back(response.names(static_cast<int>(request)));
      }
    }
    timeline.steps.push_back(std::move(entry));
  }
  for (const v1::TracedRequest& request : response.requests()) {
    timeline.requests.push_back({.request_id = request.request_id(),
                                 .id = request.id(),
                                 .arrived = request.arrived(),
                                 .started = request.started(),
                                 .first_token = request.first_token(),
                                 .ended = request.ended()});
  }
}

}  // namespace

absl::StatusOr<Timeline> RecordTimeline(const ConnectOptions& options, Nanos length,
                                        const Cancellation& cancellation) {
  const auto stub = MakeStub(options.server, options.tls);
  v1::StartTraceRequest start;
  start.set_seconds(static_cast<double>(length) / 1e9);  // Exact at whole seconds, so at the limit.
  LAMINA_RETURN_IF_ERROR(
      Call<v1::StartTraceResponse>(*stub, &v1::Cluster::Stub::StartTrace, start).status());
  Wait(length, cancellation);
  LAMINA_ASSIGN_OR_RETURN(const v1::CollectTraceResponse own,
                          Call<v1::CollectTraceResponse>(*stub, &v1::Cluster::Stub::CollectTrace,
                                                         v1::CollectTraceRequest()));
  Timeline timeline;
  TakeOwn(own, timeline);
  for (const bool is_memory : {false, true}) {
    for (const std::string& name : is_memory ? own.memory_nodes() : own.compute_nodes()) {
      LAMINA_ASSIGN_OR_RETURN(NodeTimeline node, ReadNode(*stub, name, is_memory));
      node.prefill = !is_memory && timeline.nodes.size() + own.prefill_nodes() >=
                                       static_cast<size_t>(own.compute_nodes_size());
      timeline.nodes.push_back(std::move(node));
    }
  }
  if (own.prefill_nodes() > 0) {
    timeline.prefill_lane = own.prefill_lane();
  }
  return timeline;
}

}  // namespace lamina::client
