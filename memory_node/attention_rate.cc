// SPDX-License-Identifier: Apache-2.0
#include "memory_node/attention_rate.h"

#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/attention_load.h"
#include "model/model.h"

namespace lamina::memory_node {
namespace {

constexpr Nanos kMeasured = Millis(100);

std::vector<AttentionDescriptor> LayersOf(const model::Graph& graph) {
  std::vector<AttentionDescriptor> layers;
  for (const model::Op& op : graph.ops) {
    if (const auto* attention = std::get_if<model::AttentionOp>(&op.body)) {
      layers.push_back(attention->descriptor);
    }
  }
  return layers;
}

}  // namespace

absl::StatusOr<double> MeasureAttentionRate(const std::string& model,
                                            const kernels::KvDeviceMaker& make, uint64_t kv_bytes) {
  const absl::StatusOr<model::Model> opened = model::OpenModel(model);
  if (!opened.ok()) {
    LogInfo("for policy auto, attention is not measured, since the model is not here: ",
            opened.status().message());
    return 0.0;
  }
  LAMINA_ASSIGN_OR_RETURN(
      const auto load,
      kernels::AttentionLoad::Create(
          {.layers = LayersOf(opened->graph), .kv_bytes = kv_bytes, .share_kinds = true}, make));
  const Nanos end = RealClock().Now() + kMeasured;
  LAMINA_ASSIGN_OR_RETURN(const double rate, load->Rate([&] { return RealClock().Now() >= end; }));
  LogInfo("for policy auto, attention ", absl::StrFormat("%.1f GB/s", rate / 1e9));
  return rate;
}

}  // namespace lamina::memory_node
