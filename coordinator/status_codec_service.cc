// SPDX-License-Identifier: Apache-2.0
#include "coordinator/status_codec_service.h"

namespace lamina::coordinator {

void AddLinks(const EngineStatus& status, v1::GetStatusResponse* response) {
  for (const PairLink& link : status.links) {
    v1::Link* proto = response->add_links();
    proto->set_from(link.from);
    proto->set_to(link.report.peer);
    proto->set_path(link.report.path);
    proto->set_latency_seconds(link.report.latency_seconds);
    proto->set_bytes_per_second(link.report.bytes_per_second);
    proto->set_exchange_seconds(link.exchange_seconds);
    proto->set_odd(link.odd);
  }
}

void AddLanes(const EngineStatus& status, v1::GetStatusResponse* response) {
  for (size_t i = 0; i < status.scheduler.lanes.size(); ++i) {
    v1::Lane* lane = response->add_lanes();
    lane->set_lane(static_cast<uint32_t>(i));
    lane->set_rows(status.scheduler.lanes[i].rows);
    lane->set_context_tokens(status.scheduler.lanes[i].context_tokens);
    lane->set_step(status.scheduler.lanes[i].step_done);
    lane->set_prefill(status.scheduler.lanes[i].prefill);
  }
}

void AddSlotForms(const NodeReport& report, v1::Node* node) {
  for (const NodeReport::Form& form : report.forms) {
    v1::SlotForm* const proto = node->add_slot_forms();
    proto->set_kv(std::string(KvFormName(form.form)));
    proto->set_policy(form.policy);
    proto->set_used(form.kv.slots_held + form.kv.slots_quarantined);
    proto->set_total(form.kv.slots_total);
    proto->set_kept(form.kv.slots_kept);
  }
}

void AddPolicies(const EngineStatus& status, v1::GetStatusResponse* response) {
  for (const PolicyReport& policy : status.policies) {
    v1::PolicyStatus* proto = response->add_policies();
    proto->set_name(policy.name);
    proto->set_running(policy.running);
    proto->set_lossy(policy.lossy);
    proto->set_kv(policy.kv.has_value() ? std::string(KvFormName(*policy.kv)) : "");
  }
  if (!status.policy_figures.has_value()) {
    return;
  }
  for (const core::PolicyFigure& figure : status.policy_figures->figures) {
    const cost::KvPolicy policy = figure.candidate.policy;
    v1::PolicyFigure* proto = response->add_policy_figures();
    proto->set_policy(std::string(cost::KvPolicyName(policy)));
    proto->set_why_not(figure.candidate.why_not);
    proto->set_seconds(figure.seconds);
    proto->set_prompt_seconds(figure.prompts);
    proto->set_dense_seconds(figure.step.dense);
    proto->set_attention_seconds(figure.step.attention);
    proto->set_transfer_seconds(figure.step.transfer);
    proto->set_making_seconds(figure.step.making);
    proto->set_share(figure.step.share);
    proto->set_tokens_max(static_cast<uint64_t>(figure.candidate.tokens_max));
    proto->set_chosen(policy == status.policy_figures->policy);
    proto->set_rows(figure.rows);
    proto->set_rows_waiting(figure.waiting);
  }
}

}  // namespace lamina::coordinator
