// SPDX-License-Identifier: Apache-2.0
#include "control/counters_codec_service.h"

namespace lamina::control {

void ToProto(const NodeCounters& counters, v1::NodeDetail* proto) {
  for (const auto& [name, seconds] : counters.parts) {
    v1::PartTime* part = proto->add_parts();
    part->set_part(name);
    part->set_seconds(seconds);
  }
  for (const auto& [reason, count] : counters.refusals) {
    v1::RefusalCount* refusal = proto->add_refusals();
    refusal->set_reason(reason);
    refusal->set_count(count);
  }
  for (const LinkCount& link : counters.links) {
    v1::LinkCount* entry = proto->add_links();
    entry->set_peer(link.peer);
    entry->set_bytes(link.bytes);
    entry->set_puts(link.puts);
    entry->set_seconds(link.seconds);
    entry->set_failures(link.failures);
    entry->set_waited_seconds(link.waited_seconds);
  }
}

void FromProto(const v1::NodeDetail& proto, NodeCounters& counters) {
  for (const v1::PartTime& part : proto.parts()) {
    counters.parts.emplace_back(part.part(), part.seconds());
  }
  for (const v1::RefusalCount& refusal : proto.refusals()) {
    counters.refusals.emplace_back(refusal.reason(), refusal.count());
  }
  for (const v1::LinkCount& link : proto.links()) {
    counters.links.push_back({.peer = link.peer(),
                              .bytes = link.bytes(),
                              .puts = link.puts(),
                              .seconds = link.seconds(),
                              .failures = link.failures(),
                              .waited_seconds = link.waited_seconds()});
  }
}

}  // namespace lamina::control
