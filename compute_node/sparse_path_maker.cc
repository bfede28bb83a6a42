// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_path_maker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/recent_attention.h"
#include "compute_node/sparse_attention.h"
#include "compute_node/sparse_sums.h"
#include "plan/fetch_pieces.h"

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
  if (int8 && resident_bytes_ > 0) {
    return absl::UnimplementedError(
        "fetch.resident with kv int8: this version keeps bf16 tokens on the compute node");
  }
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
  // Whole tiles (resident_kv.h).
  const uint64_t tile_bytes = plan::kFetchTile * kernels::KvArena::SlotBytes(config.layers);
  if (const uint64_t tiles = resident_bytes_ / tile_bytes; tiles > 0) {
    const auto kept =
        static_cast<uint32_t>(std::min<uint64_t>(tiles, UINT32_MAX / plan::kFetchTile));
    auto resident = kernels::KvArena::Create(config.layers, kept * plan::kFetchTile);
    if (!resident.ok()) {
      return ErrorOfResident(resident.status());
    }
    resident_ = *std::move(resident);
  } else if (resident_bytes_ > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "fetch.resident ", FormatBytes(resident_bytes_), " has no room for ", plan::kFetchTile,
        " tokens of this model, which take ", FormatBytes(tile_bytes)));
  }
  layers_ = config.layers;
  return absl::OkStatus();
}

std::string SparsePathMaker::Describe() const {
  const std::string resident = resident_.has_value()
                                   ? absl::StrCat(" resident ", FormatBytes(kept_bytes()), " (",
                                                  resident_->slots(), " tokens)")
                                   : "";
  return absl::StrCat("scratch ", FormatBytes(scratch_bytes()), " sums of weights up to ",
                      FormatBytes(sums_bytes_), resident, " windows for K and V ",
                      FormatBytes(windows_bytes_), " attention ", kernel_.name());
}

std::unique_ptr<AttentionPath> SparsePathMaker::Make(const WorkerContext& context) {
  if (int8_.has_value()) {
    return std::make_unique<SparseAttention>(context,
                                             SparseMemory{.scratch = *scratch_, .int8 = &*int8_},
                                             kernels::Int8KernelOf(kernel_));
  }
  kernels::KvArena* const resident = resident_.has_value() ? &*resident_ : nullptr;
  if (BySpan(context.config)) {
    return std::make_unique<RecentAttention>(context, *scratch_, resident, kernel_);
  }
  return std::make_unique<SparseAttention>(
      context, SparseMemory{.scratch = *scratch_, .resident = resident}, kernel_);
}

}  // namespace lamina::compute_node
