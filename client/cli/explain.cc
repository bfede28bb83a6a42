// SPDX-License-Identifier: Apache-2.0
//
// lamina explain: what the cluster chose for itself, and by which figures.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/memory_view.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] = R"(  lamina explain
  lamina explain --json
policy:    where K and V are, and who attends; with policy auto a line for each policy: what a step
           is expected to take, and of what, or why the cluster cannot have it; * is chosen
KV:        how sequences are spread over memory nodes, and the bandwidth each reached in attention
lanes:     batches in flight
rows:      in how many chunks the rows of a batch leave for attention
memory:    what compute nodes take of their devices' memory, where it is bounded or K and V are fetched,
           and what HeadInfer's formula gives where they come by groups of heads
transport: what carries data between nodes, and how fast it was when the epoch began
What is not set to `auto` in the cluster file is what the file says. docs/configuration.md has each key.
)";

// A thing that was chosen, or set. `figures`: what it was chosen by, if more than `chosen` says.
struct Choice {
  std::string what;
  std::string chosen;
  std::vector<std::string> figures;
};

// What memory nodes reached, by which shares are cut and sequences placed.
std::vector<std::string> Bandwidths(const client::ClusterStatus& status) {
  std::vector<std::string> figures;
  for (const client::NodeStatus& node : status.nodes) {
    if (node.slots_total == 0) {
      continue;
    }
    const std::string slots = absl::StrCat(node.name, ": room for ", node.slots_total, " tokens");
    figures.push_back(
        node.bandwidth_bytes_per_second > 0
            ? absl::StrCat(slots, ", reads ",
                           FormatBytes(static_cast<uint64_t>(node.bandwidth_bytes_per_second)),
                           "/s")
            : slots);
  }
  return figures;
}

// "shm", or of several "shm: c0, m0; ucx tcp: m1", and where windows are, and the measured links.
Choice Transport(const client::ClusterStatus& status) {
  std::map<std::string, std::vector<std::string>> carried;
  std::map<std::string, std::vector<std::string>> windows;
  for (const client::NodeStatus& node : status.nodes) {
    if (!node.transport.empty()) {
      carried[node.transport].push_back(node.name);
    }
    if (!node.windows.empty()) {
      windows[node.windows].push_back(node.name);
    }
  }
  Choice choice = {.what = "transport"};
  std::vector<std::string> names;
  for (const auto& [transport, nodes] : carried) {
    names.push_back(carried.size() == 1
                        ? transport
                        : absl::StrCat(transport, ": ", absl::StrJoin(nodes, ", ")));
  }
  choice.chosen = absl::StrJoin(names, "; ");
  for (const auto& [place, nodes] : windows) {
    choice.figures.push_back(absl::StrCat("windows in ", place, ": ", absl::StrJoin(nodes, ", ")));
  }
  for (const client::MeasuredLink& link : status.links) {
    choice.figures.push_back(absl::StrFormat(
        "%s to %s by %s: %.1f us, %s/s%s%s", link.from, link.to, link.path,
        link.latency_seconds * 1e6, FormatBytes(static_cast<uint64_t>(link.bytes_per_second)),
        link.odd.empty() ? "" : "; ", link.odd));
  }
  return choice;
}

// A line for each that says something.
std::vector<std::string> Lines(std::vector<std::string> lines) {
  std::erase(lines, "");
  return lines;
}

// What requests may choose from, or what makes the answers of the one policy lossy; empty where
// there is one, and it is not.
std::string PreparedPolicies(const client::ClusterStatus& status) {
  if (status.policies.size() <= 1) {
    return status.policies.empty() || status.policies[0].lossy.empty()
               ? ""
               : absl::StrCat("answers are lossy: ", status.policies[0].lossy);
  }
  std::vector<std::string> words;
  for (const client::ClusterStatus::PolicyStatus& policy : status.policies) {
    words.push_back(
        absl::StrCat(policy.name, policy.kv.empty() ? "" : absl::StrCat(" with kv ", policy.kv),
                     policy.lossy.empty() ? "" : absl::StrCat(" (lossy: ", policy.lossy, ")")));
  }
  return absl::StrCat("for requests that name none of ", absl::StrJoin(words, ", "));
}

// "fetch_recompute  28.1 ms: dense 20.0, attention 6.1, links 27.9, making K and V of 40% 8.0; its
// prompts 9.6; room for 12000 tokens, 11 of 16 rows at a time; exact", or why it is not to be had.
std::vector<std::string> Weighed(const client::ClusterStatus& status) {
  std::vector<std::string> lines;
  for (const client::ClusterStatus::PolicyFigure& figure : status.policy_figures) {
    std::string line = absl::StrFormat("%s %-27s ", figure.chosen ? "*" : " ", figure.policy);
    if (!figure.why_not.empty()) {
      lines.push_back(absl::StrCat(line, "not: ", figure.why_not));
      continue;
    }
    absl::StrAppendFormat(&line, "%7.1f ms: dense %.1f, attention %.1f", figure.seconds * 1e3,
                          figure.dense_seconds * 1e3, figure.attention_seconds * 1e3);
    if (figure.transfer_seconds > 0) {
      absl::StrAppendFormat(&line, ", links %.1f", figure.transfer_seconds * 1e3);
    }
    if (figure.making_seconds > 0) {
      absl::StrAppendFormat(&line, ", making K and V of %.0f%% of the tokens %.1f",
                            figure.share * 100, figure.making_seconds * 1e3);
    }
    if (figure.prompt_seconds > 0) {
      absl::StrAppendFormat(&line, "; its prompts %.1f", figure.prompt_seconds * 1e3);
    }
    absl::StrAppend(&line, "; room for ", figure.tokens_max, " tokens");
    if (figure.rows_waiting > 0) {
      absl::StrAppendFormat(&line, ", %.0f of %.0f rows at a time", figure.rows,
                            figure.rows + figure.rows_waiting);
    }
    lines.push_back(absl::StrCat(line, "; exact"));
  }
  return lines;
}

std::vector<Choice> Choices(const client::ClusterStatus& status) {
  const std::vector<std::string> memory = MemoryLines(status);
  std::vector<std::string> policies = Lines({status.policy_choice, PreparedPolicies(status)});
  for (std::string& line : Weighed(status)) {
    policies.push_back(std::move(line));
  }
  std::vector<Choice> choices = {
      {.what = "policy", .chosen = status.policy, .figures = std::move(policies)},
      {.what = "KV", .chosen = status.partition, .figures = Bandwidths(status)},
      {.what = "attention", .chosen = status.attention},
      {.what = "lanes", .chosen = status.lane_choice},
      {.what = "rows", .chosen = status.chunk_choice},
      {.what = "fetch", .chosen = status.fetch_choice},
      {.what = "prompts", .chosen = status.prefill},
      {.what = "stages", .chosen = status.stages, .figures = Lines({status.stages_odd})},
      {.what = "memory", .chosen = absl::StrJoin(memory, "; ")},
      Transport(status)};
  choices.erase(std::remove_if(choices.begin(), choices.end(),
                               [](const Choice& choice) { return choice.chosen.empty(); }),
                choices.end());
  return choices;
}

Json ToJson(const std::vector<Choice>& choices) {
  Json list = Json::array();
  for (const Choice& choice : choices) {
    list.push_back({{"what", choice.what}, {"chosen", choice.chosen}, {"figures", choice.figures}});
  }
  return list;
}

void Print(const client::ClusterStatus& status, const std::vector<Choice>& choices) {
  std::printf("%s, epoch %llu, model %s\n", status.state.c_str(),
              static_cast<unsigned long long>(status.epoch), status.model.c_str());
  for (const Choice& choice : choices) {
    std::printf("%s %s\n",
                Terminal::Output().Bold(absl::StrFormat("%-10s", choice.what + ":")).c_str(),
                choice.chosen.c_str());
    for (const std::string& figure : choice.figures) {
      std::printf("%11s%s\n", "", figure.c_str());
    }
  }
  for (const std::string& warning : status.warnings) {
    std::printf("%s %s\n", Terminal::Output().Yellow("warning:").c_str(), warning.c_str());
  }
}

absl::StatusOr<client::ClusterStatus> Ask(const Invocation& invocation) {
  LAMINA_ASSIGN_OR_RETURN(const auto client, Connect(invocation));
  return client->Status();
}

int Run(const Invocation& invocation) {
  const absl::StatusOr<client::ClusterStatus> status = Ask(invocation);
  if (!status.ok()) {
    return Fail(status.status());
  }
  const std::vector<Choice> choices = Choices(*status);
  if (invocation.json) {
    PrintJson(ToJson(choices));
  } else {
    Print(*status, choices);
  }
  return kExitOk;
}

}  // namespace

void AddExplainCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "explain",
                 "What the cluster chose for itself, and by which figures", kExamples);
  AddServerFlag(command, invocation);
  command->callback([&invocation] { invocation.run = [&invocation] { return Run(invocation); }; });
}

}  // namespace lamina::cli
