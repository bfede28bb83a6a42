// SPDX-License-Identifier: Apache-2.0
#include "compute_node/remote_path_maker.h"

#include "absl/strings/str_cat.h"
#include "common/units.h"
#include "compute_node/device_remote_attention.h"
#include "compute_node/remote_attention.h"

namespace lamina::compute_node {

std::string RemotePathMaker::Describe() const {
  return absl::StrCat("scratch ", FormatBytes(scratch_.bytes()));
}

std::unique_ptr<AttentionPath> RemotePathMaker::Make(const WorkerContext& context) {
  auto by_host = std::make_unique<RemoteAttention>(context, scratch_.Make(context));
  if (device_.is_host()) {
    return by_host;
  }
  return std::make_unique<DeviceRemoteAttention>(context, std::move(by_host));
}

}  // namespace lamina::compute_node
