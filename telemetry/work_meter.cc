// SPDX-License-Identifier: Apache-2.0
#include "telemetry/work_meter.h"

namespace lamina::telemetry {

absl::string_view NameOf(WorkPart part) {
  switch (part) {
    case WorkPart::kLayOut:
      return "lay_out";
    case WorkPart::kDense:
      return "dense";
    case WorkPart::kSend:
      return "send";
    case WorkPart::kChunks:
      return "chunks";
    case WorkPart::kRecompute:
      return "recompute";
    case WorkPart::kBeside:
      return "beside";
    case WorkPart::kContext:
      return "context";
    case WorkPart::kReduce:
      return "reduce";
    case WorkPart::kHead:
      return "head";
    case WorkPart::kTake:
      return "take";
    case WorkPart::kWaitAttention:
      return "wait_attention";
    case WorkPart::kWaitReplica:
      return "wait_replica";
    case WorkPart::kWaitPlan:
      return "wait_plan";
    case WorkPart::kStore:
      return "store";
    case WorkPart::kAttend:
      return "attend";
    case WorkPart::kReply:
      return "reply";
    case WorkPart::kTables:
      return "tables";
    case WorkPart::kSpill:
      return "spill";
    case WorkPart::kWaitQuery:
      return "wait_query";
  }
  return "";
}

bool IsWait(WorkPart part) {
  return part == WorkPart::kWaitAttention || part == WorkPart::kWaitReplica ||
         part == WorkPart::kWaitPlan || part == WorkPart::kWaitQuery;
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
                     .exchange_bytes_per_second = link->exchange.bytes_per_second()});
  }
  return links;
}

}  // namespace lamina::telemetry
