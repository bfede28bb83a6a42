// SPDX-License-Identifier: Apache-2.0
#include "client/cli/timeline.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/log_event.h"

namespace lamina::cli {
namespace {

using telemetry::TraceEvent;
using telemetry::WorkKind;

// Processes and rows of the file.
constexpr int kCoordinator = 1;
constexpr int kLanes = 2;
constexpr int kFirstNode = 10;
constexpr int kWorkerRow = 1;
constexpr int kFirstLinkRow = 2;

struct Span {
  Nanos start = INT64_MAX;
  Nanos end = INT64_MIN;
  void Cover(Nanos from, Nanos to) {
    start = std::min(start, from);
    end = std::max(end, to);
  }
  bool empty() const { return start >= end; }
};

bool IsPut(WorkKind part) {
  return part == WorkKind::kSend || part == WorkKind::kContext || part == WorkKind::kReply;
}

bool IsArrival(WorkKind part) { return part == WorkKind::kTake || part == WorkKind::kStore; }

class Writer {
 public:
  explicit Writer(const client::Timeline& timeline) : timeline_(timeline) {
    base_ = timeline.began;
    for (const client::NodeTimeline& node : timeline.nodes) {
      (node.is_memory ? memory_ : compute_).push_back(node.name);
      for (const TraceEvent& event : node.events) {
        base_ = std::min(base_, event.start);
      }
    }
    for (const client::RequestTimeline& request : timeline.requests) {
      base_ = std::min(base_, request.arrived);
    }
    for (const client::StepTimeline& step : timeline.steps) {
      base_ = std::min(base_, step.planned);
      steps_[{step.lane, step.step}] = &step;
    }
  }

  std::string Write() {
    Requests();
    Steps();
    for (size_t i = 0; i < timeline_.nodes.size(); ++i) {
      Node(timeline_.nodes[i], kFirstNode + static_cast<int>(i));
    }
    Lanes();
    return absl::StrCat(R"({"displayTimeUnit":"ns","otherData":{"epoch":)", timeline_.epoch,
                        "},\"traceEvents\":[\n", text_, "\n]}\n");
  }

 private:
  std::string Micros(Nanos time) const {
    const auto t = time - base_;
    return absl::StrFormat("%d.%03d", t / 1000, t % 1000);
  }
  static std::string Length(Nanos t) { return absl::StrFormat("%d.%03d", t / 1000, t % 1000); }

  void Add(const std::string& event) { absl::StrAppend(&text_, text_.empty() ? "" : ",\n", event); }

  void Name(int process, const std::string& name) {
    Add(absl::StrCat(R"({"ph":"M","name":"process_name","pid":)", process, R"(,"args":{"name":)",
                     JsonString(name), "}}"));
    Add(absl::StrCat(R"({"ph":"M","name":"process_sort_index","pid":)", process,
                     R"(,"args":{"sort_index":)", process, "}}"));
  }
  void NameRow(int process, int row, const std::string& name) {
    Add(absl::StrCat(R"({"ph":"M","name":"thread_name","pid":)", process, R"(,"tid":)", row,
                     R"(,"args":{"name":)", JsonString(name), "}}"));
    Add(absl::StrCat(R"({"ph":"M","name":"thread_sort_index","pid":)", process, R"(,"tid":)", row,
                     R"(,"args":{"sort_index":)", row, "}}"));
  }
  // `args` is the inside of a JSON object.
  void Slice(int process, int row, absl::string_view name, const Span& span,
             const std::string& args) {
    Add(absl::StrCat(R"({"ph":"X","name":)", JsonString(name), R"(,"pid":)", process, R"(,"tid":)",
                     row, R"(,"ts":)", Micros(span.start), R"(,"dur":)",
                     Length(span.end - span.start), R"(,"args":{)", args, "}}"));
  }
  // Adds a span that others may overlap.
  void Async(const char* category, const std::string& id, const std::string& name, const Span& span,
             const std::string& args) {
    const std::string head =
        absl::StrCat(R"(,"cat":")", category, R"(","id":)", JsonString(id), R"(,"name":)",
                     JsonString(name), R"(,"pid":)", kCoordinator, R"(,"tid":1,"ts":)");
    Add(absl::StrCat(R"({"ph":"b")", head, Micros(span.start), R"(,"args":{)", args, "}}"));
    Add(absl::StrCat(R"({"ph":"e")", head, Micros(span.end), "}"));
  }
  void Flow(char phase, int process, Nanos time, uint32_t lane, const std::string& id) {
    Add(absl::StrFormat(
        R"({"ph":"%c"%s,"cat":"lane %d","name":"data","id":"%s","pid":%d,"tid":%d,"ts":%s})", phase,
        phase == 'f' ? R"(,"bp":"e")" : "", lane, id, process, kWorkerRow, Micros(time)));
  }

  std::string PeerOf(const TraceEvent& event) const {
    const bool memory = event.peer >= TraceEvent::kMemoryPeer;
    const std::vector<std::string>& names = memory ? memory_ : compute_;
    const size_t index = memory ? event.peer - TraceEvent::kMemoryPeer : event.peer;
    return event.peer == TraceEvent::kNoPeer || index >= names.size() ? "" : names[index];
  }

  void Requests() {
    Name(kCoordinator, "coordinator");
    size_t number = 0;
    for (const client::RequestTimeline& request : timeline_.requests) {
      const std::string id = absl::StrCat("r", number++);
      const std::string args = absl::StrCat("\"request_id\":", JsonString(request.request_id),
                                            ",\"id\":", JsonString(request.id));
      Async("request", id, request.request_id, {request.arrived, request.ended}, args);
      const auto part = [&](const char* name, Nanos from, Nanos to) {
        if (from != 0) {
          Async("request", id, name, {from, to != 0 ? to : request.ended}, args);
        }
      };
      part("queue", request.arrived, request.started);
      part("prefill", request.started, request.first_token);
      part("decode", request.first_token, request.ended);
    }
  }

  void Steps() {
    for (const client::StepTimeline& step : timeline_.steps) {
      const std::string name = absl::StrCat("lane ", step.lane, " step ", step.step);
      Async("step", absl::StrCat("e", step.epoch, "l", step.lane, "s", step.step), name,
            {step.planned, step.done != 0 ? step.done : timeline_.ended}, StepArgs(step));
    }
  }

  static std::string StepArgs(const client::StepTimeline& step) {
    return absl::StrCat("\"lane\":", step.lane, ",\"step\":", step.step, ",\"rows\":", step.rows,
                        ",\"chunk_tokens\":", step.chunk_tokens, ",\"requests\":[",
                        absl::StrJoin(step.requests, ",",
                                      [](std::string* out, const std::string& id) {
                                        absl::StrAppend(out, JsonString(id));
                                      }),
                        "]");
  }

  void Node(const client::NodeTimeline& node, int process) {
    const char* const role = node.is_memory ? "memory" : node.prefill ? "prefill" : "compute";
    Name(process, absl::StrCat(node.name, " (", role, ")"));
    NameRow(process, kWorkerRow,
            node.is_memory ? "memory worker"
            : node.prefill ? "prefill worker"
                           : "replica");
    std::map<std::string, int> links;
    for (const TraceEvent& event : node.events) {
      Event(node, process, event, links);
      if (!node.is_memory && event.lane != TraceEvent::kNoLane) {
        AddToLane(event);
      }
    }
    for (const auto& [peer, row] : links) {
      NameRow(process, row, absl::StrCat("link ", node.name, " ", peer));
    }
  }

  void Event(const client::NodeTimeline& node, int process, const TraceEvent& event,
             std::map<std::string, int>& links) {
    const std::string peer = PeerOf(event);
    std::string args;
    if (event.lane != TraceEvent::kNoLane) {
      args = absl::StrCat("\"lane\":", event.lane, ",\"step\":", event.step,
                          ",\"layer\":", event.layer, ",\"rows\":", event.rows);
    }
    if (!peer.empty()) {
      absl::StrAppend(&args, args.empty() ? "" : ",", "\"peer\":", JsonString(peer),
                      ",\"bytes\":", event.bytes);
    }
    const Span span{event.start, event.end};
    if (IsOnLink(event.part)) {
      return OnLink(process, event, peer, args, links);
    }
    Slice(process, kWorkerRow, NameOf(event.part), span, args);
    if (peer.empty()) {
      return;
    }
    // Parts of sums go both ways at once, twice in a layer: they have no arrows.
    const bool is_part = event.part == WorkKind::kReduce;
    if (IsPut(event.part) || is_part) {
      const auto [row, is_new] =
          links.emplace(absl::StrCat("to ", peer), kFirstLinkRow + static_cast<int>(links.size()));
      Slice(process, row->second, NameOf(event.part), span, args);
    }
    if (IsPut(event.part)) {
      Flow('s', process, event.start, event.lane, FlowId(event, node.name, peer));
    } else if (IsArrival(event.part)) {
      Flow('f', process, event.end, event.lane, FlowId(event, peer, node.name));
    }
  }

  // The name of the row of what a device does by itself on a link, behind its node's.
  static std::string DeviceRow(const TraceEvent& event, const std::string& peer) {
    switch (event.part) {
      case WorkKind::kLand:
        return absl::StrCat("from ", peer, ", lane ", event.lane, " into the device");
      case WorkKind::kDeviceWait:
        return absl::StrCat("from ", peer, ", lane ", event.lane, " awaited by the device");
      default:
        return absl::StrCat("to ", peer, ", lane ", event.lane, " by the device");
    }
  }

  // What a device sends, or gets, by itself, in a row for each link and lane. That a word was
  // raised is known to within a look, so a span begins where the one before has ended, at the
  // earliest.
  void OnLink(int process, const TraceEvent& event, const std::string& peer,
              const std::string& args, std::map<std::string, int>& links) {
    const auto [row, is_new] =
        links.emplace(DeviceRow(event, peer), kFirstLinkRow + static_cast<int>(links.size()));
    Nanos& end = link_ends_[{process, row->second}];
    const Span span{is_new ? event.start : std::max(event.start, end), event.end};
    if (!span.empty()) {
      Slice(process, row->second, NameOf(event.part), span, args);
      end = span.end;
    }
  }

  static std::string FlowId(const TraceEvent& event, const std::string& from,
                            const std::string& to) {
    return absl::StrCat("l", event.lane, "s", event.step, "k", event.layer, ":", from, ">", to);
  }

  // --- Lanes ---

  struct Layer {
    Span dense;
    Span away;  // From the last put of q, k, v to the last reply that was taken; or the attention.
  };
  struct LaneStep {
    std::map<uint16_t, Layer> layers;
    Span head;
  };

  void AddToLane(const TraceEvent& event) {
    LaneStep& step = lanes_[event.lane][event.step];
    switch (event.part) {
      case WorkKind::kDense:
        return step.layers[event.layer].dense.Cover(event.start, event.end);
      case WorkKind::kSend:
        return step.layers[event.layer].away.Cover(event.end, event.end);
      case WorkKind::kTake:
        return event.peer >= TraceEvent::kMemoryPeer
                   ? step.layers[event.layer].away.Cover(event.end, event.end)
                   : void();
      case WorkKind::kAttend:  // Policy local: it has not gone away.
        return step.layers[event.layer].away.Cover(event.start, event.end);
      case WorkKind::kHead:
        return step.head.Cover(event.start, event.end);
      default:
        return;
    }
  }

  void Lanes() {
    if (lanes_.empty()) {
      return;
    }
    Name(kLanes, "lanes");
    for (const auto& [lane, steps] : lanes_) {
      NameRow(kLanes, lane + 1,
              absl::StrCat("lane ", lane, lane >= timeline_.prefill_lane ? " (prefill)" : ""));
      Nanos end = base_;
      for (const auto& [number, step] : steps) {
        end = Lane(lane, number, step, end);
      }
    }
  }

  // Writes a step of a lane, none of it before `from`: clocks agree to within some hundred
  // nanoseconds, and rows must nest. Returns where it ends.
  Nanos Lane(uint8_t lane, uint32_t number, const LaneStep& step, Nanos from) {
    std::vector<std::pair<std::string, Span>> parts;
    const auto add = [&](const std::string& name, Span span) {
      span.start = std::max(span.start, from);
      if (!span.empty()) {
        from = span.end;
        parts.emplace_back(name, span);
      }
    };
    for (const auto& [layer, spans] : step.layers) {
      add(absl::StrCat("dense ", layer), spans.dense);
      add(absl::StrCat("attention ", layer), spans.away);
    }
    add("head", step.head);
    if (parts.empty()) {
      return from;
    }
    const auto known = steps_.find({lane, number});
    Slice(kLanes, lane + 1, absl::StrCat("step ", number),
          {parts.front().second.start, parts.back().second.end},
          known == steps_.end() ? absl::StrCat("\"step\":", number) : StepArgs(*known->second));
    for (const auto& [name, span] : parts) {
      Slice(kLanes, lane + 1, name, span, absl::StrCat("\"step\":", number));
    }
    return from;
  }

  const client::Timeline& timeline_;
  Nanos base_ = 0;
  std::vector<std::string> compute_;
  std::vector<std::string> memory_;
  std::map<std::pair<uint32_t, uint64_t>, const client::StepTimeline*> steps_;
  std::map<uint8_t, std::map<uint32_t, LaneStep>> lanes_;
  std::map<std::pair<int, int>, Nanos> link_ends_;  // By process and row.
  std::string text_;
};

}  // namespace

size_t KeepLastEpoch(client::Timeline& timeline) {
  const size_t others = std::erase_if(timeline.steps, [&](const client::StepTimeline& step) {
    return step.epoch != timeline.epoch;
  });
  if (others == 0) {
    return 0;
  }
  Nanos since = timeline.ended;
  for (const client::StepTimeline& step : timeline.steps) {
    since = std::min(since, step.planned);
  }
  for (client::NodeTimeline& node : timeline.nodes) {
    // Making an epoch takes far longer than clocks may be off.
    const Nanos begin = since + node.clock_offset - node.clock_error;
    std::erase_if(node.events, [begin](const TraceEvent& event) { return event.end < begin; });
  }
  return others;
}

std::string ToTraceEvents(const client::Timeline& timeline) { return Writer(timeline).Write(); }

}  // namespace lamina::cli
