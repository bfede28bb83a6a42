// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/version.h"
#include "control/counters_codec_service.h"
#include "control/epoch_codec_service.h"
#include "coordinator/coordinator_metrics.h"
#include "coordinator/inference_service.h"
#include "coordinator/member_change_service.h"
#include "coordinator/node_stream_service.h"
#include "coordinator/status_codec_service.h"

namespace lamina::coordinator {
namespace {

constexpr double kTraceSecondsMax = 60;

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
