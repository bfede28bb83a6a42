// SPDX-License-Identifier: Apache-2.0
//
// MetricsPage: one scrape of a daemon's metrics, in Prometheus's text format.
//
// A page is made anew for each scrape from counters that are there anyway, so that counting needs
// nothing of it.
//
// Threading: one thread makes a page.

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/metrics/histogram.h"
#include "telemetry/node_counters.h"

namespace lamina::daemon {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class MetricsPage {
 public:
  MetricsPage();
  ~MetricsPage();
  MetricsPage(const MetricsPage&) = delete;
  MetricsPage& operator=(const MetricsPage&) = delete;

  // Metrics of one name stand together, whatever the order of calls. The help of the first counts.
  // By convention names end in their unit, and those of counters in _total.
  void Counter(const std::string& name, const std::string& help, const MetricLabels& labels,
               double value);
  void Gauge(const std::string& name, const std::string& help, const MetricLabels& labels,
             double value);
  void Histogram(const std::string& name, const std::string& help, const MetricLabels& labels,
                 const lamina::Histogram::Snapshot& snapshot);

  std::string Text() const;

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

// What a node shows of itself on its own port, and the coordinator of all its nodes. `prefix` goes
// before the names: "lamina_" or "lamina_node_".
void AddNodeCounters(MetricsPage& page, const std::string& prefix, const MetricLabels& labels,
                     const telemetry::NodeCounters& counters);

// Memory nodes: the read bandwidth that was measured at start, the bound of kv_read_bytes_total,
// and the share of it that attention reaches.
void AddBandwidth(MetricsPage& page, const std::string& prefix, const MetricLabels& labels,
                  double bytes_per_second, const telemetry::NodeCounters& counters);

}  // namespace lamina::daemon
