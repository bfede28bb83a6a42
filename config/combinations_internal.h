// SPDX-License-Identifier: Apache-2.0
//
// Combinations of features that this version does not serve, though it serves each by itself.

#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "config/cluster_config.h"

namespace lamina::internal {

// A feature as errors name it.
struct Feature {
  absl::string_view subject;  // With its verb: "kv: int8 is".
  absl::string_view without;  // How the cluster file does without it: "set kv to bf16".
};

// The error of a cluster file that asks for `feature` together with `other`; `remedy` says how it
// does without `other`.
// Errors: kUnimplemented  "SUBJECT not served by this version with OTHER; REMEDY, or WITHOUT".
absl::Status NotServedTogether(const Feature& feature, absl::string_view other,
                               absl::string_view remedy);

// Errors: kUnimplemented  `feature` needs every node on the processor, and some node is on a
//                         device; names the first.
absl::Status CheckNodesOnCpu(const Feature& feature, const ClusterConfig& config);

}  // namespace lamina::internal
