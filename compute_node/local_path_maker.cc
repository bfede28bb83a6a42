// SPDX-License-Identifier: Apache-2.0
#include "compute_node/local_path_maker.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/local_attention.h"
#include "control/kv_arena.h"
#include "plan/epoch_topology.h"

namespace lamina::compute_node {

absl::Status LocalPathMaker::Reserve(const plan::EpochConfig& config, const plan::Stage& stage) {
  if (!holds_kv_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator has KV on ", node_,
                     " (policy local), whose own cluster file has not; give both the same file"));
  }
  plan::Stage part = stage;
  part.replica = 0;  // A number of the epoch, and not what is kept here.
  LAMINA_ASSIGN_OR_RETURN(const uint32_t own,
                          plan::OwnIndex(config.memory_nodes, node_, config.epoch));
  const kernels::KvDeviceOptions options = LocalKv::DeviceOptions(config, stage, own);
  stage_ = stage;
  if (kv_ != nullptr && options_ == options && part_ == part && kv_->usable()) {
    tails_.BeginEpoch();
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
  part_ = part;
  arena_ = control::DrawKvArena();
  tails_ = plan::Tails(config.int8_tails);
  return absl::OkStatus();
}

std::string LocalPathMaker::Describe() const {
  return absl::StrCat("KV here: device ", kv_->name(), " slots ", kv_->slots(), " arena ",
                      FormatBytes(kv_->bytes()));
}

std::unique_ptr<AttentionPath> LocalPathMaker::Make(const WorkerContext& context) {
  return std::make_unique<LocalAttention>(context, stage_, *kv_, tails_);
}

}  // namespace lamina::compute_node
