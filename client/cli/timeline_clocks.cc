// SPDX-License-Identifier: Apache-2.0
#include "client/cli/timeline_clocks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace lamina::cli {
namespace {

using telemetry::TraceEvent;
using telemetry::WorkKind;

// What a put and its arrival have in common.
using Unit = std::tuple<uint8_t, uint32_t, uint16_t>;  // Lane, step, layer.
// Indices of the sending and the receiving node in the timeline.
using Pair = std::pair<size_t, size_t>;

struct Span {
  Nanos start = 0;
  Nanos end = 0;
};

// When data from one node to another left and came.
struct Ends {
  std::map<Unit, Span> put;
  std::map<Unit, Span> arrived;  // From when it was seen until it was stored.
};

bool IsPut(WorkKind part) {
  return part == WorkKind::kSend || part == WorkKind::kContext || part == WorkKind::kReply;
}

bool IsArrival(WorkKind part) { return part == WorkKind::kTake || part == WorkKind::kStore; }

void Shift(client::NodeTimeline& node, Nanos by) {
  for (TraceEvent& event : node.events) {
    event.start -= by;
    event.end -= by;
  }
}

// The place of an event's peer, if there is one.
std::optional<size_t> PeerOf(const client::Timeline& timeline, const TraceEvent& event) {
  if (event.peer == TraceEvent::kNoPeer) {
    return std::nullopt;
  }
  const bool is_memory = event.peer >= TraceEvent::kMemoryPeer;
  const size_t index = is_memory ? event.peer - TraceEvent::kMemoryPeer : event.peer;
  size_t seen = 0;
  for (size_t i = 0; i < timeline.nodes.size(); ++i) {
    if (timeline.nodes[i].is_memory == is_memory && seen++ == index) {
      return i;
    }
  }
  return std::nullopt;
}

std::map<Pair, Ends> EndsOf(const client::Timeline& timeline) {
  std::map<Pair, Ends> pairs;
  for (size_t i = 0; i < timeline.nodes.size(); ++i) {
    for (const TraceEvent& event : timeline.nodes[i].events) {
      const std::optional<size_t> peer = PeerOf(timeline, event);
      const Unit unit(event.lane, event.step, event.layer);
      if (peer.has_value() && IsPut(event.part)) {
        pairs[{i, *peer}].put[unit] = {event.start, event.end};
      } else if (peer.has_value() && IsArrival(event.part)) {
        pairs[{*peer, i}].arrived[unit] = {event.start, event.end};
      }
    }
  }
  return pairs;
}

// The least times from a put to its arrival.
struct Fastest {
  Nanos likely = INT64_MAX;  // From the put's end until it was seen.
  Nanos most = INT64_MAX;    // From the put's begin until it was stored: never less than nothing.
};

std::optional<Fastest> FastestOf(const std::map<Pair, Ends>& pairs, const Pair& pair) {
  const auto found = pairs.find(pair);
  if (found == pairs.end()) {
    return std::nullopt;
  }
  Fastest fastest;
  for (const auto& [unit, put] : found->second.put) {
    const auto arrived = found->second.arrived.find(unit);
    if (arrived != found->second.arrived.end()) {
      fastest.likely = std::min(fastest.likely, arrived->second.start - put.end);
      fastest.most = std::min(fastest.most, arrived->second.end - put.start);
    }
  }
  return fastest.most == INT64_MAX ? std::nullopt : std::optional(fastest);
}

// How much later the other clock is than it seems, by the data that goes both ways; 0 where the
// control plane knows better, unless data would arrive before it was put.
Nanos CorrectionOf(const Fastest& there, const Fastest& back, Nanos error) {
  const Nanos middle = (there.likely - back.likely) / 2;
  const Nanos uncertain = std::max<Nanos>(0, (there.likely + back.likely) / 2);
  const Nanos best = uncertain < error ? middle : 0;
  return there.most + back.most < 0 ? middle : std::clamp(best, -back.most, there.most);
}

}  // namespace

std::vector<NodeClock> PutOnOneClock(client::Timeline& timeline) {
  std::vector<NodeClock> clocks;
  for (client::NodeTimeline& node : timeline.nodes) {
    clocks.push_back(
        {.measured = node.clock_offset, .error = node.clock_error, .shift = node.clock_offset});
    Shift(node, node.clock_offset);
  }
  const std::map<Pair, Ends> pairs = EndsOf(timeline);
  std::vector<Nanos> correction(timeline.nodes.size(), 0);
  std::vector<bool> placed(timeline.nodes.size(), false);
  for (size_t root = 0; root < placed.size(); ++root) {
    if (placed[root]) {
      continue;
    }
    // The first of those that speak to each other keeps its time; the others follow.
    std::vector<size_t> reached = {root};
    placed[root] = true;
    for (size_t next = 0; next < reached.size(); ++next) {
      const size_t from = reached[next];
      for (size_t to = 0; to < placed.size(); ++to) {
        const auto there = FastestOf(pairs, {from, to});
        const auto back = FastestOf(pairs, {to, from});
        if (!placed[to] && there.has_value() && back.has_value()) {
          placed[to] = true;
          reached.push_back(to);
          const Nanos error = clocks[from].error + clocks[to].error;
          correction[to] = correction[from] + CorrectionOf(*there, *back, error);
        }
      }
    }
  }
  for (size_t i = 0; i < timeline.nodes.size(); ++i) {
    clocks[i].shift += correction[i];
    Shift(timeline.nodes[i], correction[i]);
  }
  return clocks;
}

}  // namespace lamina::cli
