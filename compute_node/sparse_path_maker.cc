// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_path_maker.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/sparse_attention.h"
#include "compute_node/sparse_sums.h"

namespace lamina::compute_node {

absl::Status SparsePathMaker::Reserve(const plan::EpochConfig& config,
                                      const plan::Stage& /*stage*/) {
  if (!device_.is_host() || config.attention.decode != AttentionArithmetic::kCanonical) {
    return absl::UnimplementedError(
        absl::StrCat("policy fetch_sparse with compute on ", device_.name(),
                     " is not served by this version; it serves processors with attention exact"));
  }
  windows_bytes_ = config.fetch_bytes;
  sums_bytes_ = SparseSums::BytesMax(config);
  const bool int8 = config.int8_tails > 0;
  if (scratch_.has_value() && layers_ == config.layers &&
      scratch_->slots() == config.scratch_tokens && int8_.has_value() == int8) {
    return absl::OkStatus();
  }
  Release();
  LAMINA_ASSIGN_OR_RETURN(scratch_, kernels::KvArena::Create(config.layers, config.scratch_tokens));
  if (int8) {
    LAMINA_ASSIGN_OR_RETURN(int8_,
                            kernels::Int8Arena::Create(config.layers, config.scratch_tokens));
  }
  layers_ = config.layers;
  return absl::OkStatus();
}

std::string SparsePathMaker::Describe() const {
  return absl::StrCat("scratch ", FormatBytes(scratch_bytes()), " sums of weights up to ",
                      FormatBytes(sums_bytes_), " windows for K and V ",
                      FormatBytes(windows_bytes_), " attention ", kernel_.name());
}

std::unique_ptr<AttentionPath> SparsePathMaker::Make(const WorkerContext& context) {
  return int8_.has_value()
             ? std::make_unique<SparseAttention>(context, *scratch_, &*int8_,
                                                 kernels::Int8KernelOf(kernel_))
             : std::make_unique<SparseAttention>(context, *scratch_, nullptr, kernel_);
}

}  // namespace lamina::compute_node
