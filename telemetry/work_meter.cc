// SPDX-License-Identifier: Apache-2.0
#include "telemetry/work_meter.h"

namespace lamina::telemetry {

absl::string_view NameOf(WorkKind part) {
  switch (part) {
    case WorkKind::kLayOut:
      return "lay_out";
    case WorkKind::kDense:
      return "dense";
    case WorkKind::kSend:
      return "send";
    case WorkKind::kChunks:
      return "chunks";
    case WorkKind::kRecompute:
      return "recompute";
    case WorkKind::kOverlapped:
      return "beside";
    case WorkKind::kContext:
      return "context";
    case WorkKind::kReduce:
      return "reduce";
    case WorkKind::kHead:
      return "head";
    case WorkKind::kTake:
      return "take";
    case WorkKind::kWaitAttention:
      return "wait_attention";
    case WorkKind::kWaitReplica:
      return "wait_replica";
    case WorkKind::kWaitWeights:
      return "wait_weights";
    case WorkKind::kWaitPlan:
      return "wait_plan";
    case WorkKind::kStore:
      return "store";
    case WorkKind::kAttend:
      return "attend";
    case WorkKind::kReply:
      return "reply";
    case WorkKind::kTables:
      return "tables";
    case WorkKind::kSpill:
      return "spill";
    case WorkKind::kWaitQuery:
      return "wait_query";
    case WorkKind::kPost:
      return "post";
    case WorkKind::kInFlight:
      return "in_flight";
    case WorkKind::kLand:
      return "land";
    case WorkKind::kDeviceWait:
      return "device_wait";
  }
  return "";
}

bool IsWait(WorkKind part) {
  return part == WorkKind::kWaitAttention || part == WorkKind::kWaitReplica ||
         part == WorkKind::kWaitWeights || part == WorkKind::kWaitPlan ||
         part == WorkKind::kWaitQuery;
}

LinkCounters* WorkMeter::Link(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<LinkCounters>& link = links_[peer];
  if (link == nullptr) {
    link = std::make_unique<LinkCounters>();
  }
  return link.get();
}

std::vector<LinkCount> WorkMeter::Links() const {
  const std::lock_guard lock(mutex_);
  std::vector<LinkCount> links;
  for (const auto& [peer, link] : links_) {
    const auto read = [](const std::atomic<uint64_t>& counter) {
      return counter.load(std::memory_order_relaxed);
    };
    links.push_back({.peer = peer,
                     .bytes = read(link->bytes),
                     .puts = read(link->puts),
                     .seconds = ToSeconds(static_cast<Nanos>(read(link->nanos))),
                     .failures = read(link->failures),
                     .waited_seconds = ToSeconds(static_cast<Nanos>(read(link->waited_nanos))),
                     .exchange_seconds = link->exchange.seconds(),
                     .exchange_bytes_per_second = link->exchange.bytes_per_second(),
                     .fetched_bytes_per_second_least = link->fetched.least(),
                     .fetched_bytes_per_second_most = link->fetched.most(),
                     .fetched_unbounded_seconds = link->fetched.unbounded_seconds()});
  }
  return links;
}

}  // namespace lamina::telemetry
