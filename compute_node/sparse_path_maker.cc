// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_path_maker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kv_form.h"
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
  const plan::ResidentRoom room = RoomIn(config);
  if (scratch_.has_value() && layers_ == config.layers &&
      scratch_->slots() == config.scratch_tokens && int8_.has_value() == int8 && room_ == room) {
    return absl::OkStatus();
  }
  Release();
  LAMINA_ASSIGN_OR_RETURN(scratch_, kernels::KvArena::Create(config.layers, config.scratch_tokens));
  if (int8) {
    LAMINA_ASSIGN_OR_RETURN(int8_,
                            kernels::Int8Arena::Create(config.layers, config.scratch_tokens));
  }
  if (room.tokens > 0) {
    if (const absl::Status reserved = ReserveResident(config, room); !reserved.ok()) {
      return ErrorOfResident(reserved);
    }
  } else if (resident_bytes_ > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("fetch.resident ", FormatBytes(resident_bytes_), " has no room for ",
                     int8 ? absl::StrCat("an open block and a closed one, of ", kInt8BlockTokens)
                          : absl::StrCat(plan::kFetchTile),
                     " tokens of this model, which take ", FormatBytes(room.least)));
  }
  layers_ = config.layers;
  room_ = room;
  return absl::OkStatus();
}

plan::ResidentRoom SparsePathMaker::RoomIn(const plan::EpochConfig& config) const {
  return config.int8_tails > 0
             ? plan::ResidentBlocksIn(resident_bytes_, config.layers, config.int8_tails)
             : plan::ResidentTilesIn(resident_bytes_, config.layers);
}

absl::Status SparsePathMaker::ReserveResident(const plan::EpochConfig& config,
                                              const plan::ResidentRoom& room) {
  if (config.int8_tails == 0) {
    LAMINA_ASSIGN_OR_RETURN(resident_, kernels::KvArena::Create(config.layers, room.tokens));
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(kernels::KvArena tails,
                          kernels::KvArena::Create(config.layers, room.tails * kInt8BlockTokens));
  LAMINA_ASSIGN_OR_RETURN(kernels::Int8Arena blocks,
                          kernels::Int8Arena::Create(config.layers, room.tokens));
  resident_int8_ = Int8Residents{.tails = std::move(tails), .blocks = std::move(blocks)};
  return absl::OkStatus();
}

std::string SparsePathMaker::Describe() const {
  const std::string tails =
      room_.tails > 0 ? absl::StrCat(" of closed blocks, and ", room_.tails, " open blocks") : "";
  const std::string resident = room_.tokens > 0
                                   ? absl::StrCat(" resident ", FormatBytes(kept_bytes()), " (",
                                                  room_.tokens, " tokens", tails, ")")
                                   : "";
  return absl::StrCat("scratch ", FormatBytes(scratch_bytes()), " sums of weights up to ",
                      FormatBytes(sums_bytes_), resident, " windows for K and V ",
                      FormatBytes(windows_bytes_), " attention ", kernel_.name());
}

std::unique_ptr<AttentionPath> SparsePathMaker::Make(const WorkerContext& context) {
  if (int8_.has_value()) {
    return std::make_unique<SparseAttention>(
        context,
        SparseMemory{.scratch = *scratch_,
                     .int8 = &*int8_,
                     .resident_int8 = resident_int8_.has_value() ? &*resident_int8_ : nullptr},
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
