// SPDX-License-Identifier: Apache-2.0
#include "compute_node/resident_activations.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::compute_node {

absl::Status ResidentActivations::BeginStep(const Lane& lane, absl::Span<const RowRun> runs) {
  std::vector<KeptRows>& kept = lanes_[lane.index];
  kept.clear();
  for (const RowRun& run : runs) {
    const Sequence* const sequence = context_.sequences.Find(run.sequence);
    if (sequence == nullptr) {
      return absl::InternalError(absl::StrCat("plan of lane ", lane.plan.lane, " step ",
                                              lane.plan.step, " has rows of sequence ",
                                              run.sequence, ", which is not in the tables"));
    }
    const plan::ResidentTokens& resident = sequence->join.resident;
    const uint64_t end = uint64_t{resident.first} + resident.tokens;
    const uint64_t first = std::max(run.first_token, resident.first);
    const uint64_t rows_end = std::min<uint64_t>(uint64_t{run.first_token} + run.tokens, end);
    if (first >= rows_end) {
      continue;
    }
    if (arena_ == nullptr || uint64_t{resident.place} + resident.tokens > arena_->slots()) {
      return absl::InternalError(absl::StrCat("plan keeps activations of sequence ", run.sequence,
                                              " in places up to ",
                                              uint64_t{resident.place} + resident.tokens, " of ",
                                              arena_ == nullptr ? 0 : arena_->slots()));
    }
    const auto skipped = static_cast<uint32_t>(first - resident.first);
    kept.push_back({.first_row = run.first_row + static_cast<uint32_t>(first - run.first_token),
                    .places = {.first_slot = resident.place + skipped,
                               .tokens = static_cast<uint32_t>(rows_end - first)}});
  }
  return absl::OkStatus();
}

absl::Status ResidentActivations::Store(Lane& lane) {
  const std::vector<KeptRows>& kept = lanes_[lane.index];
  if (kept.empty()) {
    return absl::OkStatus();
  }
  const kernels::ActivationView activations = lane.buffers.Activations(
      KvInputOf(context_.executor.program(), lane.slice), lane.positions.size());
  const auto* const rows = static_cast<const BFloat16*>(activations.data);
  for (const KeptRows& part : kept) {
    const kernels::ActivationRows stored{.activation = rows + part.first_row * activations.stride,
                                         .stride = activations.stride,
                                         .slots = {&part.places, 1}};
    LAMINA_RETURN_IF_ERROR(arena_->Store(lane.slice, {&stored, 1}));
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
