// SPDX-License-Identifier: Apache-2.0
#include "coordinator/coordinator_metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "daemon/metrics_page.h"

namespace lamina::coordinator {
namespace {

using daemon::MetricLabels;
using daemon::MetricsPage;

double Read(const std::atomic<uint64_t>& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}

MetricLabels With(MetricLabels labels, const std::string& name, const std::string& value) {
  labels.emplace_back(name, value);
  return labels;
}

// Slots of each form of K and V, where they have several, or of fetch_hybrid and of the others.
void AddForms(MetricsPage& page, const NodeReport& node) {
  for (const NodeReport::Form& form : node.forms) {
    MetricLabels labels = {{"node", node.member.name}, {"kv", std::string(KvFormName(form.form))}};
    if (!form.policy.empty()) {
      labels.emplace_back("policy", form.policy);
    }
    page.Gauge("lamina_node_form_slots", "KV slots of a form of K and V.", labels,
               form.kv.slots_total);
    page.Gauge("lamina_node_form_slots_used", "KV slots of a form that hold tokens.", labels,
               form.kv.slots_held);
  }
}

// "serving", or "serving; without m1".
bool IsServing(const EngineStatus& status) { return absl::StartsWith(status.state, "serving"); }

// Share of all slots of the memory nodes that hold K and V, 0 to 1.
double CacheUsage(const EngineStatus& status) {
  double used = 0;
  double total = 0;
  for (const NodeReport& node : status.nodes) {
    used += node.kv.slots_held;
    total += node.kv.slots_total;
  }
  return total == 0 ? 0 : used / total;
}

void AddRequests(MetricsPage& page, const EngineStatus& status, const RequestMetrics& metrics,
                 const MetricLabels& labels) {
  page.Gauge("vllm:num_requests_running", "Sequences in the running batches.", labels,
             status.scheduler.running);
  page.Gauge("vllm:num_requests_waiting", "Sequences in the queue.", labels,
             status.scheduler.waiting);
  page.Gauge("vllm:kv_cache_usage_perc", "Share of KV slots that are used, 0 to 1.", labels,
             CacheUsage(status));
  page.Counter("vllm:num_preemptions_total", "Sequences that lost their KV cache to others.",
               labels, static_cast<double>(status.scheduler.preemptions));
  page.Counter("vllm:prefix_cache_queries_total",
               "Tokens of new sequences that looked for K and V of their first tokens.", labels,
               static_cast<double>(status.scheduler.prefix_cache.first_asked));
  page.Counter("vllm:prefix_cache_hits_total", "Of these, tokens whose K and V were there.", labels,
               static_cast<double>(status.scheduler.prefix_cache.first_found));
  page.Counter("vllm:prompt_tokens_total", "Tokens of prompts that have been read.", labels,
               Read(metrics.prompt_tokens));
  page.Counter("vllm:generation_tokens_total", "Tokens generated.", labels,
               Read(metrics.generated_tokens));
  const std::string help = "Choices of requests, by why they ended.";
  page.Counter("vllm:request_success_total", help, With(labels, "finished_reason", "stop"),
               Read(metrics.stopped));
  page.Counter("vllm:request_success_total", help, With(labels, "finished_reason", "length"),
               Read(metrics.reached_length));
  page.Counter("vllm:request_success_total", help, With(labels, "finished_reason", "abort"),
               Read(metrics.aborted));
}

void AddTimes(MetricsPage& page, const RequestMetrics& metrics, const MetricLabels& labels) {
  const struct {
    const char* name;
    const char* help;
    const Histogram& histogram;
  } times[] = {
      {"vllm:time_to_first_token_seconds", "From arrival to the first token.",
       metrics.time_to_first_token},
      {"vllm:inter_token_latency_seconds", "Between tokens of a request.",
       metrics.inter_token_latency},
      {"vllm:e2e_request_latency_seconds", "From arrival to the last token.", metrics.end_to_end},
      {"vllm:request_queue_time_seconds", "From arrival to the first step.", metrics.queue_time},
      {"vllm:request_prefill_time_seconds", "From the first step to the first token.",
       metrics.prefill_time},
      {"vllm:request_decode_time_seconds", "From the first token to the last.",
       metrics.decode_time},
      {"vllm:request_prompt_tokens", "Tokens of a request's prompt.",
       metrics.prompt_tokens_per_request},
      {"vllm:request_generation_tokens", "Tokens that a request generated.",
       metrics.tokens_per_request},
  };
  for (const auto& time : times) {
    page.Histogram(time.name, time.help, labels, time.histogram.Take());
  }
}

// All that is called vllm:*.
void AddRequestFamilies(MetricsPage& page, const Engine& engine, const EngineStatus& status,
                        const std::string& model_name) {
  const MetricLabels labels = {{"model_name", model_name}, {"engine", "0"}};
  AddRequests(page, status, engine.metrics(), labels);
  AddTimes(page, engine.metrics(), labels);
}

void AddRestores(MetricsPage& page, const RequestMetrics& metrics) {
  page.Histogram(
      "lamina_restore_read_seconds",
      "From the plan that has K and V read out of a spill tier to the last node's report.", {},
      metrics.restore_read.Take());
  page.Histogram("lamina_restore_step_seconds",
                 "From that report to the plan of the first step that works on the sequence.", {},
                 metrics.restore_step.Take());
}

void AddScores(MetricsPage& page, const RequestMetrics& metrics) {
  page.Counter("lamina_scored_texts_total", "Texts that were scored, prompts of completions too.",
               {}, Read(metrics.scored));
}

void AddFailures(MetricsPage& page, const RequestMetrics& metrics) {
  // All from the start: a rate does not see a count that begins at 1.
  for (size_t index = 1; index < RequestMetrics::kCodes; ++index) {  // 0 is OK.
    const auto code = static_cast<absl::StatusCode>(index);
    page.Counter("lamina_requests_failed_total",
                 "Requests that were refused or ended with an error, by its code.",
                 {{"code", absl::AsciiStrToLower(absl::StatusCodeToString(code))}},
                 static_cast<double>(metrics.failures(code)));
  }
}

void AddNodes(MetricsPage& page, const EngineStatus& status) {
  for (const NodeReport& node : status.nodes) {
    const MetricLabels labels = {{"node", node.member.name},
                                 {"role", std::string(core::RoleOf(node.member))}};
    page.Gauge("lamina_node_ready", "1 when the node serves in this epoch.", labels,
               node.member.state == core::MemberState::kReady ? 1 : 0);
    const bool holds_kv = node.member.is_memory || node.member.holds_kv;
    // Counters of a node that is away, or has not told them yet, are not known. As 0 they would
    // grow by all that it has ever done once it is back.
    if (node.reports > 0) {
      daemon::AddNodeCounters(page, "lamina_node_", labels, node.counters);
    }
    if (node.reports > 0 && holds_kv) {
      daemon::AddBandwidth(page, "lamina_node_", labels,
                           node.hello.identity.bandwidth_bytes_per_second, node.counters);
    }
    if (holds_kv) {
      page.Gauge("lamina_node_slots", "KV slots, each for one token.", labels, node.kv.slots_total);
      page.Gauge("lamina_node_slots_used", "KV slots that hold tokens.", labels,
                 node.kv.slots_held);
      page.Gauge("lamina_node_slots_kept", "KV slots that the prefix cache alone holds.", labels,
                 node.kv.slots_kept);
      AddForms(page, node);
    }
  }
}

// Nothing where the cluster file has no prices.
void AddCosts(MetricsPage& page, const EngineStatus& status, double hours) {
  if (status.pool_prices.total() <= 0) {
    return;
  }
  const cost::TokenBill bill =
      cost::BillOfPools(status.pool_prices, status.token_work, hours,
                        {.input = static_cast<double>(status.tokens_prefilled),
                         .output = static_cast<double>(status.tokens_generated),
                         .cached = static_cast<double>(status.tokens_cached)});
  page.Gauge("lamina_price_per_hour", "Of all nodes, in the cluster file's currency.", {},
             status.pool_prices.total());
  const std::string help =
      "Measured cost of 1,000,000 tokens since the coordinator started, by kind.";
  page.Gauge("lamina_cost_per_million_tokens", help, {{"kind", "input"}}, bill.per_million_input);
  page.Gauge("lamina_cost_per_million_tokens", help, {{"kind", "output"}}, bill.per_million_output);
  page.Gauge("lamina_cost_per_million_tokens", help, {{"kind", "cached"}}, bill.per_million_cached);
}

// With the labels of lamina_node_link_*, so that one divides by the other.
void AddMeasuredLinks(MetricsPage& page, const EngineStatus& status) {
  for (const PairLink& link : status.links) {
    const auto from =
        std::find_if(status.nodes.begin(), status.nodes.end(),
                     [&link](const NodeReport& node) { return node.member.name == link.from; });
    const core::Member member = from == status.nodes.end() ? core::Member() : from->member;
    const MetricLabels labels = {{"node", link.from},
                                 {"role", std::string(core::RoleOf(member))},
                                 {"peer", link.report.peer}};
    page.Gauge("lamina_node_link_bandwidth_bytes_per_second",
               "Bandwidth to the peer, measured when the epoch began.", labels,
               link.report.bytes_per_second);
    page.Gauge("lamina_node_link_latency_seconds",
               "Time to the peer, one way, measured when the epoch began.", labels,
               link.report.latency_seconds);
  }
}

void AddLanes(MetricsPage& page, const core::SchedulerStats& stats) {
  for (size_t i = 0; i < stats.lanes.size(); ++i) {
    const MetricLabels labels = {{"lane", absl::StrCat(i)}};
    page.Gauge("lamina_lane_rows", "Sequences in the lane, those that prefill too.", labels,
               stats.lanes[i].rows);
    page.Gauge("lamina_lane_context_tokens", "Context of those sequences.", labels,
               static_cast<double>(stats.lanes[i].context_tokens));
    page.Counter("lamina_lane_steps_total", "Steps that are done.", labels,
                 static_cast<double>(stats.lanes[i].step_done));
  }
}

// With policy auto also what a step was expected to take, for which the policy was chosen.
void AddPolicy(MetricsPage& page, const EngineStatus& status) {
  if (!status.policy.empty()) {
    page.Gauge("lamina_policy_info", "1, with the policy of the epoch.",
               {{"policy", status.policy}}, 1);
  }
  for (const PolicyReport& policy : status.policies) {
    MetricLabels labels = {{"policy", policy.name}};
    if (policy.kv.has_value()) {
      labels.emplace_back("kv", std::string(KvFormName(*policy.kv)));
    }
    page.Gauge("lamina_policy_running", "Sequences that run by a policy that requests may name.",
               labels, policy.running);
  }
  if (!status.policy_figures.has_value()) {
    return;
  }
  for (const core::PolicyFigure& figure : status.policy_figures->figures) {
    if (figure.seconds > 0) {
      page.Gauge("lamina_policy_step_seconds",
                 "What a decode step is expected to take, for which policy auto has chosen.",
                 {{"policy", std::string(cost::KvPolicyName(figure.candidate.policy))}},
                 figure.seconds);
    }
  }
}

}  // namespace

std::string RequestMetricsText(const Engine& engine, const EngineStatus& status,
                               const std::string& model_name) {
  MetricsPage page;
  AddRequestFamilies(page, engine, status, model_name);
  return page.Text();
}

std::string MetricsText(Engine& engine, const std::string& model_name, const Clock& clock,
                        Nanos started) {
  const EngineStatus status = engine.GetStatus();
  MetricsPage page;
  AddRequestFamilies(page, engine, status, model_name);
  AddRestores(page, engine.metrics());
  AddScores(page, engine.metrics());
  AddFailures(page, engine.metrics());
  page.Gauge("lamina_info", "1, with the version.", {{"version", std::string(kVersion)}}, 1);
  page.Gauge("lamina_serving", "1 while the cluster serves.", {}, IsServing(status) ? 1 : 0);
  page.Gauge("lamina_epoch", "Grows with each change of members.", {},
             static_cast<double>(status.epoch));
  AddPolicy(page, status);
  page.Gauge("lamina_uptime_seconds", "Since the coordinator started.", {},
             ToSeconds(clock.Now() - started));
  AddCosts(page, status, ToSeconds(clock.Now() - started) / 3600);
  AddNodes(page, status);
  AddMeasuredLinks(page, status);
  AddLanes(page, status.scheduler);
  return page.Text();
}

std::string JournalMetricsText(const JournalCounts& counts) {
  MetricsPage page;
  page.Gauge("lamina_journal_on", "1 while requests are recorded; 0 once the disk has failed.", {},
             counts.on ? 1 : 0);
  page.Counter("lamina_journal_bytes_total", "Bytes written to the journal.", {},
               static_cast<double>(counts.bytes_written));
  page.Counter("lamina_journal_resumed_total",
               "Requests of the coordinator before, which the journal had.", {},
               static_cast<double>(counts.resumed));
  return page.Text();
}

std::string HealthProblem(Engine& engine) {
  const EngineStatus status = engine.GetStatus();
  return IsServing(status) ? "" : status.state;
}

}  // namespace lamina::coordinator
