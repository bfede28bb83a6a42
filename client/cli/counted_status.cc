// SPDX-License-Identifier: Apache-2.0
#include "client/cli/counted_status.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/status_macros.h"

namespace lamina::cli {
namespace {

constexpr absl::Duration kWaitMax = absl::Seconds(5);
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(50);
constexpr uint64_t kReports = 2;

}  // namespace

bool HasCounted(const client::ClusterStatus& before, const client::ClusterStatus& now) {
  return std::all_of(now.nodes.begin(), now.nodes.end(), [&](const client::NodeStatus& node) {
    const auto old =
        std::find_if(before.nodes.begin(), before.nodes.end(),
                     [&](const client::NodeStatus& other) { return other.name == node.name; });
    // The coordinator itself makes none, and counts of a node that attached anew begin again.
    const bool reporting = node.state == "ready" && old != before.nodes.end() && old->reports > 0;
    return !reporting || node.reports < old->reports || node.reports >= old->reports + kReports;
  });
}

absl::StatusOr<client::ClusterStatus> CountedStatus(client::Client& client,
                                                    const client::Cancellation& cancellation) {
  const absl::Time deadline = absl::Now() + kWaitMax;
  LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus before, client.Status());
  client::ClusterStatus now = before;
  while (!HasCounted(before, now) && absl::Now() < deadline && !cancellation.cancelled()) {
    absl::SleepFor(kBetweenLooks);
    LAMINA_ASSIGN_OR_RETURN(now, client.Status());
  }
  return now;
}

}  // namespace lamina::cli
