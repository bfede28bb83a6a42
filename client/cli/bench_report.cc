// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bubbles.h"
#include "client/cli/token_bill.h"
#include "common/units.h"

namespace lamina::cli {
namespace {

double Milliseconds(Nanos t) { return static_cast<double>(t) * 1e-6; }

// A counter that began again (a restarted node) counts from its new start.
uint64_t Grown(uint64_t before, uint64_t after) { return after >= before ? after - before : after; }

Json NodeDifference(const client::NodeStatus& before, const client::NodeStatus& after,
                    double seconds) {
  const double busy = after.busy_seconds >= before.busy_seconds
                          ? after.busy_seconds - before.busy_seconds
                          : after.busy_seconds;
  const double readable = after.bandwidth_bytes_per_second * seconds;
  const double read = static_cast<double>(Grown(before.kv_bytes_read, after.kv_bytes_read));
  return {{"name", after.name},
          {"role", after.role},
          {"busy_share", seconds > 0 ? busy / seconds : 0.0},
          {"bytes_sent", Grown(before.bytes_sent, after.bytes_sent)},
          {"bytes_received", Grown(before.bytes_received, after.bytes_received)},
          {"bandwidth_share", readable > 0 ? read / readable : 0.0},
          {"part_shares", PartShares(before, after, seconds)}};
}

std::string FormatTimes(const char* name, const Json& times) {
  return absl::StrFormat("%-5s %10.2f %10.2f %10.2f\n", name, times["p50"].get<double>(),
                         times["p90"].get<double>(), times["p99"].get<double>());
}

}  // namespace

void RequestTimes::AddTokens(size_t count, Nanos now) {
  for (size_t i = 0; i < count; ++i) {
    if (tokens_++ == 0) {
      first_ = now;
    } else {
      gaps_ms_.push_back(static_cast<float>(Milliseconds(now - last_)));
    }
    last_ = now;
  }
}

double RequestTimes::ttft_ms() const { return Milliseconds(first_ - arrival_); }

double RequestTimes::tpot_ms() const {
  return Milliseconds(last_ - first_) / static_cast<double>(tokens_ - 1);
}

void BenchReport::AddFinished(uint32_t input_tokens, const RequestTimes& times) {
  ++finished_;
  input_tokens_ += input_tokens;
  output_tokens_ += times.tokens();
  if (times.tokens() > 0) {
    ttft_ms_.push_back(static_cast<float>(times.ttft_ms()));
  }
  if (times.tokens() > 1) {
    tpot_ms_.push_back(static_cast<float>(times.tpot_ms()));
  }
  const double tpot_ms = times.tokens() > 1 ? times.tpot_ms() : 0;
  within_slo_ += times.tokens() > 0 && times.ttft_ms() <= 1e3 * slo_.ttft_seconds &&
                 tpot_ms <= 1e3 * slo_.tpot_seconds;
  itl_ms_.insert(itl_ms_.end(), times.gaps_ms().begin(), times.gaps_ms().end());
}

void BenchReport::AddFailed(const absl::Status& status) {
  ++failed_;
  ++errors_[absl::StatusCodeToString(status.code())];
  first_error_.Update(status);
}

// Goodput: requests a second of which the SLO's share kept both latencies; 0 where fewer did.
// Failed ones kept none. Null without an SLO.
Json BenchReport::SloToJson(double seconds) const {
  if (!std::isfinite(slo_.ttft_seconds) && !std::isfinite(slo_.tpot_seconds)) {
    return nullptr;
  }
  const auto all = static_cast<double>(finished_ + failed_);
  const double share = all > 0 ? static_cast<double>(within_slo_) / all : 0;
  const bool met = all > 0 && share >= slo_.at;
  const auto bound = [](double latency) {
    return std::isfinite(latency) ? Json(1e3 * latency) : Json();
  };
  return {{"ttft_ms", bound(slo_.ttft_seconds)},
          {"tpot_ms", bound(slo_.tpot_seconds)},
          {"at", slo_.at},
          {"within_share", share},
          {"met", met},
          {"goodput", met && seconds > 0 ? all / seconds : 0.0}};
}

Json BenchReport::ToJson(double seconds, const client::ClusterStatus& before,
                         const client::ClusterStatus& after, bool several) const {
  Json nodes = Json::array();
  for (const client::NodeStatus& node : after.nodes) {
    nodes.push_back(NodeDifference(Earlier(before, node), node, seconds));
  }
  return {{"requests", finished_ + failed_},
          {"failed", failed_},
          {"input_tokens", input_tokens_},
          {"output_tokens", output_tokens_},
          {"seconds", seconds},
          {"output_tokens_per_second",
           seconds > 0 ? static_cast<double>(output_tokens_) / seconds : 0.0},
          {"ttft_ms", Percentiles(ttft_ms_)},
          {"tpot_ms", Percentiles(tpot_ms_)},
          {"itl_ms", Percentiles(itl_ms_)},
          {"slo", SloToJson(seconds)},
          {"cost", BillToJson(after, BillBetween(before, after, seconds))},
          {"nodes", nodes},
          {"bubbles", LargestBubble(before, after, seconds, several)},
          {"errors", errors_}};
}

Json Percentiles(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  const auto rank = [&](double share) {
    if (values.empty()) {
      return 0.0f;
    }
    const auto at = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<size_t>(at, 1) - 1];
  };
  return {{"p50", rank(0.50)}, {"p90", rank(0.90)}, {"p99", rank(0.99)}};
}

std::string FormatReport(const Json& report) {
  std::string text = absl::StrFormat(
      "%d requests, %d failed, in %.2f s\n%d input tokens, %d output tokens: %.1f output "
      "tokens/s\n\n"
      "ms           p50        p90        p99\n",
      report["requests"].get<uint64_t>(), report["failed"].get<uint64_t>(),
      report["seconds"].get<double>(), report["input_tokens"].get<uint64_t>(),
      report["output_tokens"].get<uint64_t>(), report["output_tokens_per_second"].get<double>());
  absl::StrAppend(&text, FormatTimes("ttft", report["ttft_ms"]),
                  FormatTimes("tpot", report["tpot_ms"]), FormatTimes("itl", report["itl_ms"]),
                  "\nnode            busy       sent   received  bandwidth\n");
  for (const Json& node : report["nodes"]) {
    absl::StrAppend(
        &text, absl::StrFormat("%-12s %6.1f%% %10s %10s %9.1f%%\n", node["name"].get<std::string>(),
                               node["busy_share"].get<double>() * 100,
                               FormatBytes(node["bytes_sent"].get<uint64_t>()),
                               FormatBytes(node["bytes_received"].get<uint64_t>()),
                               node["bandwidth_share"].get<double>() * 100));
  }
  if (const Json slo = report.value("slo", Json()); slo.is_object()) {
    absl::StrAppendFormat(
        &text, "\nSLO: %.1f%% of requests kept it, p%g asked for: %s, goodput %.3f requests/s\n",
        100 * slo["within_share"].get<double>(), 100 * slo["at"].get<double>(),
        slo["met"].get<bool>() ? "met" : "not met", slo["goodput"].get<double>());
  }
  if (const Json cost = report.value("cost", Json()); cost.is_object()) {
    absl::StrAppendFormat(
        &text,
        "\ncost at %.2f/h: %.4f, 1M tokens: %.3f of prompts, %.3f generated, %.3f found computed "
        "(measured)\n",
        cost["hourly"].get<double>(),
        cost["input"].get<double>() + cost["output"].get<double>() + cost["cached"].get<double>(),
        cost["per_million_input"].get<double>(), cost["per_million_output"].get<double>(),
        cost["per_million_cached"].get<double>());
  }
  if (const std::string words = report.value("bubbles", ""); !words.empty()) {
    absl::StrAppend(&text, "\n", words, "\n");
  }
  return text;
}

}  // namespace lamina::cli
