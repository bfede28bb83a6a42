// SPDX-License-Identifier: Apache-2.0
#include "client/cli/top_view.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/units.h"

namespace lamina::cli {
namespace {

constexpr int kBarCells = 10;

// How much a counter grew in a second. A node that started again counts from 0.
double Rate(uint64_t now, uint64_t before, double seconds) {
  return now < before || seconds <= 0 ? 0 : static_cast<double>(now - before) / seconds;
}

const client::NodeStatus* Find(const client::ClusterStatus* status, const std::string& name) {
  if (status == nullptr) {
    return nullptr;
  }
  const auto found =
      std::find_if(status->nodes.begin(), status->nodes.end(),
                   [&name](const client::NodeStatus& node) { return node.name == name; });
  return found == status->nodes.end() ? nullptr : &*found;
}

// "#####.....", for a share of 0 to 1.
std::string Bar(double share) {
  const auto filled = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kBarCells + 0.5);
  return std::string(filled, '#') + std::string(kBarCells - filled, '.');
}

std::string PerSecond(double bytes) {
  return absl::StrCat(FormatBytes(static_cast<uint64_t>(bytes)), "/s");
}

// The mean of what was observed between two looks, in ms; "-" for nothing.
std::string MeanMs(double sum, double sum_before, uint64_t count, uint64_t count_before) {
  return count <= count_before
             ? "-"
             : absl::StrFormat(
                   "%.1f ms", 1e3 * (sum - sum_before) / static_cast<double>(count - count_before));
}

std::string Head(const client::ClusterStatus& now, const client::ClusterStatus& before,
                 double seconds, const Terminal& terminal) {
  const bool serving = absl::StartsWith(now.state, "serving");
  const std::string state = now.state.substr(0, 36);
  return absl::StrCat(
      "lamina ", now.version, "  ", serving ? terminal.Green(state) : terminal.Yellow(state),
      absl::StrFormat("  epoch %u  up %.0f s\n", now.epoch, now.uptime_seconds), "model  ",
      now.model.substr(0, kTopColumns - 8), "\n",
      absl::StrFormat("queue  %u running  %u waiting  %u done  %u failed  %u preempted\n",
                      now.running, now.waiting, now.requests_finished, now.requests_failed,
                      now.preemptions),
      absl::StrFormat(
          "tokens %.1f/s (%.1f/s in 10 s)  first %s  next %s\n",
          Rate(now.tokens_generated, before.tokens_generated, seconds), now.tokens_per_second,
          MeanMs(now.ttft_seconds_sum, before.ttft_seconds_sum, now.ttft_count, before.ttft_count),
          MeanMs(now.itl_seconds_sum, before.itl_seconds_sum, now.itl_count, before.itl_count)));
}

// "50% in 120 ms, 99% in 410 ms"; "-" for nothing.
std::string Percentiles(const client::Distribution& now, const client::Distribution& before) {
  const std::optional<double> half = Quantile(now, before, 0.5);
  const std::optional<double> most = Quantile(now, before, 0.99);
  return half.has_value() && most.has_value()
             ? absl::StrFormat("50%% in %.3g ms, 99%% in %.3g ms", 1e3 * *half, 1e3 * *most)
             : "-";
}

std::string NodeLine(const client::NodeStatus& node, const client::NodeStatus& before,
                     double seconds, const Terminal& terminal) {
  const std::string state = absl::StrFormat("%-8s", node.state.substr(0, 8));
  std::string slots = "-";
  if (node.slots_total > 0) {
    slots = absl::StrFormat("%.0f%%", 100.0 * node.slots_used / node.slots_total);
  }
  std::string bandwidth = "-";
  if (node.bandwidth_bytes_per_second > 0) {
    bandwidth =
        absl::StrFormat("%.0f%%", 100 * Rate(node.kv_bytes_read, before.kv_bytes_read, seconds) /
                                      node.bandwidth_bytes_per_second);
  }
  return absl::StrFormat("%-8s %-7s %s %s %4.0f%% %5s %5s %12s %12s\n", node.name, node.role,
                         node.state == "ready" ? terminal.Green(state) : terminal.Yellow(state),
                         Bar(node.busy_share), node.busy_share * 100, slots, bandwidth,
                         PerSecond(Rate(node.bytes_sent, before.bytes_sent, seconds)),
                         PerSecond(Rate(node.bytes_received, before.bytes_received, seconds)));
}

}  // namespace

std::optional<double> Quantile(const client::Distribution& now, const client::Distribution& before,
                               double share) {
  if (now.counts.empty() || now.counts.size() != now.upper_seconds.size() + 1) {
    return std::nullopt;
  }
  // A coordinator that started again counts from 0.
  const bool goes_on = before.upper_seconds == now.upper_seconds &&
                       before.counts.size() == now.counts.size() &&
                       std::equal(now.counts.begin(), now.counts.end(), before.counts.begin(),
                                  std::greater_equal<uint64_t>());
  std::vector<double> grown;
  double all = 0;
  for (size_t i = 0; i < now.counts.size(); ++i) {
    grown.push_back(static_cast<double>(now.counts[i] - (goes_on ? before.counts[i] : 0)));
    all += grown.back();
  }
  if (all == 0) {
    return std::nullopt;
  }
  double below = 0;
  for (size_t i = 0; i < now.upper_seconds.size(); ++i) {
    if (below + grown[i] >= share * all && grown[i] > 0) {
      const double lower = i == 0 ? 0 : now.upper_seconds[i - 1];
      return lower + (now.upper_seconds[i] - lower) * (share * all - below) / grown[i];
    }
    below += grown[i];
  }
  return now.upper_seconds.empty() ? std::nullopt : std::optional(now.upper_seconds.back());
}

std::string TopView(const client::ClusterStatus& now, const client::ClusterStatus* before,
                    double seconds, const Terminal& terminal,
                    const client::ClusterStatus* earlier) {
  const client::ClusterStatus& last = before == nullptr ? now : *before;
  const client::ClusterStatus none;
  const client::ClusterStatus& since = earlier == nullptr ? none : *earlier;
  std::string out = Head(now, last, seconds, terminal);
  absl::StrAppend(&out, "first  ", Percentiles(now.time_to_first_token, since.time_to_first_token),
                  "\nnext   ", Percentiles(now.inter_token_latency, since.inter_token_latency),
                  "\n");
  absl::StrAppend(
      &out, "\n",
      terminal.Bold(absl::StrFormat("%-8s %-7s %-8s %-16s %5s %5s %12s %12s", "node", "role",
                                    "state", "busy", "slots", "mem", "sent", "received")),
      "\n");
  for (const client::NodeStatus& node : now.nodes) {
    // Counters that a node had not told by then are not known: they were not 0.
    const client::NodeStatus* known = Find(before, node.name);
    const bool counted = known != nullptr && known->reports > 0;
    absl::StrAppend(&out, NodeLine(node, counted ? *known : node, seconds, terminal));
  }
  absl::StrAppend(&out, "\n");
  for (const client::LaneStatus& lane : now.lanes) {
    uint64_t step_before = lane.step;
    if (lane.lane < last.lanes.size()) {
      step_before = last.lanes[lane.lane].step;
    }
    absl::StrAppend(&out, absl::StrFormat("lane %-3u %6u rows %10u context tokens %8.1f steps/s\n",
                                          lane.lane, lane.rows, lane.context_tokens,
                                          Rate(lane.step, step_before, seconds)));
  }
  return out;
}

}  // namespace lamina::cli
