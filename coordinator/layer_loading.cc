// SPDX-License-Identifier: Apache-2.0
#include "coordinator/layer_loading.h"

#include <map>
#include <optional>

#include "common/log.h"
#include "common/status_macros.h"

namespace lamina::coordinator {

absl::Status LayerLoading::Split() {
  std::map<std::string, double> speeds;
  for (const auto& [name, node] : nodes_.all()) {
    speeds[name] = node.hello.identity.dense_speed;
  }
  return splits_.Split(speeds);
}

absl::Status LayerLoading::Begin() {
  LAMINA_RETURN_IF_ERROR(Split());
  for (auto& [name, node] : nodes_.all()) {
    const std::optional<plan::Stage> layers = splits_.LayersToLoad(name);
    if (node.joining == Joining::kAwaitsLayers && layers.has_value()) {
      LogInfo("loading layers ", name, " pid ", node.hello.pid);
      node.joining = Joining::kLoads;
      nodes_.Asked(name, ThreadActivity::kLoading);
      node.port->LoadLayers(*layers, /*measure=*/options_.policy_auto.has_value());
    }
  }
  return absl::OkStatus();
}

bool LayerLoading::End(const std::string& name) {
  AttachedNode& node = nodes_.at(name);
  if (node.joining != Joining::kLoads) {
    return false;
  }
  node.joining = Joining::kJoined;
  nodes_.Answered(name);
  return true;
}

}  // namespace lamina::coordinator
