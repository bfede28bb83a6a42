// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node_costs.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"
#include "telemetry/work_kind.h"

namespace lamina::coordinator {
namespace {

std::vector<cost::UnitTimes> TimesOf(const std::vector<const AttachedNode*>& nodes) {
  std::vector<cost::UnitTimes> times;
  for (const AttachedNode* node : nodes) {
    times.push_back(
        {.fixed = node->counters.unit_seconds_fixed, .slope = node->counters.unit_seconds_slope});
  }
  return times;
}

// Bytes of a decode row's q, k, v and output, of a layer on average.
double RowBytes(const std::vector<AttentionDescriptor>& layers) {
  double bytes = 0;
  for (const AttentionDescriptor& layer : layers) {
    bytes += static_cast<double>((layer.qkv_width() + layer.q_width()) * sizeof(BFloat16));
  }
  return bytes / static_cast<double>(layers.size());
}

// K and V of a token, of a layer on average.
double KvBytesOfALayer(const plan::EpochConfig& config) {
  const KvForm form = config.KvFormOf(plan::AttentionPath::kRemote);
  return static_cast<double>(KvSlotBytes(config.layers, form)) /
         static_cast<double>(config.layers.size());
}

// Whether all rows attend on compute nodes, over K and V that come as they are. Those of the next
// layer come while this one's are used, in one lane as in several. Where some are made again first,
// several lanes may have room to come ahead that one has not.
bool AttendWhereTheyRun(const plan::EpochConfig& config) {
  return config.attention_paths.fetch() && !config.attention_paths.remote() &&
         config.activation_width == 0 && config.made_tokens_max == 0;
}

// Slots of kinds stay as they are until the next epoch: what is sent over a link that may be faster
// does not grow little by little until rows wait for it, and only what use has shown counts.
double FetchBandwidthOf(const FormedEpoch& epoch, const AttachedNode& node) {
  std::vector<core::KnownLink> links = KnownLinksOf(node);
  for (core::KnownLink& link : links) {
    link.fetched_unbounded_seconds =
        epoch.config().activation_share > 0 ? 0 : link.fetched_unbounded_seconds;
  }
  return core::FetchBandwidthOfAll(links);
}

}  // namespace

MeasuredNodes MeasuredNodesOf(const ClusterMembers& members) {
  MeasuredNodes nodes;
  for (const core::Member* member : members.membership().compute_members()) {
    nodes.compute.push_back(&members.nodes().at(member->name));
  }
  for (const core::Member* member : members.membership().memory_members()) {
    nodes.memory.push_back(&members.nodes().at(member->name));
  }
  return nodes;
}

cost::LaneCosts CostsOfLanes(const FormedEpoch& epoch, const ReplicaSplits& splits,
                             const MeasuredNodes& nodes) {
  const bool attend_here = AttendWhereTheyRun(epoch.config());
  return cost::LaneCostsOf(
      {.compute = TimesOf(nodes.compute),
       .memory = attend_here ? std::vector<cost::UnitTimes>() : TimesOf(nodes.memory),
       .replicas = epoch.topology.Schedule().replicas(),
       .shards = splits.shards(),
       .heads_spread = epoch.heads_spread(),
       .busiest_share = splits.busiest_share()});
}

cost::UnitTimes MeanUnit(const std::vector<const AttachedNode*>& nodes) {
  cost::UnitTimes mean;
  uint32_t measured = 0;
  for (const cost::UnitTimes& node : TimesOf(nodes)) {
    mean.fixed += node.fixed;
    mean.slope += node.slope;
    measured += node.fixed + node.slope > 0 ? 1 : 0;
  }
  return measured == 0 ? cost::UnitTimes{}
                       : cost::UnitTimes{mean.fixed / measured, mean.slope / measured};
}

cost::UnitTimes MeanAttention(const FormedEpoch& epoch, const ReplicaSplits& splits,
                              const std::vector<const AttachedNode*>& nodes) {
  double seconds = 0;
  double bytes = 0;
  for (const AttachedNode* node : nodes) {
    bytes += static_cast<double>(node->counters.kv_bytes_read);
    for (const auto& [part, spent] : node->counters.parts) {
      seconds += part == telemetry::NameOf(telemetry::WorkKind::kAttend) ? spent : 0;
    }
  }
  const double token_bytes = KvBytesOfALayer(epoch.config()) / splits.shards();
  return bytes == 0 ? cost::UnitTimes{} : cost::UnitTimes{.slope = seconds / bytes * token_bytes};
}

core::FetchRates FetchRatesOf(const EngineOptions& options, const FormedEpoch& epoch,
                              const MeasuredNodes& nodes) {
  core::FetchRates rates{.from_tokens = epoch.config().made_tokens_max > 0};
  if (epoch.config().activation_width == 0 && epoch.config().made_tokens_max == 0) {
    return rates;
  }
  rates.slice = MeanUnit(nodes.compute);
  double streamed_bytes = 0;
  for (const AttachedNode* node : nodes.compute) {
    streamed_bytes += static_cast<double>(node->counters.streamed_bytes);
    rates.bytes_per_second += FetchBandwidthOf(epoch, *node);
    const auto made = static_cast<double>(node->counters.recomputed_tokens);
    const double fetched =
        static_cast<double>(node->counters.kv_bytes_read) / KvBytesOfALayer(epoch.config());
    for (const auto& [part, seconds] : node->counters.parts) {
      if (made > 0 && part == telemetry::NameOf(telemetry::WorkKind::kRecompute)) {
        rates.recompute_seconds = seconds / made;
      }
      // Where all K and V are made again none are read from what came.
      if (fetched + made > 0 && part == telemetry::NameOf(telemetry::WorkKind::kAttend)) {
        rates.attend_seconds = seconds / (fetched + made);
      }
    }
    if (const telemetry::FittedSeconds& line = node->counters.making;
        made > 0 && line.explains() && line.slope > 0) {
      rates.recompute_seconds = line.slope;
      rates.recompute_fixed_seconds = line.fixed;
    }
  }
  if (const double bus = options.bus_bytes_per_second; bus > 0) {
    rates.bytes_per_second = rates.bytes_per_second > 0 ? bus : 0;
    // Without a bus they are read, and no link has them.
    rates.weights_seconds =
        streamed_bytes / static_cast<double>(epoch.config().layers.size()) / bus;
  }
  return rates;
}

FetchFits FetchFitsOf(const MeasuredNodes& nodes) {
  FetchFits fits;
  for (const AttachedNode* node : nodes.compute) {
    fits.making = node->counters.making.fitted() ? node->counters.making : fits.making;
    for (const control::LinkReport& link : node->links) {
      if (link.r_squared != 0) {
        fits.link_r_squared = std::min(fits.link_r_squared.value_or(1), link.r_squared);
      }
    }
  }
  return fits;
}

std::string DescribeFits(const FetchFits& fits) {
  std::vector<std::string> words;
  if (fits.link_r_squared.has_value()) {
    words.push_back(absl::StrFormat("%.3f (links)", *fits.link_r_squared));
  }
  if (fits.making.fitted()) {
    words.push_back(absl::StrFormat("%.3f (making K and V)", fits.making.r_squared));
  }
  return words.empty()
             ? ""
             : absl::StrCat("; lines fitted with R squared ", absl::StrJoin(words, " and "));
}

cost::LinkCosts CostsOfLinks(const FormedEpoch& epoch, const MeasuredNodes& nodes) {
  cost::LinkCosts costs{.kv_heads = epoch.topology.window_heads_min()};
  for (const AttachedNode* node : nodes.memory) {
    costs.threads = std::max(costs.threads, node->hello.identity.threads);
  }
  const std::vector<std::string>& memory = epoch.config().memory_nodes;
  double slowest = 0;
  for (const AttachedNode* node : nodes.compute) {
    const auto compute = epoch.topology.FindCompute(node->hello.identity.name);
    if (!compute.ok() || compute->is_for_prompts()) {
      continue;
    }
    const std::vector<core::KnownLink> known = KnownLinksOf(*node);
    for (size_t i = 0; i < known.size(); ++i) {
      if (std::find(memory.begin(), memory.end(), node->links[i].peer) == memory.end() ||
          known[i].bytes_per_second <= 0) {
        continue;
      }
      const double bandwidth = core::BelievedBandwidth(known[i]);
      slowest = slowest == 0 ? bandwidth : std::min(slowest, bandwidth);
      costs.seconds_per_message =
          std::max(costs.seconds_per_message, core::BelievedLatency(known[i]));
    }
  }
  if (slowest > 0) {
    costs.seconds_per_row = RowBytes(epoch.config().layers) / slowest;
    costs.measured = true;
  }
  return costs;
}

}  // namespace lamina::coordinator
