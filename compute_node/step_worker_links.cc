// SPDX-License-Identifier: Apache-2.0
//
// How fast the links to the peers are: measured when an epoch begins, before its first plan is
// taken. A compute node asks its memory nodes, and the replicas behind it in the order; it answers
// those before it first, so that no two measure at a time.

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/step_worker.h"

namespace lamina::compute_node {
namespace {

// A peer may be late to begin. One that does not answer for so long is not reached.
constexpr Nanos kAnswerWait = Seconds(20);
// For the replicas before this one to have measured all of theirs.
constexpr Nanos kReplicasWait = Seconds(40);
// What is put at a time to measure bandwidth, at most.
constexpr size_t kProbeBytesMax = KiB(256);

}  // namespace

absl::Status StepWorker::MeasureLinks(std::string& blamed) {
  LAMINA_RETURN_IF_ERROR(
      AnswerReplicas({.deadline = RealClock().Now() + kReplicasWait, .abort = &abort_}, blamed));
  const transport::WaitOptions wait{.deadline = RealClock().Now() + kAnswerWait, .abort = &abort_};
  std::vector<control::LinkReport> reports;
  const auto own = absl::MakeConstSpan(region_.bytes());
  const auto bytes_for = [&own](size_t window) {
    return own.first(std::min({own.size(), window, kProbeBytesMax}));
  };
  for (uint32_t node = 0; node < queries_.size(); ++node) {
    blamed = options_.config.memory_nodes[node];
    LAMINA_RETURN_IF_ERROR(MeasurePeer(blamed,
                                       {.peer = queries_[node].get(),
                                        .ask_word = layout_.query_probe_word(options_.node),
                                        .offset = layout_.QueryWindow(options_.node, 0, 0),
                                        .bytes = bytes_for(layout_.query_window_bytes()),
                                        .region = &region_,
                                        .answer_word = layout_.memory_probe_word(node)},
                                       wait, reports));
  }
  for (uint32_t node = options_.node + 1; node < replicas_.size(); ++node) {
    blamed = options_.config.compute_nodes[node];
    LAMINA_RETURN_IF_ERROR(MeasurePeer(blamed,
                                       {.peer = replicas_[node].get(),
                                        .ask_word = layout_.compute_probe_word(options_.node),
                                        .offset = layout_.ContextWindow(options_.node, 0),
                                        .bytes = bytes_for(layout_.context_window_bytes()),
                                        .region = &region_,
                                        .answer_word = layout_.compute_probe_word(node)},
                                       wait, reports));
  }
  blamed.clear();
  reporter_.ReportLinks(options_.config.epoch, std::move(reports));
  return absl::OkStatus();
}

absl::Status StepWorker::AnswerReplicas(const transport::WaitOptions& wait, std::string& blamed) {
  std::vector<transport::LinkAnswerer> answerers;
  for (uint32_t node = 0; node < options_.node; ++node) {
    answerers.push_back({.peer = replicas_[node].get(),
                         .ask_word = layout_.compute_probe_word(node),
                         .answer_word = layout_.compute_probe_word(options_.node)});
  }
  size_t late = 0;
  const absl::Status status = transport::AnswerLinks(transport_, region_, answerers, wait, late);
  if (!status.ok()) {
    blamed = options_.config.compute_nodes[late];
  }
  return status;
}

absl::Status StepWorker::MeasurePeer(const std::string& name, const transport::LinkAsker& asker,
                                     const transport::WaitOptions& wait,
                                     std::vector<control::LinkReport>& reports) {
  const absl::StatusOr<transport::LinkSpeed> speed =
      transport::MeasureLink(transport_, asker, wait);
  if (!speed.ok()) {
    return absl::Status(
        speed.status().code(),
        absl::StrCat("link to ", name, " by ", asker.peer->path(), ": ", speed.status().message()));
  }
  const control::LinkReport& link =
      reports.emplace_back(control::LinkReport{.peer = name,
                                               .path = asker.peer->path(),
                                               .latency_seconds = speed->latency_seconds,
                                               .bytes_per_second = speed->bytes_per_second});
  LogInfo("link to ", name, " by ", link.path,
          absl::StrFormat(" latency %.1f us bandwidth ", link.latency_seconds * 1e6),
          FormatBytes(static_cast<uint64_t>(link.bytes_per_second)), "/s");
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
