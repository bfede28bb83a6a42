// SPDX-License-Identifier: Apache-2.0
#include "compute_node/streaming_path_maker.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/streaming_attention.h"

namespace lamina::compute_node {

absl::Status StreamingPathMaker::Reserve(const plan::EpochConfig& config,
                                         const plan::Stage& /*stage*/) {
  if (!device_.is_host() || config.attention != ClusterAttention()) {
    return absl::UnimplementedError(
        absl::StrCat("policy fetch_heads with heads that stream and compute on ", device_.name(),
                     " is not served by this version; it serves processors with attention exact"));
  }
  windows_bytes_ = config.fetch_bytes;
  heads_ = config.streaming.Word();
  if (scratch_.has_value() && layers_ == config.layers &&
      scratch_->slots() == config.scratch_tokens) {
    return absl::OkStatus();
  }
  scratch_.reset();
  LAMINA_ASSIGN_OR_RETURN(scratch_, kernels::KvArena::Create(config.layers, config.scratch_tokens));
  layers_ = config.layers;
  return absl::OkStatus();
}

std::string StreamingPathMaker::Describe() const {
  return absl::StrCat("scratch ", FormatBytes(scratch_->bytes()), " windows for K and V ",
                      FormatBytes(windows_bytes_), " heads that stream ", heads_, " attention ",
                      kernel_.name());
}

std::unique_ptr<AttentionPath> StreamingPathMaker::Make(const WorkerContext& context) {
  return std::make_unique<StreamingAttention>(context, *scratch_, kernel_);
}

}  // namespace lamina::compute_node
