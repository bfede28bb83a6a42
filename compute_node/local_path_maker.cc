// SPDX-License-Identifier: Apache-2.0
#include "compute_node/local_path_maker.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/local_attention.h"

namespace lamina::compute_node {

absl::Status LocalPathMaker::Reserve(const plan::EpochConfig& config,
                                     const plan::Stage& /*stage*/) {
  if (config.compute_nodes.size() > 1) {
    return absl::UnimplementedError(
        absl::StrCat("policy local with ", config.compute_nodes.size(),
                     " compute nodes is not served by this version; it serves one"));
  }
  if (!holds_kv_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator has KV on ", node_,
                     " (policy local), whose own cluster file has not; give both the same file"));
  }
  const kernels::KvDeviceOptions options = LocalKv::DeviceOptions(config);
  if (kv_ != nullptr && options_ == options && kv_->usable()) {
    return absl::OkStatus();
  }
  kv_.reset();
  LAMINA_ASSIGN_OR_RETURN(kv_, compute_.MakeKvDevice(options));
  if (kv_->query_tokens_max() < options.query_tokens_max) {
    return absl::UnimplementedError(absl::StrCat(
        "policy local on ", kv_->name(), ": it attends ", kv_->query_tokens_max(),
        " query tokens of a prompt at a time, and chunks have ", options.query_tokens_max));
  }
  options_ = options;
  return absl::OkStatus();
}

std::string LocalPathMaker::Describe() const {
  return absl::StrCat("KV here: device ", kv_->name(), " slots ", kv_->slots(), " arena ",
                      FormatBytes(kv_->bytes()));
}

std::unique_ptr<AttentionPath> LocalPathMaker::Make(const WorkerContext& context) {
  return std::make_unique<LocalAttention>(context, *kv_);
}

}  // namespace lamina::compute_node
