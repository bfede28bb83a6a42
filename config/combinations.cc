// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "config/combinations_internal.h"

namespace lamina::internal {
namespace {

template <typename Node>
absl::Status CheckListOnCpu(const Feature& feature, absl::string_view list,
                            const std::vector<Node>& nodes) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].device != "cpu") {
      return NotServedTogether(feature, absl::StrCat(list, ".", i, ".device ", nodes[i].device),
                               "put every node on cpu");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NotServedTogether(const Feature& feature, absl::string_view other,
                               absl::string_view remedy) {
  return absl::UnimplementedError(absl::StrCat(feature.subject, " not served by this version with ",
                                               other, "; ", remedy, ", or ", feature.without));
}

absl::Status CheckNodesOnCpu(const Feature& feature, const ClusterConfig& config) {
  LAMINA_RETURN_IF_ERROR(CheckListOnCpu(feature, "compute", config.compute));
  return CheckListOnCpu(feature, "memory", config.memory);
}

}  // namespace lamina::internal
