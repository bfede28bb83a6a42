// SPDX-License-Identifier: Apache-2.0
#include "cost/replica_seconds.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "cost/unit_seconds.h"

namespace lamina::cost {
namespace {

using Sizes = std::vector<plan::SliceTimes> plan::PolicyTimes::*;

double WaySeconds(const PartLink& link, double rows, double copies) {
  LAMINA_CHECK(link.bytes_per_second > 0);
  return link.latency_seconds + copies * rows * link.row_bytes / link.bytes_per_second;
}

// Slices and tail of one node.
double SlicesSeconds(const ReplicaStage& stage, const std::vector<plan::SliceTimes>& sizes,
                     double rows) {
  const plan::SliceTimes at = TimesOf(sizes, rows);
  return stage.slices * at.slice_seconds + (stage.tail ? at.tail_seconds : 0);
}

// What the slowest shard takes, and the sums. `tokens` of context are attended to.
LaneSeconds StageSeconds(const ReplicaStage& stage, const PartLink& link, Sizes sizes, double rows,
                         double tokens) {
  LaneSeconds slowest;
  for (const ReplicaPart& part : stage.shards) {
    LaneSeconds own{.dense = SlicesSeconds(stage, part.times.*sizes, rows)};
    if (tokens > 0) {
      own.attention = tokens * part.kv_bytes_per_token / part.times.attention_local;
    }
    if (own.seconds() > slowest.seconds()) {
      slowest = own;
    }
  }
  if (const size_t shards = stage.shards.size(); shards > 1) {
    const double sums = kReducesOfLayer * (stage.slices + (stage.tail ? 1.0 : 0.0));
    slowest.dense += sums * WaySeconds(link, rows, static_cast<double>(shards - 1));
  }
  return slowest;
}

ReplicaSeconds SecondsOf(const MeasuredReplica& replica, const PartLink& link, Sizes sizes,
                         double rows, double tokens) {
  ReplicaSeconds seconds;
  for (const ReplicaStage& stage : replica.stages) {
    const LaneSeconds own = StageSeconds(stage, link, sizes, rows, tokens);
    seconds.path.dense += own.dense;
    seconds.path.attention += own.attention;
    if (own.seconds() > seconds.busiest.seconds()) {
      seconds.busiest = own;
    }
  }
  if (const size_t stages = replica.stages.size(); stages > 1) {  // The last one tells the first.
    seconds.path.dense += static_cast<double>(stages) * WaySeconds(link, rows, /*copies=*/1);
  }
  return seconds;
}

}  // namespace

MeasuredReplica WholeReplica(const plan::PolicyTimes& times, uint32_t layers,
                             double kv_bytes_per_token) {
  return {.stages = {{.shards = {{.times = times, .kv_bytes_per_token = kv_bytes_per_token}},
                      .slices = layers - 1,
                      .tail = true}}};
}

plan::SliceTimes TimesOf(const std::vector<plan::SliceTimes>& times, double rows) {
  LAMINA_CHECK(!times.empty() && rows > 0);
  size_t upper = 0;
  while (upper + 1 < times.size() && times[upper].rows < rows) {
    ++upper;
  }
  plan::SliceTimes at = times[upper];
  const double wanted = std::max<double>(rows, times.front().rows);
  if (upper > 0) {
    const plan::SliceTimes& low = times[upper - 1];
    const double part = (wanted - low.rows) / (at.rows - low.rows);
    const auto between = [part](double a, double b) { return a + part * (b - a); };
    at.slice_seconds = between(low.slice_seconds, at.slice_seconds);
    at.tail_seconds = between(low.tail_seconds, at.tail_seconds);
  }
  at.rows = static_cast<uint32_t>(std::lround(wanted));
  return at;
}

ReplicaSeconds AttendingSeconds(const MeasuredReplica& replica, const PartLink& link, double rows,
                                double context) {
  return SecondsOf(replica, link, &plan::PolicyTimes::local, rows, rows * context);
}

ReplicaSeconds DenseSeconds(const MeasuredReplica& replica, const PartLink& link, double rows) {
  return SecondsOf(replica, link, &plan::PolicyTimes::pools, rows, /*tokens=*/0);
}

}  // namespace lamina::cost
