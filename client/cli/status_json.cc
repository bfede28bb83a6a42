// SPDX-License-Identifier: Apache-2.0
#include "client/cli/status_json.h"

#include "client/cli/token_bill.h"

namespace lamina::cli {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const client::LinkStatus& link) {
  return {{"peer", link.peer},         {"bytes", link.bytes},
          {"messages", link.messages}, {"seconds", link.seconds},
          {"failures", link.failures}, {"waited_seconds", link.waited_seconds}};
}

Json ToJson(double seconds_sum, uint64_t count, const client::Distribution& distribution) {
  return {{"seconds_sum", seconds_sum},
          {"count", count},
          {"upper_seconds", distribution.upper_seconds},
          {"counts", distribution.counts}};
}

template <typename Value>
Json ObjectOf(const std::vector<std::pair<std::string, Value>>& pairs) {
  Json json = Json::object();
  for (const auto& [name, value] : pairs) {
    json[name] = value;
  }
  return json;
}

Json ToJson(const client::SpillStatus& spill) {
  if (spill.capacity_bytes == 0) {
    return nullptr;
  }
  return {{"capacity_bytes", spill.capacity_bytes},
          {"used_bytes", spill.used_bytes},
          {"bytes_out", spill.bytes_out},
          {"bytes_in", spill.bytes_in},
          {"sequences_out", spill.sequences_out},
          {"sequences_in", spill.sequences_in},
          {"cached_tokens_out", spill.cached_tokens_out},
          {"cached_tokens_in", spill.cached_tokens_in},
          {"failures", spill.failures},
          {"seconds_out", spill.seconds_out},
          {"seconds_in", spill.seconds_in},
          {"queued_seconds", spill.queued_seconds},
          {"reading_seconds", spill.reading_seconds},
          {"behind_seconds", spill.behind_seconds},
          {"copying_seconds", spill.copying_seconds},
          {"ahead_bytes", spill.ahead_bytes},
          {"write_bytes_per_second", spill.write_bytes_per_second},
          {"read_bytes_per_second", spill.read_bytes_per_second}};
}

Json ToJson(const client::BusStatus& bus) {
  return {{"direction", bus.direction},
          {"bytes_per_second", bus.bytes_per_second},
          {"busy_seconds", bus.busy_seconds},
          {"bytes", ObjectOf(bus.bytes)}};
}

Json ToJson(const client::MemoryFormula& formula) {
  if (formula.paper.empty()) {
    return nullptr;
  }
  return {{"paper", formula.paper},       {"weights", formula.weights},
          {"windows", formula.windows},   {"activations", formula.activations},
          {"resident", formula.resident}, {"heads", formula.heads}};
}

Json ToJson(const client::NodeStatus& node) {
  Json buses = Json::array();
  for (const client::BusStatus& bus : node.buses) {
    buses.push_back(ToJson(bus));
  }
  Json links = Json::array();
  for (const client::LinkStatus& link : node.links) {
    links.push_back(ToJson(link));
  }
  Json forms = Json::array();
  for (const client::NodeStatus::SlotForm& form : node.slot_forms) {
    forms.push_back({{"kv", form.kv},
                     {"policy", form.policy},
                     {"used", form.used},
                     {"total", form.total},
                     {"kept", form.kept}});
  }
  return {{"name", node.name},
          {"role", node.role},
          {"state", node.state},
          {"replica", node.replica},
          {"layers", node.layers},
          {"device", node.device},
          {"transport", node.transport},
          {"windows", node.windows},
          {"kernels", node.kernels},
          {"slots_used", node.slots_used},
          {"slots_total", node.slots_total},
          {"slots_kept", node.slots_kept},
          {"slot_forms", forms},
          {"busy_share", node.busy_share},
          {"bytes_sent", node.bytes_sent},
          {"bytes_received", node.bytes_received},
          {"refused_messages", node.refused_messages},
          {"pid", node.pid},
          {"bandwidth_bytes_per_second", node.bandwidth_bytes_per_second},
          {"kv_bytes_read", node.kv_bytes_read},
          {"busy_seconds", node.busy_seconds},
          {"units", node.units},
          {"replayed_units", node.replayed_units},
          {"device_units", node.device_units},
          {"weight_bytes", node.weight_bytes},
          {"memory_bytes", ObjectOf(node.memory)},
          {"memory_budget", node.memory_budget},
          {"memory_formula", ToJson(node.memory_formula)},
          {"mean_extent_tokens", node.mean_extent_tokens},
          {"spill", ToJson(node.spill)},
          {"buses", buses},
          {"data_thread", node.data_thread},
          {"data_thread_still_seconds", node.data_thread_still_seconds},
          {"reports", node.reports},
          {"part_seconds", ObjectOf(node.parts)},
          {"refusals", ObjectOf(node.refusals)},
          {"links", links}};
}

}  // namespace

Json ToJson(const client::ClusterStatus& status) {
  Json nodes = Json::array();
  for (const client::NodeStatus& node : status.nodes) {
    nodes.push_back(ToJson(node));
  }
  Json lanes = Json::array();
  for (const client::LaneStatus& lane : status.lanes) {
    lanes.push_back({{"lane", lane.lane},
                     {"rows", lane.rows},
                     {"context_tokens", lane.context_tokens},
                     {"step", lane.step},
                     {"prefill", lane.prefill}});
  }
  Json policies = Json::array();
  for (const client::ClusterStatus::PolicyStatus& policy : status.policies) {
    policies.push_back({{"name", policy.name},
                        {"running", policy.running},
                        {"lossy", policy.lossy},
                        {"kv", policy.kv}});
  }
  Json figures = Json::array();
  for (const client::ClusterStatus::PolicyFigure& figure : status.policy_figures) {
    figures.push_back({{"policy", figure.policy},
                       {"chosen", figure.chosen},
                       {"why_not", figure.why_not},
                       {"seconds", figure.seconds},
                       {"prompt_seconds", figure.prompt_seconds},
                       {"dense_seconds", figure.dense_seconds},
                       {"attention_seconds", figure.attention_seconds},
                       {"transfer_seconds", figure.transfer_seconds},
                       {"making_seconds", figure.making_seconds},
                       {"share", figure.share},
                       {"tokens_max", figure.tokens_max},
                       {"rows", figure.rows},
                       {"rows_waiting", figure.rows_waiting}});
  }
  Json links = Json::array();
  for (const client::MeasuredLink& link : status.links) {
    links.push_back({{"from", link.from},
                     {"to", link.to},
                     {"path", link.path},
                     {"latency_seconds", link.latency_seconds},
                     {"bytes_per_second", link.bytes_per_second},
                     {"exchange_seconds", link.exchange_seconds},
                     {"odd", link.odd}});
  }
  return {{"epoch", status.epoch},
          {"state", status.state},
          {"model", status.model},
          {"version", status.version},
          {"stages", status.stages},
          {"stages_odd", status.stages_odd},
          {"policy", status.policy},
          {"policy_choice", status.policy_choice},
          {"policies", policies},
          {"policy_figures", figures},
          {"partition", status.partition},
          {"attention", status.attention},
          {"prefill", status.prefill},
          {"chunk_choice", status.chunk_choice},
          {"fetch_choice", status.fetch_choice},
          {"lane_choice", status.lane_choice},
          {"lane_moves", status.lane_moves},
          {"nodes", nodes},
          {"lanes", lanes},
          {"links", links},
          {"warnings", status.warnings},
          {"running", status.running},
          {"waiting", status.waiting},
          {"tokens_per_second", status.tokens_per_second},
          {"tokens_generated", status.tokens_generated},
          {"tokens_prefilled", status.token_cost.input_tokens},
          {"cost", BillToJson(status, BillBetween({}, status, status.uptime_seconds))},
          {"requests_finished", status.requests_finished},
          {"requests_failed", status.requests_failed},
          {"preemptions", status.preemptions},
          {"uptime_seconds", status.uptime_seconds},
          {"time_to_first_token",
           ToJson(status.ttft_seconds_sum, status.ttft_count, status.time_to_first_token)},
          {"inter_token_latency",
           ToJson(status.itl_seconds_sum, status.itl_count, status.inter_token_latency)}};
}

}  // namespace lamina::cli
