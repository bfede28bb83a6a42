// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/serving_bandwidth.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"

namespace lamina::core {

void AttentionRate::Update(uint64_t bytes, double seconds) {
  const double spent = seconds - seconds_total_;
  if (bytes > bytes_total_ && spent > 0) {
    const double kept = std::exp(-spent / kMemorySeconds);
    bytes_ = bytes_ * kept + static_cast<double>(bytes - bytes_total_);
    seconds_ = seconds_ * kept + spent;
    seen_ += spent;
  }
  bytes_total_ = bytes;
  seconds_total_ = seconds;
}

ServingBandwidth BandwidthOf(const std::vector<NodeSpeed>& nodes) {
  ServingBandwidth result;
  result.measured =
      !nodes.empty() && std::all_of(nodes.begin(), nodes.end(),
                                    [](const NodeSpeed& node) { return node.attending > 0; });
  for (const NodeSpeed& node : nodes) {
    result.bytes_per_second.push_back(result.measured ? node.attending : node.at_start);
  }
  if (result.measured) {
    const double all =
        std::accumulate(result.bytes_per_second.begin(), result.bytes_per_second.end(), 0.0);
    for (size_t i = 0; i < nodes.size(); ++i) {
      absl::StrAppendFormat(&result.words, "%s%s %.0f%%", i == 0 ? "by attention of late " : ", ",
                            nodes[i].name, 100 * result.bytes_per_second[i] / all);
    }
  }
  return result;
}

}  // namespace lamina::core
