// SPDX-License-Identifier: Apache-2.0
#include "control/counters_codec_service.h"

#include <algorithm>

#include "common/foreign_text.h"

namespace lamina::control {
namespace {

// A node has fewer parts, reasons and peers, with shorter names.
constexpr int kEntriesMax = 256;
constexpr size_t kNameBytesMax = 200;

std::string Name(const std::string& text) { return ForeignText(text, kNameBytesMax); }

telemetry::BusCount FromProto(const v1::BusCount& proto, ReportedFigures& figures) {
  telemetry::BusCount bus{.direction = Name(proto.direction()),
                          .bytes_per_second = proto.bytes_per_second(),
                          .busy_seconds = figures.Take("buses.busy_seconds", proto.busy_seconds()),
                          .bytes = {}};
  for (const auto& [kind, bytes] : proto.bytes()) {
    if (bus.bytes.size() < kEntriesMax) {
      bus.bytes.emplace_back(Name(kind), bytes);
    }
  }
  std::sort(bus.bytes.begin(), bus.bytes.end());
  return bus;
}

telemetry::SpillReads FromProto(const v1::SpillReads& proto, ReportedFigures& figures) {
  return {.queued_seconds = figures.Take("spill.reads.queued_seconds", proto.queued_seconds()),
          .reading_seconds = figures.Take("spill.reads.reading_seconds", proto.reading_seconds()),
          .behind_seconds = figures.Take("spill.reads.behind_seconds", proto.behind_seconds()),
          .copying_seconds = figures.Take("spill.reads.copying_seconds", proto.copying_seconds()),
          .ahead_bytes = proto.ahead_bytes()};
}

telemetry::SpillCount FromProto(const v1::SpillCount& proto, ReportedFigures& figures) {
  return {.capacity_bytes = proto.capacity_bytes(),
          .used_bytes = proto.used_bytes(),
          .bytes_out = proto.bytes_out(),
          .bytes_in = proto.bytes_in(),
          .sequences_out = proto.sequences_out(),
          .sequences_in = proto.sequences_in(),
          .cached_tokens_out = proto.cached_tokens_out(),
          .cached_tokens_in = proto.cached_tokens_in(),
          .failures = proto.failures(),
          .seconds_out = figures.Take("spill.seconds_out", proto.seconds_out()),
          .seconds_in = figures.Take("spill.seconds_in", proto.seconds_in()),
          .reads = FromProto(proto.reads(), figures),
          .write_bytes_per_second =
              figures.Take("spill.write_bytes_per_second", proto.write_bytes_per_second()),
          .read_bytes_per_second =
              figures.Take("spill.read_bytes_per_second", proto.read_bytes_per_second())};
}

telemetry::LinkCount FromProto(const v1::LinkCount& proto, ReportedFigures& figures) {
  return {.peer = Name(proto.peer()),
          .bytes = proto.bytes(),
          .puts = proto.puts(),
          .seconds = figures.Take("links.seconds", proto.seconds()),
          .failures = proto.failures(),
          .waited_seconds = figures.Take("links.waited_seconds", proto.waited_seconds()),
          .exchange_seconds = figures.Take("links.exchange_seconds", proto.exchange_seconds()),
          .exchange_bytes_per_second =
              figures.Take("links.exchange_bytes_per_second", proto.exchange_bytes_per_second()),
          .fetched_bytes_per_second_least = figures.Take("links.fetched_bytes_per_second_least",
                                                         proto.fetched_bytes_per_second_least()),
          .fetched_bytes_per_second_most = figures.Take("links.fetched_bytes_per_second_most",
                                                        proto.fetched_bytes_per_second_most()),
          .fetched_unbounded_seconds =
              figures.Take("links.fetched_unbounded_seconds", proto.fetched_unbounded_seconds())};
}

}  // namespace

void ToProto(const telemetry::NodeCounters& counters, v1::NodeDetail* proto) {
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
  for (const telemetry::LinkCount& link : counters.links) {
    v1::LinkCount* entry = proto->add_links();
    entry->set_peer(link.peer);
    entry->set_bytes(link.bytes);
    entry->set_puts(link.puts);
    entry->set_seconds(link.seconds);
    entry->set_failures(link.failures);
    entry->set_waited_seconds(link.waited_seconds);
    entry->set_exchange_seconds(link.exchange_seconds);
    entry->set_exchange_bytes_per_second(link.exchange_bytes_per_second);
    entry->set_fetched_bytes_per_second_least(link.fetched_bytes_per_second_least);
    entry->set_fetched_bytes_per_second_most(link.fetched_bytes_per_second_most);
    entry->set_fetched_unbounded_seconds(link.fetched_unbounded_seconds);
  }
  proto->set_weight_bytes(counters.weight_bytes);
  proto->set_streamed_bytes(counters.streamed_bytes);
  for (const auto& [name, bytes] : counters.memory) {
    (*proto->mutable_memory())[name] = bytes;
  }
  proto->set_memory_budget(counters.memory_budget);
  if (const telemetry::FormulaMemory& formula = counters.memory_formula;
      formula.paper != telemetry::MemoryPaper::kNone) {
    v1::MemoryFormula* entry = proto->mutable_memory_formula();
    entry->set_paper(std::string(NameOf(formula.paper)));
    entry->set_weights(formula.weights);
    entry->set_windows(formula.windows);
    entry->set_activations(formula.activations);
    entry->set_resident(formula.resident);
    entry->set_heads(formula.heads);
  }
  if (const telemetry::SpillCount& spill = counters.spill; spill.capacity_bytes > 0) {
    v1::SpillCount* entry = proto->mutable_spill();
    entry->set_capacity_bytes(spill.capacity_bytes);
    entry->set_used_bytes(spill.used_bytes);
    entry->set_bytes_out(spill.bytes_out);
    entry->set_bytes_in(spill.bytes_in);
    entry->set_sequences_out(spill.sequences_out);
    entry->set_sequences_in(spill.sequences_in);
    entry->set_cached_tokens_out(spill.cached_tokens_out);
    entry->set_cached_tokens_in(spill.cached_tokens_in);
    entry->set_failures(spill.failures);
    entry->set_seconds_out(spill.seconds_out);
    entry->set_seconds_in(spill.seconds_in);
    v1::SpillReads* reads = entry->mutable_reads();
    reads->set_queued_seconds(spill.reads.queued_seconds);
    reads->set_reading_seconds(spill.reads.reading_seconds);
    reads->set_behind_seconds(spill.reads.behind_seconds);
    reads->set_copying_seconds(spill.reads.copying_seconds);
    reads->set_ahead_bytes(spill.reads.ahead_bytes);
    entry->set_write_bytes_per_second(spill.write_bytes_per_second);
    entry->set_read_bytes_per_second(spill.read_bytes_per_second);
  }
  for (const telemetry::BusCount& bus : counters.buses) {
    v1::BusCount* entry = proto->add_buses();
    entry->set_direction(bus.direction);
    entry->set_bytes_per_second(bus.bytes_per_second);
    entry->set_busy_seconds(bus.busy_seconds);
    for (const auto& [kind, bytes] : bus.bytes) {
      (*entry->mutable_bytes())[kind] = bytes;
    }
  }
  if (counters.making.fitted()) {
    v1::FittedSeconds* making = proto->mutable_making();
    making->set_fixed(counters.making.fixed);
    making->set_slope(counters.making.slope);
    making->set_r_squared(counters.making.r_squared);
  }
  proto->set_replayed_units(counters.replayed_units);
  proto->set_device_units(counters.device_units);
  proto->set_recomputed_tokens(counters.recomputed_tokens);
  proto->set_data_thread(std::string(NameOf(counters.activity)));
  proto->set_data_thread_beats(counters.beats);
}

void FromProto(const v1::NodeDetail& proto, telemetry::NodeCounters& counters,
               ReportedFigures& figures) {
  counters.spill = FromProto(proto.spill(), figures);
  for (int i = 0; i < std::min(proto.parts_size(), kEntriesMax); ++i) {
    counters.parts.emplace_back(Name(proto.parts(i).part()),
                                figures.Take("parts.seconds", proto.parts(i).seconds()));
  }
  for (int i = 0; i < std::min(proto.refusals_size(), kEntriesMax); ++i) {
    counters.refusals.emplace_back(Name(proto.refusals(i).reason()), proto.refusals(i).count());
  }
  for (int i = 0; i < std::min(proto.links_size(), kEntriesMax); ++i) {
    counters.links.push_back(FromProto(proto.links(i), figures));
  }
  counters.weight_bytes = proto.weight_bytes();
  counters.streamed_bytes = proto.streamed_bytes();
  for (const auto& [name, bytes] : proto.memory()) {
    if (counters.memory.size() < kEntriesMax) {
      counters.memory.emplace_back(Name(name), bytes);
    }
  }
  std::sort(counters.memory.begin(), counters.memory.end());
  for (int i = 0; i < std::min(proto.buses_size(), kEntriesMax); ++i) {
    counters.buses.push_back(FromProto(proto.buses(i), figures));
  }
  counters.memory_budget = proto.memory_budget();
  counters.memory_formula = {.paper = telemetry::MemoryPaperOf(proto.memory_formula().paper()),
                             .weights = proto.memory_formula().weights(),
                             .windows = proto.memory_formula().windows(),
                             .activations = proto.memory_formula().activations(),
                             .resident = proto.memory_formula().resident(),
                             .heads = proto.memory_formula().heads()};
  counters.making = {
      .fixed = figures.Take("making.fixed", proto.making().fixed()),
      .slope = figures.Take("making.slope", proto.making().slope()),
      .r_squared = figures.TakeSigned("making.r_squared", proto.making().r_squared())};
  counters.replayed_units = proto.replayed_units();
  counters.device_units = proto.device_units();
  counters.recomputed_tokens = proto.recomputed_tokens();
  counters.activity = ThreadActivityOf(proto.data_thread());
  counters.beats = proto.data_thread_beats();
}

void ToProto(const NodeTrace& trace, v1::NodeTrace* proto) {
  proto->set_id(trace.id);
  proto->set_dropped(trace.dropped);
  proto->mutable_words()->Reserve(static_cast<int>(trace.events.size()) *
                                  telemetry::TraceEvent::kWords);
  for (const telemetry::TraceEvent& event : trace.events) {
    for (const uint64_t word : event.ToWords()) {
      proto->add_words(word);
    }
  }
}

NodeTrace FromProto(const v1::NodeTrace& proto) {
  NodeTrace trace{.id = proto.id(), .dropped = proto.dropped()};
  for (int i = 0; i + telemetry::TraceEvent::kWords <= proto.words_size();
       i += telemetry::TraceEvent::kWords) {
    trace.events.push_back(telemetry::TraceEvent::FromWords(proto.words().data() + i));
  }
  return trace;
}

}  // namespace lamina::control
