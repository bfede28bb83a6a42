// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/match.h"
#include "client/convert_internal.h"
#include "common/check.h"
#include "common/fnv1a.h"
#include "common/trace_context.h"

namespace lamina::client::internal {
namespace {

void FillSampling(const GenerateOptions& o, v1::Sampling& sampling) {
  const auto set = [&sampling](const auto& value, auto setter) {
    if (value.has_value()) {
      (sampling.*setter)(*value);
    }
  };
  set(o.temperature, &v1::Sampling::set_temperature);
  set(o.top_k, &v1::Sampling::set_top_k);
  set(o.top_p, &v1::Sampling::set_top_p);
  set(o.min_p, &v1::Sampling::set_min_p);
  set(o.repetition_penalty, &v1::Sampling::set_repetition_penalty);
  set(o.presence_penalty, &v1::Sampling::set_presence_penalty);
  set(o.frequency_penalty, &v1::Sampling::set_frequency_penalty);
  set(o.seed, &v1::Sampling::set_seed);
  set(o.logprobs, &v1::Sampling::set_logprobs);
  for (const auto& [token, bias] : o.logit_bias) {
    v1::LogitBias& entry = *sampling.add_logit_bias();
    entry.set_token(token);
    entry.set_bias(bias);
  }
  sampling.mutable_allowed_tokens()->Add(o.allowed_tokens.begin(), o.allowed_tokens.end());
  switch (o.form.kind) {
    case OutputForm::Kind::kAny:
      break;
    case OutputForm::Kind::kJsonSchema:
      sampling.mutable_form()->set_json_schema(o.form.text);
      break;
    case OutputForm::Kind::kRegex:
      sampling.mutable_form()->set_regex(o.form.text);
      break;
    case OutputForm::Kind::kGrammar:
      sampling.mutable_form()->set_grammar(o.form.text);
      break;
    case OutputForm::Kind::kStructuralTag:
      sampling.mutable_form()->set_structural_tag(o.form.text);
      break;
  }
}

FinishReason FromProto(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return FinishReason::kStop;
    case v1::FINISH_REASON_LENGTH:
      return FinishReason::kLength;
    case v1::FINISH_REASON_CANCELLED:
      return FinishReason::kCancelled;
    default:  // Unspecified, and what a newer server may send.
      return FinishReason::kNotFinished;
  }
}

template <typename List>
std::vector<TokenLogprob> LogprobsOf(const List& tokens) {
  std::vector<TokenLogprob> out;
  for (const v1::TokenLogprob& token : tokens) {
    out.push_back({.token = token.token(), .logprob = token.logprob(), .text = token.text()});
  }
  return out;
}

TokenOutput FromProto(const v1::TokenOutput& in) {
  TokenOutput out = {.token = in.token(), .text = in.text(), .ends = in.ends()};
  if (in.has_logprob()) {
    out.logprob = in.logprob();
  }
  out.top = LogprobsOf(in.top());
  return out;
}

Distribution FromProto(const v1::Distribution& distribution) {
  return {
      .upper_seconds = {distribution.upper_seconds().begin(), distribution.upper_seconds().end()},
      .counts = {distribution.counts().begin(), distribution.counts().end()}};
}

SpillStatus FromProto(const v1::SpillCount& spill) {
  return {.capacity_bytes = spill.capacity_bytes(),
          .used_bytes = spill.used_bytes(),
          .bytes_out = spill.bytes_out(),
          .bytes_in = spill.bytes_in(),
          .sequences_out = spill.sequences_out(),
          .sequences_in = spill.sequences_in(),
          .cached_tokens_out = spill.cached_tokens_out(),
          .cached_tokens_in = spill.cached_tokens_in(),
          .failures = spill.failures(),
          .seconds_out = spill.seconds_out(),
          .seconds_in = spill.seconds_in(),
          .queued_seconds = spill.reads().queued_seconds(),
          .reading_seconds = spill.reads().reading_seconds(),
          .behind_seconds = spill.reads().behind_seconds(),
          .copying_seconds = spill.reads().copying_seconds(),
          .ahead_bytes = spill.reads().ahead_bytes(),
          .write_bytes_per_second = spill.write_bytes_per_second(),
          .read_bytes_per_second = spill.read_bytes_per_second()};
}

MemoryFormula FromProto(const v1::MemoryFormula& formula) {
  return {.paper = formula.paper(),
          .weights = formula.weights(),
          .windows = formula.windows(),
          .activations = formula.activations(),
          .resident = formula.resident(),
          .heads = formula.heads()};
}

std::vector<NodeStatus::SlotForm> SlotFormsOf(const v1::Node& node) {
  std::vector<NodeStatus::SlotForm> forms;
  for (const v1::SlotForm& form : node.slot_forms()) {
    forms.push_back({.kv = form.kv(),
                     .used = form.used(),
                     .total = form.total(),
                     .kept = form.kept(),
                     .policy = form.policy()});
  }
  return forms;
}

NodeStatus FromProto(const v1::Node& node) {
  NodeStatus status = {.name = node.name(),
                       .role = node.role(),
                       .state = node.state(),
                       .replica = node.replica(),
                       .layers = node.layers(),
                       .device = node.device(),
                       .transport = node.transport(),
                       .windows = node.windows(),
                       .kernels = node.kernels(),
                       .slots_used = node.slots_used(),
                       .slots_total = node.slots_total(),
                       .slots_kept = node.slots_kept(),
                       .slot_forms = SlotFormsOf(node),
                       .busy_share = node.busy_share(),
                       .bytes_sent = node.bytes_sent(),
                       .bytes_received = node.bytes_received(),
                       .refused_messages = node.refused_messages(),
                       .pid = node.pid(),
                       .bandwidth_bytes_per_second = node.bandwidth_bytes_per_second(),
                       .kv_bytes_read = node.kv_bytes_read(),
                       .busy_seconds = node.busy_seconds(),
                       .units = node.units(),
                       .weight_bytes = node.detail().weight_bytes(),
                       .memory_budget = node.detail().memory_budget(),
                       .memory_formula = FromProto(node.detail().memory_formula()),
                       .replayed_units = node.detail().replayed_units(),
                       .device_units = node.detail().device_units(),
                       .mean_extent_tokens = node.mean_extent_tokens(),
                       .spill = FromProto(node.detail().spill()),
                       .data_thread = node.detail().data_thread(),
                       .data_thread_still_seconds = node.data_thread_still_seconds(),
                       .reports = node.reports()};
  for (const v1::PartTime& part : node.detail().parts()) {
    status.parts.emplace_back(part.part(), part.seconds());
  }
  status.memory.assign(node.detail().memory().begin(), node.detail().memory().end());
  std::sort(status.memory.begin(), status.memory.end());
  for (const v1::BusCount& bus : node.detail().buses()) {
    BusStatus& entry = status.buses.emplace_back();
    entry.direction = bus.direction();
    entry.bytes_per_second = bus.bytes_per_second();
    entry.busy_seconds = bus.busy_seconds();
    entry.bytes.assign(bus.bytes().begin(), bus.bytes().end());
    std::sort(entry.bytes.begin(), entry.bytes.end());
  }
  for (const v1::RefusalCount& refusal : node.detail().refusals()) {
    status.refusals.emplace_back(refusal.reason(), refusal.count());
  }
  for (const v1::LinkCount& link : node.detail().links()) {
    status.links.push_back({.peer = link.peer(),
                            .bytes = link.bytes(),
                            .messages = link.puts(),
                            .seconds = link.seconds(),
                            .failures = link.failures(),
                            .waited_seconds = link.waited_seconds()});
  }
  return status;
}

v1::BeamSearch::EarlyStopping ToProto(BeamStop stop) {
  switch (stop) {
    case BeamStop::kHeuristic:
      return v1::BeamSearch::EARLY_STOPPING_HEURISTIC;
    case BeamStop::kFull:
      return v1::BeamSearch::EARLY_STOPPING_FULL;
    case BeamStop::kNever:
      return v1::BeamSearch::EARLY_STOPPING_NEVER;
  }
  return v1::BeamSearch::EARLY_STOPPING_HEURISTIC;
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  // The library's words where no ping is answered (control/keepalive_service.h).
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
      absl::StrContains(status.error_message(), "keepalive watchdog timeout")) {
    return absl::UnavailableError("the coordinator's host no longer answers; try again later");
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

void FillMetadata(const GenerateOptions& options, grpc::ClientContext& context) {
  if (IsRequestId(options.followed_id)) {
    context.AddMetadata(kRequestIdHeader, options.followed_id);
  }
  if (ParseTraceParent(options.trace_parent).has_value()) {
    context.AddMetadata(kTraceParentHeader, TraceParentToPassOn(options.trace_parent));
    if (IsTraceState(options.trace_state)) {
      context.AddMetadata(kTraceStateHeader, options.trace_state);
    }
  }
}

void FillChat(const std::vector<ChatMessage>& messages, const ChatOptions& options,
              v1::Chat& chat) {
  for (const ChatMessage& message : messages) {
    v1::ChatMessage& entry = *chat.add_messages();
    entry.set_role(message.role);
    entry.set_content(message.content);
    entry.set_json(message.json);
  }
  chat.set_tools_json(options.tools_json);
  chat.set_template_arguments_json(options.arguments_json);
  if (!options.add_generation_prompt) {
    chat.set_add_generation_prompt(false);
  }
  chat.set_continue_final_message(options.continue_final_message);
  chat.set_suffix(options.suffix);
}

v1::GenerateRequest ToProto(const GenerateOptions& o) {
  v1::GenerateRequest request;
  request.set_request_id(o.request_id);
  if (const auto* text = std::get_if<std::string>(&o.prompt)) {
    request.set_text(*text);
  } else if (const auto* tokens = std::get_if<std::vector<TokenId>>(&o.prompt)) {
    request.mutable_tokens()->mutable_ids()->Add(tokens->begin(), tokens->end());
  } else {
    FillChat(std::get<std::vector<ChatMessage>>(o.prompt), o.chat, *request.mutable_chat());
  }
  if (o.max_tokens.has_value()) {
    request.set_max_tokens(*o.max_tokens);
  }
  if (o.min_tokens.has_value()) {
    request.set_min_tokens(*o.min_tokens);
  }
  if (o.n.has_value()) {
    request.set_n(*o.n);
  }
  if (o.best_of.has_value()) {
    request.set_best_of(*o.best_of);
  }
  if (o.beams.width > 0) {
    v1::BeamSearch& search = *request.mutable_beam_search();
    search.set_width(o.beams.width);
    search.set_length_penalty(o.beams.length_penalty);
    search.set_early_stopping(ToProto(o.beams.early_stopping));
  }
  request.mutable_stop()->Add(o.stop.begin(), o.stop.end());
  request.mutable_stop_tokens()->Add(o.stop_tokens.begin(), o.stop_tokens.end());
  request.set_ignore_eos(o.ignore_eos);
  request.set_keep_special(o.keep_special);
  request.set_include_stop(o.include_stop);
  if (o.prompt_tokens_max.has_value()) {
    request.set_prompt_tokens_max(*o.prompt_tokens_max);
  }
  request.set_truncate_end(o.truncate_end);
  request.set_return_prompt(o.return_prompt);
  request.set_priority(o.priority);
  request.set_cache_salt(o.cache_salt);
  request.set_policy(o.policy);
  request.set_kv(o.kv);
  FillSampling(o, *request.mutable_sampling());
  return request;
}

v1::AttachRequest ToProto(const AnswerPlace& place) {
  v1::AttachRequest request;
  request.set_request_id(place.request_id);
  request.set_digest(Fnv1a().value());
  for (size_t i = 0; i < place.choices.size(); ++i) {
    const ReceivedChoice& choice = place.choices[i];
    if (i == 0) {
      request.set_index(choice.tokens);
      request.set_digest(choice.digest.value());
    } else {
      v1::ReceivedChoice& further = *request.add_further();
      further.set_index(choice.tokens);
      further.set_digest(choice.digest.value());
    }
  }
  return request;
}

v1::ScoreRequest ToProto(const Prompt& prompt, const ScoreOptions& options) {
  v1::ScoreRequest request;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    request.set_text(*text);
  } else {
    const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt);
    LAMINA_CHECK(tokens != nullptr);
    request.mutable_tokens()->mutable_ids()->Add(tokens->begin(), tokens->end());
  }
  if (options.logprobs.has_value()) {
    request.set_logprobs(*options.logprobs);
  }
  request.set_decode_from(options.decode_from);
  request.set_policy(options.policy);
  request.set_kv(options.kv);
  return request;
}

Chunk FromProto(const v1::GenerateResponse& response) {
  Chunk chunk = {.request_id = response.request_id(),
                 .index = response.index(),
                 .text = response.text(),
                 .finish_reason = FromProto(response.finish_reason()),
                 .stop = response.stop(),
                 .prompt_tokens_done = response.prompt_tokens_done(),
                 .prompt_tokens = response.prompt_tokens(),
                 .prompt = {response.prompt().begin(), response.prompt().end()}};
  for (const v1::TokenOutput& token : response.tokens()) {
    chunk.tokens.push_back(FromProto(token));
  }
  const v1::Usage& usage = response.usage();
  chunk.usage = {.prompt_tokens = usage.prompt_tokens(),
                 .completion_tokens = usage.completion_tokens(),
                 .ttft_ms = usage.ttft_ms(),
                 .tpot_ms = usage.tpot_ms(),
                 .seed = usage.seed(),
                 .preemptions = usage.preemptions(),
                 .cached_tokens = usage.cached_tokens(),
                 .left_out_tokens = usage.left_out_tokens(),
                 .lossy = usage.lossy()};
  return chunk;
}

ScoreResult FromProto(const v1::ScoreResponse& response) {
  ScoreResult result = {.tokens = {response.tokens().begin(), response.tokens().end()},
                        .logprobs = {response.logprobs().begin(), response.logprobs().end()},
                        .nll_sum = response.nll_sum(),
                        .perplexity = response.perplexity(),
                        .texts = {response.texts().begin(), response.texts().end()},
                        .lossy = response.lossy()};
  for (const v1::TokenRank& rank : response.ranks()) {
    result.ranks.push_back({.rank = rank.rank(), .top = LogprobsOf(rank.top())});
  }
  return result;
}

std::vector<Policy> PoliciesOf(const v1::Model& model) {
  std::vector<Policy> policies;
  for (const v1::Policy& policy : model.policies()) {
    policies.push_back({.name = policy.name(), .lossy = policy.lossy(), .kv = policy.kv()});
  }
  return policies;
}

ModelInfo FromProto(const v1::Model& model) {
  const v1::Sampling& advised = model.sampling_defaults();
  SamplingDefaults sampling;
  const auto take = [](bool given, auto value, auto& out) {
    if (given) {
      out = value;
    }
  };
  take(advised.has_temperature(), advised.temperature(), sampling.temperature);
  take(advised.has_top_k(), advised.top_k(), sampling.top_k);
  take(advised.has_top_p(), advised.top_p(), sampling.top_p);
  take(advised.has_min_p(), advised.min_p(), sampling.min_p);
  take(advised.has_repetition_penalty(), advised.repetition_penalty(), sampling.repetition_penalty);
  return {.id = model.id(),
          .architecture = model.architecture(),
          .layers = model.layers(),
          .vocabulary = model.vocabulary(),
          .sequence_tokens_max = model.sequence_tokens_max(),
          .kv_bytes_per_token = model.kv_bytes_per_token(),
          .chat_template = model.chat_template(),
          .bos_token = model.bos_token(),
          .eos_token = model.eos_token(),
          .sampling = sampling,
          .names = {model.names().begin(), model.names().end()},
          .lossy = model.lossy(),
          .policies = PoliciesOf(model),
          .policy = model.policy()};
}

ClusterStatus::TokenCost::Work FromProto(const v1::TokenWork& work) {
  return {.input = work.input(), .output = work.output(), .cached = work.cached()};
}

std::vector<ClusterStatus::PolicyStatus> PoliciesOf(const v1::GetStatusResponse& response) {
  std::vector<ClusterStatus::PolicyStatus> policies;
  for (const v1::PolicyStatus& policy : response.policies()) {
    policies.push_back({.name = policy.name(),
                        .running = policy.running(),
                        .lossy = policy.lossy(),
                        .kv = policy.kv()});
  }
  return policies;
}

std::vector<ClusterStatus::PolicyFigure> FiguresOf(const v1::GetStatusResponse& response) {
  std::vector<ClusterStatus::PolicyFigure> figures;
  for (const v1::PolicyFigure& figure : response.policy_figures()) {
    figures.push_back({.policy = figure.policy(),
                       .why_not = figure.why_not(),
                       .seconds = figure.seconds(),
                       .dense_seconds = figure.dense_seconds(),
                       .attention_seconds = figure.attention_seconds(),
                       .transfer_seconds = figure.transfer_seconds(),
                       .making_seconds = figure.making_seconds(),
                       .share = figure.share(),
                       .tokens_max = figure.tokens_max(),
                       .chosen = figure.chosen(),
                       .prompt_seconds = figure.prompt_seconds(),
                       .rows = figure.rows(),
                       .rows_waiting = figure.rows_waiting()});
  }
  return figures;
}

ClusterStatus FromProto(const v1::GetStatusResponse& response) {
  ClusterStatus status = {.epoch = response.epoch(),
                          .state = response.state(),
                          .model = response.model(),
                          .version = response.version(),
                          .stages = response.stages(),
                          .stages_odd = response.stages_odd(),
                          .policy = response.policy(),
                          .policy_choice = response.policy_choice(),
                          .policies = PoliciesOf(response),
                          .policy_figures = FiguresOf(response),
                          .partition = response.partition(),
                          .attention = response.attention(),
                          .prefill = response.prefill(),
                          .fetch_choice = response.fetch_choice(),
                          .chunk_choice = response.chunk_choice(),
                          .lane_choice = response.lane_choice(),
                          .lane_moves = response.lane_moves(),
                          .running = response.running(),
                          .waiting = response.waiting(),
                          .tokens_per_second = response.tokens_per_second(),
                          .preemptions = response.preemptions(),
                          .requests_finished = response.requests_finished(),
                          .requests_failed = response.requests_failed(),
                          .tokens_generated = response.tokens_generated(),
                          .ttft_seconds_sum = response.ttft_seconds_sum(),
                          .ttft_count = response.ttft_count(),
                          .itl_seconds_sum = response.itl_seconds_sum(),
                          .itl_count = response.itl_count(),
                          .time_to_first_token = FromProto(response.time_to_first_token()),
                          .inter_token_latency = FromProto(response.inter_token_latency()),
                          .uptime_seconds = response.uptime_seconds()};
  const v1::TokenCost& cost = response.token_cost();
  status.token_cost = {.compute_price = cost.compute_price(),
                       .prompts_price = cost.prompts_price(),
                       .memory_price = cost.memory_price(),
                       .compute = FromProto(cost.compute()),
                       .memory = FromProto(cost.memory()),
                       .input_tokens = cost.input_tokens(),
                       .cached_tokens = cost.cached_tokens()};
  for (const v1::Node& node : response.nodes()) {
    status.nodes.push_back(FromProto(node));
  }
  for (const v1::Link& link : response.links()) {
    status.links.push_back({.from = link.from(),
                            .to = link.to(),
                            .path = link.path(),
                            .latency_seconds = link.latency_seconds(),
                            .bytes_per_second = link.bytes_per_second(),
                            .exchange_seconds = link.exchange_seconds(),
                            .odd = link.odd()});
  }
  status.warnings = {response.warnings().begin(), response.warnings().end()};
  for (const v1::Lane& lane : response.lanes()) {
    status.lanes.push_back({.lane = lane.lane(),
                            .rows = lane.rows(),
                            .context_tokens = lane.context_tokens(),
                            .step = lane.step(),
                            .prefill = lane.prefill()});
  }
  return status;
}

}  // namespace lamina::client::internal
