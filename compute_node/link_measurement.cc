// SPDX-License-Identifier: Apache-2.0
#include "compute_node/link_measurement.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "control/blame.h"
#include "policy/fetch_hybrid.h"
#include "transport/link_probe.h"

namespace lamina::compute_node {
namespace {

// A peer may be late to begin. One that does not answer for so long is not reached.
constexpr Nanos kAnswerWait = Seconds(20);
// For the compute nodes before this one to have measured all of theirs, one after the other.
constexpr Nanos kReplicasWait = Seconds(40);
// What is put at a time to measure bandwidth, at most.
constexpr size_t kProbeBytesMax = KiB(256);

// What links of the epoch may take in addition, so many of them.
Nanos ForLinks(size_t links) { return static_cast<Nanos>(links) * transport::kLinkMeasuringMax; }

absl::Status AnswerReplicas(const WorkerContext& context, const transport::WaitOptions& wait) {
  std::vector<transport::LinkAnswerer> answerers;
  std::vector<uint32_t> asking;  // The node of each.
  for (uint32_t node = 0; node < context.node; ++node) {
    if (context.peers.Region(ComputePeer(node)) == nullptr) {
      continue;
    }
    asking.push_back(node);
    answerers.push_back({.peer = context.peers.Region(ComputePeer(node)),
                         .ask_word = context.layout.compute_probe_word(node),
                         .answer_word = context.layout.compute_probe_word(context.node)});
  }
  size_t late = 0;
  const absl::Status status =
      transport::AnswerLinks(context.transport, context.region, answerers, wait, late);
  return status.ok() ? status : control::Blame(status, context.config.compute_nodes[asking[late]]);
}

// How well one line explains the times of bursts of several sizes; 0: all have one size.
double RSquaredOf(absl::Span<const transport::LinkBurst> bursts) {
  std::vector<policy::TimeSample> samples;
  for (const transport::LinkBurst& burst : bursts) {
    samples.push_back({.tokens = static_cast<double>(burst.bytes), .seconds = burst.seconds});
  }
  const bool vary = std::any_of(bursts.begin(), bursts.end(), [&](const auto& burst) {
    return burst.bytes != bursts.front().bytes;
  });
  return vary ? policy::FitLine(samples).r_squared : 0;
}

absl::StatusOr<control::LinkReport> MeasurePeer(const WorkerContext& context, PeerId peer,
                                                transport::LinkAsker asker,
                                                const transport::WaitOptions& wait) {
  const std::string& name = context.peers.Name(peer);
  asker.peer = context.peers.Region(peer);
  const absl::StatusOr<transport::LinkSpeed> speed =
      transport::MeasureLink(context.transport, asker, wait);
  if (!speed.ok()) {
    return absl::Status(
        speed.status().code(),
        absl::StrCat("link to ", name, " by ", asker.peer->path(), ": ", speed.status().message()));
  }
  context.counters.bus.Count(BusKind::kProbes, speed->bytes_put);
  control::LinkReport link{.peer = name,
                           .path = asker.peer->path(),
                           .latency_seconds = speed->latency_seconds,
                           .bytes_per_second = speed->bytes_per_second,
                           .r_squared = RSquaredOf(speed->bursts)};
  LogInfo("link to ", name, " by ", link.path,
          absl::StrFormat(" latency %.1f us bandwidth ", link.latency_seconds * 1e6),
          FormatBytes(static_cast<uint64_t>(link.bytes_per_second)), "/s");
  return link;
}

}  // namespace

absl::Status MeasureLinks(const WorkerContext& context, const transport::AbortWord& abort,
                          control::NodeReporter& reporter) {
  const plan::WindowLayout& layout = context.layout;
  const size_t peers = context.config.compute_nodes.size() + context.peers.memory_nodes();
  LAMINA_RETURN_IF_ERROR(AnswerReplicas(
      context, {.deadline = RealClock().Now() + kReplicasWait + ForLinks(context.node * peers),
                .abort = &abort,
                .beat = &context.counters.beat}));
  const transport::WaitOptions wait{.deadline = RealClock().Now() + kAnswerWait + ForLinks(peers),
                                    .abort = &abort,
                                    .beat = &context.counters.beat};
  std::vector<control::LinkReport> reports;
  // What is sent from anyway, or what lies where rows leave from: the host's memory.
  const auto own = context.windows.on_device() ? context.windows.mirror()
                                               : absl::MakeConstSpan(context.region.bytes());
  const auto bytes_for = [&own](size_t window) {
    return own.first(std::min({own.size(), window, kProbeBytesMax}));
  };
  const auto measure = [&](PeerId peer, const transport::LinkAsker& asker) -> absl::Status {
    absl::StatusOr<control::LinkReport> link = MeasurePeer(context, peer, asker, wait);
    if (!link.ok()) {
      return control::Blame(link.status(), context.peers.Name(peer));
    }
    reports.push_back(*std::move(link));
    return absl::OkStatus();
  };
  for (uint32_t node = 0; node < context.peers.memory_nodes(); ++node) {
    LAMINA_RETURN_IF_ERROR(
        measure(MemoryPeer(node), {.ask_word = layout.query_probe_word(context.node),
                                   .offset = layout.QueryWindow(context.node, 0, 0),
                                   .bytes = bytes_for(layout.query_window_bytes()),
                                   .region = &context.region,
                                   .answer_word = layout.memory_probe_word(node)}));
  }
  for (uint32_t node = context.node + 1; node < context.peers.compute_nodes(); ++node) {
    if (context.peers.Region(ComputePeer(node)) == nullptr) {
      continue;
    }
    LAMINA_RETURN_IF_ERROR(
        measure(ComputePeer(node), {.ask_word = layout.compute_probe_word(context.node),
                                    .offset = layout.ContextWindow(context.node, 0),
                                    .bytes = bytes_for(layout.context_window_bytes()),
                                    .region = &context.region,
                                    .answer_word = layout.compute_probe_word(node)}));
  }
  reporter.ReportLinks(context.config.epoch, std::move(reports));
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
