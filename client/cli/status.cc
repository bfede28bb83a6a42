// SPDX-License-Identifier: Apache-2.0
//
// lamina status: what the cluster and each node do now.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/status_json.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] = R"(  lamina status
  lamina status --json
busy: share of the last interval spent working. slots: tokens of KV cache, used of all.
)";

std::string Slots(const client::NodeStatus& node) {
  return node.slots_total == 0 ? "-" : absl::StrCat(node.slots_used, "/", node.slots_total);
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

void PrintStatus(const client::ClusterStatus& status) {
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
  if (!status.partition.empty()) {
    std::printf("KV:       by %s\n", status.partition.c_str());
  }
  if (!status.lane_choice.empty()) {
    std::printf("lanes:    %s\n", status.lane_choice.c_str());
  }
  std::printf("\n");
  std::printf("%s\n", terminal
                          .Bold(absl::StrFormat("%-12s %-12s %-9s %-6s %-9s %15s %7s %10s %10s  %s",
                                                "node", "role", "state", "device", "transport",
                                                "slots", "busy", "sent", "received", "kernels"))
                          .c_str());
  for (const client::NodeStatus& node : status.nodes) {
    PrintNode(node);
  }
  for (const client::LaneStatus& lane : status.lanes) {
    std::printf("lane %u: %u rows, %llu context tokens, step %llu\n", lane.lane, lane.rows,
                static_cast<unsigned long long>(lane.context_tokens),
                static_cast<unsigned long long>(lane.step));
  }
}

absl::StatusOr<client::ClusterStatus> GetStatus(const Invocation& invocation) {
  LAMINA_ASSIGN_OR_RETURN(const auto client, Connect(invocation));
  return client->Status();
}

int Run(const Invocation& invocation) {
  const absl::StatusOr<client::ClusterStatus> status = GetStatus(invocation);
  if (!status.ok()) {
    return Fail(status.status());
  }
  if (invocation.json) {
    PrintJson(ToJson(*status));
  } else {
    PrintStatus(*status);
  }
  return kExitOk;
}

}  // namespace

void AddStatusCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "status", "What the cluster and each node do now", kExamples);
  AddServerFlag(command, invocation);
  command->callback([&invocation] { invocation.run = [&invocation] { return Run(invocation); }; });
}

}  // namespace lamina::cli
