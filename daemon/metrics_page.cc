// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics_page.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>

namespace lamina::daemon {

struct MetricsPage::Families {
  std::vector<prometheus::MetricFamily> all;

  // The new metric of a family, with its labels.
  prometheus::ClientMetric& Add(const std::string& name, const std::string& help,
                                prometheus::MetricType type, const MetricLabels& labels) {
    auto family = std::find_if(all.begin(), all.end(),
                               [&name](const auto& candidate) { return candidate.name == name; });
    if (family == all.end()) {
      all.push_back({.name = name, .help = help, .type = type, .metric = {}});
      family = all.end() - 1;
    }
    prometheus::ClientMetric& metric = family->metric.emplace_back();
    for (const auto& [label, value] : labels) {
      metric.label.push_back({.name = label, .value = value});
    }
    return metric;
  }
};

MetricsPage::MetricsPage() : families_(std::make_unique<Families>()) {}
MetricsPage::~MetricsPage() = default;

void MetricsPage::Counter(const std::string& name, const std::string& help,
                          const MetricLabels& labels, double value) {
  families_->Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void MetricsPage::Gauge(const std::string& name, const std::string& help,
                        const MetricLabels& labels, double value) {
  families_->Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void MetricsPage::Histogram(const std::string& name, const std::string& help,
                            const MetricLabels& labels,
                            const lamina::Histogram::Snapshot& snapshot) {
  auto& histogram = families_->Add(name, help, prometheus::MetricType::Histogram, labels).histogram;
  histogram.sample_count = snapshot.count;
  histogram.sample_sum = snapshot.sum;
  uint64_t below = 0;
  for (size_t i = 0; i < snapshot.counts.size(); ++i) {
    below += snapshot.counts[i];
    histogram.bucket.push_back({.cumulative_count = below,
                                .upper_bound = i < snapshot.bounds.size()
                                                   ? snapshot.bounds[i]
                                                   : std::numeric_limits<double>::infinity()});
  }
}

namespace {

MetricLabels With(MetricLabels labels, const std::string& name, const std::string& value) {
  labels.emplace_back(name, value);
  return labels;
}

void AddLink(MetricsPage& page, const std::string& prefix, const MetricLabels& labels,
             const telemetry::LinkCount& link) {
  page.Counter(prefix + "sent_bytes_total", "Bytes put into windows of the peer.", labels,
               static_cast<double>(link.bytes));
  page.Counter(prefix + "messages_total", "Messages put into windows of the peer.", labels,
               static_cast<double>(link.puts));
  page.Counter(prefix + "put_seconds_total", "Time that the data thread spent putting them.",
               labels, link.seconds);
  page.Counter(prefix + "put_failures_total", "Puts that ended with an error.", labels,
               static_cast<double>(link.failures));
  page.Counter(prefix + "wait_seconds_total", "Time that the data thread stood still for the peer.",
               labels, link.waited_seconds);
}

void AddSpill(MetricsPage& page, const std::string& prefix, const MetricLabels& labels,
              const telemetry::SpillCount& spill) {
  page.Gauge(prefix + "capacity_bytes", "Of the spill tier.", labels,
             static_cast<double>(spill.capacity_bytes));
  page.Gauge(prefix + "used_bytes",
             "Of the spill tier, by sequences that wait and blocks of the prefix cache.", labels,
             static_cast<double>(spill.used_bytes));
  page.Counter(prefix + "failures_total",
               "Sequences and runs of cached blocks that could not be written or read back.",
               labels, static_cast<double>(spill.failures));
  const auto add_direction = [&](const char* direction, uint64_t bytes, uint64_t sequences,
                                 uint64_t cached_tokens, double seconds) {
    const MetricLabels with = With(labels, "direction", direction);
    page.Counter(prefix + "bytes_total", "K and V written to the spill tier, or read back.", with,
                 static_cast<double>(bytes));
    page.Counter(prefix + "sequences_total", "Sequences written whole, or read back.", with,
                 static_cast<double>(sequences));
    page.Counter(prefix + "cached_tokens_total",
                 "Tokens of the prefix cache copied to the spill tier, or read back.", with,
                 static_cast<double>(cached_tokens));
    page.Counter(prefix + "seconds_total", "From their plans to their reports.", with, seconds);
  };
  add_direction("out", spill.bytes_out, spill.sequences_out, spill.cached_tokens_out,
                spill.seconds_out);
  add_direction("in", spill.bytes_in, spill.sequences_in, spill.cached_tokens_in, spill.seconds_in);
  const telemetry::SpillReads& reads = spill.reads;
  const std::pair<const char*, double> parts[] = {{"queued", reads.queued_seconds},
                                                  {"reading", reads.reading_seconds},
                                                  {"behind", reads.behind_seconds}};
  for (const auto& [part, seconds] : parts) {
    page.Counter(prefix + "read_seconds_total",
                 "Of reads from their plans to their reports, what was before the first block, at "
                 "the disk, and behind it.",
                 With(labels, "part", part), seconds);
  }
  page.Counter(prefix + "copying_seconds_total",
               "Time of threads that checked and copied what was read.", labels,
               reads.copying_seconds);
  page.Counter(prefix + "ahead_bytes_total",
               "Of what was read back, what had been read before a plan wanted it.", labels,
               static_cast<double>(reads.ahead_bytes));
}

void AddBus(MetricsPage& page, const std::string& prefix, const MetricLabels& labels,
            const telemetry::BusCount& bus) {
  page.Gauge(prefix + "bandwidth_bytes_per_second", "Bandwidth of the emulated bus.", labels,
             static_cast<double>(bus.bytes_per_second));
  page.Counter(prefix + "busy_seconds_total",
               "Time that transfers of all nodes on the emulated bus took of it.", labels,
               bus.busy_seconds);
  for (const auto& [kind, bytes] : bus.bytes) {
    page.Counter(prefix + "bytes_total",
                 "Bytes of all nodes on the emulated bus, by what they were.",
                 With(labels, "kind", kind), static_cast<double>(bytes));
  }
}

}  // namespace

std::string MetricsPage::Text() const {
  return prometheus::TextSerializer().Serialize(families_->all);
}

void AddNodeCounters(MetricsPage& page, const std::string& prefix, const MetricLabels& labels,
                     const telemetry::NodeCounters& counters) {
  page.Counter(prefix + "busy_seconds_total", "Time that the data thread computed.", labels,
               counters.busy_seconds);
  page.Counter(prefix + "sent_bytes_total", "Bytes put into windows of other nodes.", labels,
               static_cast<double>(counters.bytes_sent));
  page.Counter(prefix + "received_bytes_total", "Bytes taken from windows of this node.", labels,
               static_cast<double>(counters.bytes_received));
  for (const auto& [reason, count] : counters.refusals) {
    page.Counter(prefix + "refused_messages_total",
                 "Messages in windows that did not fit the plan, or were damaged.",
                 With(labels, "reason", reason), static_cast<double>(count));
  }
  page.Counter(prefix + "kv_read_bytes_total", "KV cache that attention has read.", labels,
               static_cast<double>(counters.kv_bytes_read));
  page.Counter(prefix + "units_total", "Slices run, or attentions computed.", labels,
               static_cast<double>(counters.units));
  page.Counter(prefix + "replayed_units_total",
               "Slices that the device had captured as a graph, so that each was one call.", labels,
               static_cast<double>(counters.replayed_units));
  page.Counter(prefix + "recomputed_tokens_total",
               "Tokens, times layers, whose K and V were made again from activations.", labels,
               static_cast<double>(counters.recomputed_tokens));
  page.Counter(prefix + "device_units_total",
               "Units for whose windows the device waited itself, without the processor.", labels,
               static_cast<double>(counters.device_units));
  if (counters.spill.capacity_bytes > 0) {
    AddSpill(page, prefix + "spill_", labels, counters.spill);
  }
  for (const auto& [part, seconds] : counters.parts) {
    page.Counter(prefix + "part_seconds_total", "Time of the data thread, by what it went into.",
                 With(labels, "part", part), seconds);
  }
  for (const auto& [part, bytes] : counters.memory) {
    page.Gauge(prefix + "memory_bytes", "Memory of the device, by what it is for.",
               With(labels, "part", part), static_cast<double>(bytes));
  }
  for (const telemetry::BusCount& bus : counters.buses) {
    AddBus(page, prefix + "bus_", With(labels, "direction", bus.direction), bus);
  }
  for (const telemetry::LinkCount& link : counters.links) {
    AddLink(page, prefix + "link_", With(labels, "peer", link.peer), link);
  }
}

void AddBandwidth(MetricsPage& page, const std::string& prefix, const MetricLabels& labels,
                  double bytes_per_second, const telemetry::NodeCounters& counters) {
  page.Gauge(prefix + "read_bandwidth_bytes_per_second",
             "Read bandwidth of memory, measured at start.", labels, bytes_per_second);
  const auto attend = std::find_if(counters.parts.begin(), counters.parts.end(), [](const auto& p) {
    return p.first == telemetry::NameOf(telemetry::WorkKind::kAttend);
  });
  const double seconds = attend == counters.parts.end() ? 0 : attend->second;
  const double readable = seconds * bytes_per_second;
  page.Gauge(prefix + "read_bandwidth_share",
             "Of that bandwidth, what attention has reached while it ran, since the start.", labels,
             readable > 0 ? static_cast<double>(counters.kv_bytes_read) / readable : 0);
}

}  // namespace lamina::daemon
