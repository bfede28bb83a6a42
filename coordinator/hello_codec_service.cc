// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hello_codec_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/foreign_text.h"
#include "control/counters_codec_service.h"

namespace lamina::coordinator {
namespace {

// The most bytes of a name, and of each other text.
constexpr size_t kTextBytesMax = 1000;
// The most times that a node has measured: one for each number of rows.
constexpr int kPolicyTimesMax = 1024;

std::vector<plan::SliceTimes> FromProto(
    const google::protobuf::RepeatedPtrField<v1::PolicyTimes::Slice>& proto) {
  std::vector<plan::SliceTimes> times;
  for (const v1::PolicyTimes::Slice& slice : proto) {
    times.push_back({.rows = slice.rows(),
                     .slice_seconds = slice.slice_seconds(),
                     .tail_seconds = slice.tail_seconds()});
  }
  return times;
}

// Ends of ends are not looked at.
bool HasTooMany(const v1::PolicyTimes& times) {
  const auto many = [](const v1::PolicyTimes& one) {
    return one.local_size() > kPolicyTimesMax || one.pools_size() > kPolicyTimesMax;
  };
  return many(times) || times.ends_size() > kPolicyTimesMax ||
         std::any_of(times.ends().begin(), times.ends().end(), many);
}

plan::PolicyTimes FiguresOf(const v1::PolicyTimes& proto) {
  return {.local = FromProto(proto.local()),
          .pools = FromProto(proto.pools()),
          .attention_local = proto.attention_local(),
          .attention_shared = proto.attention_shared(),
          .attention_pools = proto.attention_pools(),
          .read_bandwidth = proto.read_bandwidth(),
          .make_seconds = proto.make_seconds(),
          .reads_low = proto.reads_low(),
          .reads_high = proto.reads_high()};
}

plan::PolicyTimes FromProto(const v1::PolicyTimes& proto) {
  plan::PolicyTimes times = FiguresOf(proto);
  for (const v1::PolicyTimes& end : proto.ends()) {
    times.ends.push_back(FiguresOf(end));
  }
  return times;
}

// What this version does not know is canonical, which every node has.
AttentionArithmetic FastAttentionOf(uint32_t proto) {
  for (const auto known : {AttentionArithmetic::kPairs, AttentionArithmetic::kTiles}) {
    if (proto == static_cast<uint32_t>(known)) {
      return known;
    }
  }
  return AttentionArithmetic::kCanonical;
}

}  // namespace

std::string ProblemOf(const v1::Hello& hello) {
  for (const auto& [what, text] : {std::pair("name", &hello.name()),
                                   {"device", &hello.device()},
                                   {"kernels", &hello.kernels()},
                                   {"version", &hello.version()},
                                   {"model_fingerprint", &hello.model_fingerprint()}}) {
    if (text->size() > kTextBytesMax || ForeignText(*text) != *text) {
      return absl::StrCat("the ", what, " of a Hello has ", text->size(), " bytes, of at most ",
                          kTextBytesMax,
                          ", or control characters: ", ForeignText(*text, kTextBytesMax));
    }
  }
  control::ReportedFigures figures;
  figures.Take("bandwidth_bytes_per_second", hello.bandwidth_bytes_per_second());
  figures.Take("dense_speed", hello.dense_speed());
  figures.Take("spill.write_bytes_per_second", hello.spill().write_bytes_per_second());
  figures.Take("spill.read_bytes_per_second", hello.spill().read_bytes_per_second());
  if (!figures.refused().empty()) {
    return absl::StrCat("a Hello with ", figures.refused(),
                        ": a rate is finite and not negative; start the node again, so that "
                        "it measures anew");
  }
  if (HasTooMany(hello.policy_times())) {
    return absl::StrCat("a Hello with more than ", kPolicyTimesMax, " measured times");
  }
  return "";
}

absl::StatusOr<plan::PolicyTimes> FromProto(const v1::LayersLoaded& loaded) {
  if (loaded.code() != 0) {
    return absl::Status(static_cast<absl::StatusCode>(loaded.code()),
                        ForeignText(loaded.message()));
  }
  if (HasTooMany(loaded.policy_times())) {
    return absl::InvalidArgumentError(
        absl::StrCat("loaded layers with more than ", kPolicyTimesMax, " measured times"));
  }
  return FromProto(loaded.policy_times());
}

NodeHello FromProto(const v1::Hello& hello) {
  return {.identity = {.name = hello.name(),
                       .is_memory = hello.role() == v1::ROLE_MEMORY,
                       .device = hello.device(),
                       .threads = hello.threads(),
                       .capacity_bytes = hello.capacity_bytes(),
                       .bandwidth_bytes_per_second = hello.bandwidth_bytes_per_second(),
                       .kernels = hello.kernels(),
                       .fast_attention = FastAttentionOf(hello.fast_attention()),
                       .model_fingerprint = hello.model_fingerprint(),
                       .dense_speed = hello.dense_speed(),
                       .policy_times = FromProto(hello.policy_times()),
                       .spill = {.capacity_bytes = hello.spill().capacity_bytes(),
                                 .write_bytes_per_second = hello.spill().write_bytes_per_second(),
                                 .read_bytes_per_second = hello.spill().read_bytes_per_second()}},
          .version = hello.version(),
          .pid = hello.pid()};
}

telemetry::NodeCounters FromProto(const v1::NodeStatus& status, control::ReportedFigures& figures) {
  telemetry::NodeCounters counters{
      .busy_seconds = figures.Take("busy_seconds", status.busy_seconds()),
      .bytes_sent = status.bytes_sent(),
      .bytes_received = status.bytes_received(),
      .refused_messages = status.refused_messages(),
      .kv_bytes_read = status.kv_bytes_read(),
      .units = status.units(),
      .unit_seconds_fixed = figures.Take("unit_seconds_fixed", status.unit_seconds_fixed()),
      .unit_seconds_slope = figures.Take("unit_seconds_slope", status.unit_seconds_slope())};
  control::FromProto(status.detail(), counters, figures);
  return counters;
}

std::vector<control::LinkReport> FromProto(const v1::NodeLinks& links,
                                           control::ReportedFigures& figures) {
  std::vector<control::LinkReport> reports;
  for (const v1::NodeLink& link : links.links()) {
    reports.push_back(
        {.peer = ForeignText(link.peer(), kTextBytesMax),
         .path = ForeignText(link.path(), kTextBytesMax),
         .latency_seconds = figures.Take("latency_seconds", link.latency_seconds()),
         .bytes_per_second = figures.Take("bytes_per_second", link.bytes_per_second()),
         .r_squared = figures.TakeSigned("r_squared", link.r_squared())});
  }
  return reports;
}

}  // namespace lamina::coordinator
