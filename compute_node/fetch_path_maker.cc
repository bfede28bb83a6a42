// SPDX-License-Identifier: Apache-2.0
#include "compute_node/fetch_path_maker.h"

#include "absl/strings/str_cat.h"
#include "common/units.h"
#include "compute_node/fetch_attention.h"

namespace lamina::compute_node {

absl::Status FetchPathMaker::Reserve(const plan::EpochConfig& config, const plan::Stage& stage) {
  if (!device_.is_host() || config.attention.decode != AttentionArithmetic::kCanonical) {
    return absl::UnimplementedError(
        absl::StrCat("a policy that fetches K and V with compute on ", device_.name(),
                     " is not served by this version; it serves processors with attention exact"));
  }
  windows_bytes_ = config.fetch_bytes;
  return scratch_.Reserve(config, stage, config.KvFormOf(kind()));
}

std::string FetchPathMaker::Describe() const {
  return absl::StrCat("scratch ", FormatBytes(scratch_.bytes()), " windows for K and V ",
                      FormatBytes(windows_bytes_), " attention ", kernel_.name());
}

std::unique_ptr<AttentionPath> FetchPathMaker::Make(const WorkerContext& context) {
  return std::make_unique<FetchAttention>(context, kind_, scratch_.Make(context), kernel_);
}

}  // namespace lamina::compute_node
