// SPDX-License-Identifier: Apache-2.0
//
// lamina status: what the cluster and each node do now.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/bubbles.h"
#include "client/cli/command.h"
#include "client/cli/memory_view.h"
#include "client/cli/status_json.h"
#include "client/cli/token_bill.h"
#include "client/cli/wait_notice.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::cli {
namespace {

// Nodes report twice a second.
constexpr std::chrono::milliseconds kBetweenLooks(1100);

constexpr std::chrono::milliseconds kBetweenTries(250);
constexpr Nanos kWaitMax = Seconds(24 * 3600);

constexpr char kExamples[] = R"(  lamina status
  lamina status --json
  lamina status --wait 120s             in scripts: until the cluster serves
busy: share of the last interval spent working. slots: tokens of KV cache, used of all.
windows: where the memory lies that peers write, and how the network reaches it.
link: latency one way and bandwidth, measured when the epoch began, and what is odd about it.
)";

std::string Slots(const client::NodeStatus& node) {
  return node.slots_total == 0 ? "-" : absl::StrCat(node.slots_used, "/", node.slots_total);
}

// What each node of a split replica holds.
std::string Weights(const client::ClusterStatus& status) {
  std::vector<std::string> words;
  for (const client::NodeStatus& node : status.nodes) {
    if (!node.replica.empty()) {
      words.push_back(absl::StrCat(node.name, " ", FormatBytes(node.weight_bytes)));
    }
  }
  return absl::StrJoin(words, ", ");
}

// "attend_remote (of requests that name none) 3 running; fetch_heads 1 running"
std::string Policies(const client::ClusterStatus& status) {
  std::vector<std::string> words;
  for (const client::ClusterStatus::PolicyStatus& policy : status.policies) {
    const bool is_default = words.empty() && policy.name == status.policy;
    words.push_back(absl::StrCat(
        policy.name, policy.kv.empty() ? "" : absl::StrCat(" with kv ", policy.kv),
        is_default ? " (of requests that name none) " : " ", policy.running, " running",
        policy.lossy.empty() ? "" : absl::StrCat(", lossy: ", policy.lossy)));
  }
  return absl::StrJoin(words, "; ");
}

// "m0 bf16 12/2048, int8 64/3855": the slots of nodes that have several forms; with slots of
// fetch_hybrid "m0 others 12/2048, fetch_hybrid 64/3855".
std::string SlotForms(const client::ClusterStatus& status) {
  std::vector<std::string> words;
  for (const client::NodeStatus& node : status.nodes) {
    std::vector<std::string> forms;
    for (const client::NodeStatus::SlotForm& form : node.slot_forms) {
      forms.push_back(absl::StrCat(form.policy.empty() ? form.kv : form.policy, " ", form.used, "/",
                                   form.total));
    }
    if (!forms.empty()) {
      words.push_back(absl::StrCat(node.name, " ", absl::StrJoin(forms, ", ")));
    }
  }
  return absl::StrJoin(words, "; ");
}

void PrintNode(const client::NodeStatus& node) {
  const Terminal& terminal = Terminal::Output();
  const std::string state = absl::StrFormat("%-9s", node.state);
  std::printf(
      "%s\n",
      absl::StrFormat("%-12s %-12s %s %-6s %-9s %15s %6.1f%% %10s %10s  %s", node.name, node.role,
                      node.state == "ready" ? terminal.Green(state) : terminal.Yellow(state),
                      node.device, node.transport.empty() ? "-" : node.transport, Slots(node),
                      node.busy_share * 100, FormatBytes(node.bytes_sent),
                      FormatBytes(node.bytes_received), node.kernels)
          .c_str());
}

// "windows: host memory: c0, m0, m1": a line for each place, with its nodes.
std::vector<std::string> WindowLines(const client::ClusterStatus& status) {
  std::map<std::string, std::vector<std::string>> nodes;
  for (const client::NodeStatus& node : status.nodes) {
    if (!node.windows.empty()) {
      nodes[node.windows].push_back(node.name);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [place, names] : nodes) {
    lines.push_back(absl::StrCat("windows: ", place, ": ", absl::StrJoin(names, ", ")));
  }
  return lines;
}

// `bubbles` in words; empty for none.
void PrintStatus(const client::ClusterStatus& status, const std::string& bubbles) {
  const Terminal& terminal = Terminal::Output();
  const std::string state = status.state;
  std::printf("%s, epoch %llu, model %s, version %s, up %.0f s\n",
              (state == "serving" ? terminal.Green(state) : terminal.Yellow(state)).c_str(),
              static_cast<unsigned long long>(status.epoch), status.model.c_str(),
              status.version.c_str(), status.uptime_seconds);
  std::printf("requests: %u running, %u waiting, %llu finished, %llu failed, %llu preemptions\n",
              status.running, status.waiting,
              static_cast<unsigned long long>(status.requests_finished),
              static_cast<unsigned long long>(status.requests_failed),
              static_cast<unsigned long long>(status.preemptions));
  std::printf("tokens:   %llu generated, %.1f/s in the last 10 s\n",
              static_cast<unsigned long long>(status.tokens_generated), status.tokens_per_second);
  if (const auto bill = BillBetween({}, status, status.uptime_seconds); bill.has_value()) {
    std::printf(
        "cost:     %.2f in all, 1M tokens: %.3f of prompts, %.3f generated, %.3f found computed; "
        "measured since it started\n",
        bill->total(), bill->per_million_input, bill->per_million_output, bill->per_million_cached);
  }
  if (!status.stages.empty()) {
    std::printf("stages:   %s\n", status.stages.c_str());
    if (!status.stages_odd.empty()) {
      std::printf("          %s; restart these nodes and the coordinator to split anew\n",
                  status.stages_odd.c_str());
    }
    std::printf("weights:  %s\n", Weights(status).c_str());
  }
  const bool lossy = std::any_of(
      status.policies.begin(), status.policies.end(),
      [](const client::ClusterStatus::PolicyStatus& one) { return !one.lossy.empty(); });
  if (status.policies.size() > 1 || lossy) {
    std::printf("policies: %s\n", Policies(status).c_str());
  }
  if (const std::string forms = SlotForms(status); !forms.empty()) {
    std::printf("slots:    %s\n", forms.c_str());
  }
  if (!status.policy_choice.empty()) {
    std::printf("policy:   %s, %s\n", status.policy.c_str(), status.policy_choice.c_str());
  }
  if (!status.partition.empty()) {
    uint64_t kept = 0;
    for (const client::NodeStatus& node : status.nodes) {
      kept += node.slots_kept;
    }
    std::printf(
        "KV:       by %s%s\n", status.partition.c_str(),
        kept == 0 ? ""
                  : absl::StrCat("; ", kept, " tokens kept for prompts that begin alike").c_str());
  }
  for (const client::NodeStatus& node : status.nodes) {
    if (const client::SpillStatus& spill = node.spill; spill.capacity_bytes > 0) {
      std::printf(
          "spill:    %s %s of %s, %llu sequences out, %llu back, %llu tokens of the prefix "
          "cache out, %llu back, %llu failures\n",
          node.name.c_str(), FormatBytes(spill.used_bytes).c_str(),
          FormatBytes(spill.capacity_bytes).c_str(),
          static_cast<unsigned long long>(spill.sequences_out),
          static_cast<unsigned long long>(spill.sequences_in),
          static_cast<unsigned long long>(spill.cached_tokens_out),
          static_cast<unsigned long long>(spill.cached_tokens_in),
          static_cast<unsigned long long>(spill.failures));
    }
  }
  if (!status.attention.empty()) {
    std::printf("attends:  %s\n", status.attention.c_str());
  }
  if (!status.prefill.empty() && status.prefill != "inline") {
    std::printf("prompts:  %s\n", status.prefill.c_str());
  }
  if (!status.lane_choice.empty()) {
    std::printf("lanes:    %s\n", status.lane_choice.c_str());
  }
  if (!status.fetch_choice.empty()) {
    std::printf("fetch:    %s\n", status.fetch_choice.c_str());
  }
  for (const std::string& line : MemoryLines(status)) {
    std::printf("memory:   %s\n", line.c_str());
  }
  if (!status.chunk_choice.empty()) {
    std::printf("rows:     leave in %s\n", status.chunk_choice.c_str());
  }
  std::printf("\n");
  for (const std::string& warning : status.warnings) {
    std::printf("%s %s\n\n", terminal.Yellow("warning:").c_str(), warning.c_str());
  }
  std::printf("%s\n", terminal
                          .Bold(absl::StrFormat("%-12s %-12s %-9s %-6s %-9s %15s %7s %10s %10s  %s",
                                                "node", "role", "state", "device", "transport",
                                                "slots", "busy", "sent", "received", "kernels"))
                          .c_str());
  for (const client::NodeStatus& node : status.nodes) {
    PrintNode(node);
  }
  if (!bubbles.empty()) {
    std::printf("%s\n", bubbles.c_str());
  }
  for (const std::string& line : WindowLines(status)) {
    std::printf("%s\n", line.c_str());
  }
  for (const client::MeasuredLink& link : status.links) {
    std::printf("link %s %s by %s: %.1f us, %s/s%s%s\n", link.from.c_str(), link.to.c_str(),
                link.path.c_str(), link.latency_seconds * 1e6,
                FormatBytes(static_cast<uint64_t>(link.bytes_per_second)).c_str(),
                link.odd.empty() ? "" : "; ", link.odd.c_str());
  }
  for (const client::LaneStatus& lane : status.lanes) {
    std::printf("lane %u%s: %u %s, %llu context tokens, step %llu\n", lane.lane,
                lane.prefill ? " (prefill)" : "", lane.rows,
                absl::StrCat(lane.prefill ? "prompt" : "row", lane.rows == 1 ? "" : "s").c_str(),
                static_cast<unsigned long long>(lane.context_tokens),
                static_cast<unsigned long long>(lane.step));
  }
}

struct Looks {
  client::ClusterStatus status;
  std::string bubbles;
};

// For people, while there is work: a second look after some reports of the nodes, which shows what
// the devices wait for.
absl::StatusOr<Looks> Look(const Invocation& invocation) {
  LAMINA_ASSIGN_OR_RETURN(const auto client, Connect(invocation));
  Looks looks;
  LAMINA_ASSIGN_OR_RETURN(looks.status, client->Status());
  if (invocation.json || looks.status.running == 0) {
    return looks;
  }
  const client::ClusterStatus before = looks.status;
  std::this_thread::sleep_for(kBetweenLooks);
  LAMINA_ASSIGN_OR_RETURN(looks.status, client->Status());
  looks.bubbles =
      LargestBubble(before, looks.status, looks.status.uptime_seconds - before.uptime_seconds,
                    std::max(before.running, looks.status.running) > 1);
  return looks;
}

// `wait`: for each answer.
absl::StatusOr<std::string> StateOf(const Invocation& invocation, Nanos wait) {
  LAMINA_ASSIGN_OR_RETURN(const auto client, Connect(invocation, wait));
  LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus status, client->Status());
  return status.state;
}

// Returns once the cluster serves, maybe without some of its nodes.
// Errors: kDeadlineExceeded  it does not after `wait`; says what it waits for.
//         At once those that waiting does not mend: wrong usage, TLS.
absl::Status AwaitServing(const Invocation& invocation, Nanos wait) {
  const Nanos end = RealClock().Now() + wait;
  const WaitNotice notice("waiting until the cluster serves");
  for (;;) {
    const absl::StatusOr<std::string> state =
        StateOf(invocation, std::max(Seconds(1), end - RealClock().Now()));
    if (state.ok() && (*state == "serving" || absl::StartsWith(*state, "serving;"))) {
      return absl::OkStatus();
    }
    if (!state.ok() && !absl::IsUnavailable(state.status()) &&
        !absl::IsDeadlineExceeded(state.status())) {
      return state.status();
    }
    if (RealClock().Now() >= end) {
      return absl::DeadlineExceededError(
          absl::StrCat("the cluster does not serve after ", ToSeconds(wait),
                       " s: ", state.ok() ? absl::string_view(*state) : state.status().message()));
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

// `wait`: of --wait; empty: it does not.
int Run(const Invocation& invocation, const std::string& wait) {
  if (!wait.empty()) {
    const absl::StatusOr<Nanos> time = ParseDuration(wait);
    if (!time.ok() || *time > kWaitMax) {
      return FailUsage("status",
                       absl::StrCat("--wait ", wait, ": a time of at most 24h, like 120s"));
    }
    if (const absl::Status serves = AwaitServing(invocation, *time); !serves.ok()) {
      return Fail(serves);
    }
  }
  const absl::StatusOr<Looks> looks = Look(invocation);
  if (!looks.ok()) {
    return Fail(looks.status());
  }
  if (invocation.json) {
    PrintJson(ToJson(looks->status));
  } else {
    PrintStatus(looks->status, looks->bubbles);
  }
  return kExitOk;
}

}  // namespace

void AddStatusCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "status", "What the cluster and each node do now", kExamples);
  AddServerFlag(command, invocation);
  const auto wait = std::make_shared<std::string>();
  command
      ->add_option("--wait", *wait,
                   "Wait so long until the cluster serves; exit with 1 and say what it waits for "
                   "when it does not (default: look once)")
      ->type_name("TIME");
  command->callback([&invocation, wait] {
    invocation.run = [&invocation, wait] { return Run(invocation, *wait); };
  });
}

}  // namespace lamina::cli
