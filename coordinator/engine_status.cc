// SPDX-License-Identifier: Apache-2.0
#include "coordinator/engine_status.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/attention_arithmetic.h"
#include "coordinator/node_costs.h"

namespace lamina::coordinator {
namespace {

// Before a node has run so many slices, their mean time says little.
constexpr uint64_t kSlicesMin = 1000;

// By node: the time of a slice with as many rows as lanes have now.
std::map<std::string, double> SliceSeconds(const StatusSources& sources) {
  uint32_t rows = 1;
  for (const core::SchedulerStats::LaneStats& lane : sources.scheduler.Stats().lanes) {
    rows = std::max(rows, lane.prefill ? 0u : lane.rows);
  }
  std::map<std::string, double> seconds;
  for (const auto& [name, node] : sources.nodes.all()) {
    if (node.counters.units >= kSlicesMin) {
      seconds[name] = node.counters.unit_seconds_fixed + rows * node.counters.unit_seconds_slope;
    }
  }
  return seconds;
}

// NodeReport::Form::policy
std::string WhoseSlots(const core::MemoryNodeShare& share) {
  if (share.paths.empty()) {
    return "";
  }
  return share.paths.Has(plan::AttentionPath::kHybrid) ? "fetch_hybrid" : "others";
}

}  // namespace

EngineStatus StatusBuilder::Build(const StatusSources& sources) const {
  const core::Membership& membership = sources.membership;
  const std::string& uri = sources.transport.uri();
  EngineStatus status{.epoch = membership.epoch(),
                      .state = sources.draining ? "draining" : membership.Describe(),
                      .transport = uri.substr(0, uri.find(':')),
                      .scheduler = sources.scheduler.Stats(),
                      .stages = sources.splits.Describe(),
                      .policy = PolicyOf(sources),
                      .policies = PoliciesOf(sources.scheduler),
                      .partition = DescribePartition(sources),
                      .attention = sources.epoch == nullptr ? "" : sources.epoch->attention,
                      .prefill = DescribePrefill(membership)};
  const bool settled = options_.fetch.hybrid.has_value() || options_.policy_auto.has_value();
  if (settled && sources.epoch != nullptr && !sources.epoch->plans_fetching()) {
    status.scheduler.fetch_share.why = sources.epoch->fetch_why;
  }
  if (std::string& why = status.scheduler.fetch_share.why;
      !why.empty() && sources.epoch != nullptr &&
      (sources.epoch->config().activation_width > 0 ||
       sources.epoch->config().made_tokens_max > 0)) {
    MeasuredNodes nodes;
    for (const core::Member* member : membership.compute_members()) {
      if (const AttachedNode* node = sources.nodes.Find(member->name); node != nullptr) {
        nodes.compute.push_back(node);
      }
    }
    why += DescribeFits(FetchFitsOf(nodes));
  }
  if (options_.policy_auto.has_value()) {
    const bool chosen = sources.policy_choice.has_value();
    status.policy_figures = sources.policy_choice;
    status.policy_choice = chosen ? sources.policy_choice->why : "";
  }
  if (const std::string joining = sources.nodes.DescribeJoining();
      !joining.empty() && !sources.draining) {
    absl::StrAppend(&status.state, "; ", joining);
  }
  if (membership.memory_members().empty() && !membership.kv_members().empty()) {
    status.scheduler.sub_batches.why.clear();  // Policy local: rows leave for nowhere.
  }
  status.stages_odd = sources.splits.OddSpeeds(SliceSeconds(sources));
  status.warnings = Warnings(sources, status.prefill);
  std::vector<core::KnownLink> known;
  for (const core::Member& member : membership.all()) {
    status.nodes.push_back(ReportOf(member, sources));
    if (const AttachedNode* node = sources.nodes.Find(member.name); node != nullptr) {
      for (const control::LinkReport& link : node->links) {
        status.links.push_back({.from = member.name, .report = link});
      }
      for (core::KnownLink& link : KnownLinksOf(*node)) {
        known.push_back(std::move(link));
      }
    }
  }
  const std::vector<std::string> odd = core::OddLinks(known);
  for (size_t i = 0; i < known.size(); ++i) {
    status.links[i].exchange_seconds = known[i].exchange_seconds;
    status.links[i].odd = odd[i];
  }
  return status;
}

std::vector<std::string> StatusBuilder::Warnings(const StatusSources& sources,
                                                 const std::string& prefill) const {
  const core::Membership& membership = sources.membership;
  std::vector<std::string> warnings = {sources.transport.Warning(), membership.Warning()};
  if (membership.phase() == core::MembershipPhase::kServing &&
      absl::StartsWith(prefill, "inline,")) {
    warnings.push_back(absl::StrCat("prefill.mode dedicated runs ", prefill));
  }
  warnings.push_back(sources.splits.PrefillShardsWarning(membership.compute_members()));
  if (const ClusterAttention named = options_.attention.Named(); named.decode != named.prefill) {
    const bool prompts = named.prefill != AttentionArithmetic::kCanonical;
    const AttentionArithmetic other = prompts ? named.prefill : named.decode;
    warnings.push_back(
        absl::StrCat("bits may differ: ", prompts ? "prompts attend" : "decode attends",
                     other == AttentionArithmetic::kTensor  ? " on tensor cores, "
                     : other == AttentionArithmetic::kTiles ? " in tiles of bf16, "
                                                            : " in pairs of bf16, ",
                     prompts ? "decode does" : "prompts do",
                     " not; a request that is preempted or recovered may go on with other text"));
  }
  std::erase_if(warnings, [](const std::string& warning) { return warning.empty(); });
  return warnings;
}

std::string StatusBuilder::PolicyOf(const StatusSources& sources) const {
  if (!options_.policy_auto.has_value()) {
    return !options_.policies.empty()   ? options_.policies.front().name
           : sources.membership.local() ? "local"
                                        : "attend_remote";
  }
  if (!sources.policy_choice.has_value()) {
    return "";
  }
  return std::string(cost::KvPolicyName(sources.epoch == nullptr ? sources.policy_choice->policy
                                                                 : sources.epoch->policy));
}

std::vector<PolicyReport> StatusBuilder::PoliciesOf(const core::Scheduler& scheduler) const {
  std::vector<PolicyReport> reports;
  for (const PreparedPolicy& policy : options_.policies) {
    reports.push_back({.name = policy.name,
                       .lossy = policy.lossy,
                       .running = HasSeveralPolicies(options_) ? scheduler.RunningBy(policy.path)
                                                               : scheduler.Stats().running,
                       .kv = options_.kv.has_both() ? std::optional(policy.kv) : std::nullopt});
  }
  return reports;
}

std::string StatusBuilder::DescribePartition(const StatusSources& sources) const {
  const std::string partition = sources.epoch == nullptr ? "" : sources.epoch->partition;
  return sources.shares_by.empty() ? partition : absl::StrCat(partition, "; ", sources.shares_by);
}

NodeReport StatusBuilder::ReportOf(const core::Member& member, const StatusSources& sources) const {
  NodeReport report{.member = member, .layers = sources.splits.DescribeLayers(member.name)};
  if (const AttachedNode* node = sources.nodes.Find(member.name); node != nullptr) {
    report.hello = node->hello;
    report.windows = node->windows;
    report.busy_share = node->busy_share;
    report.counters = node->counters;
    report.reports = node->reports;
    report.thread_still = sources.nodes.StillFor(member.name);
  }
  if (sources.epoch == nullptr) {
    return report;
  }
  if (const auto holder = sources.epoch->topology.FindMemory(member.name); holder.ok()) {
    // Nodes of one share have the same slots.
    const std::vector<uint32_t> shares = sources.epoch->SharesOf(holder->index());
    for (const uint32_t share : shares) {
      const core::KvPoolStats stats = sources.scheduler.KvStats(share);
      report.kv = share == shares.front() ? stats : core::SumOf(report.kv, stats);
      if (shares.size() > 1) {
        const core::MemoryNodeShare& of = sources.epoch->shares[share];
        report.forms.push_back(
            {.form = of.form.value_or(KvForm::kBF16), .kv = stats, .policy = WhoseSlots(of)});
      }
    }
  }
  return report;
}

}  // namespace lamina::coordinator
