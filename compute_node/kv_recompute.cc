// SPDX-License-Identifier: Apache-2.0
#include "compute_node/kv_recompute.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "common/status_macros.h"
#include "kernels/attention.h"

namespace lamina::compute_node {
namespace {

// First columns are multiples of it (kernels::Dense::Linear).
constexpr size_t kColumnsStep = 64;

}  // namespace

absl::Status KvRecompute::Prepare() {
  const SliceProgram& program = executor_.program();
  for (uint32_t slice = 0; slice + 1 < program.slice_count(); ++slice) {
    const model::ValueId input = KvInputOf(program, slice);
    if (input == model::kNone || program.Width(input) != config_.activation_width) {
      return absl::UnimplementedError(absl::StrCat(
          "layer ", slice, " of this model makes k and v from no activation of ",
          config_.activation_width, " elements, so that they cannot be made again from one"));
    }
    if (program.TypeOf(input) != DType::kBF16) {
      return absl::UnimplementedError(
          "compute_type f32: activations of 4 bytes an element are no fewer bytes than K and V; "
          "set compute_type to bf16, or policy to fetch_heads");
    }
  }
  LAMINA_ASSIGN_OR_RETURN(buffers_, executor_.MakeBuffers(kRows));
  ids_.assign(kRows, 0);
  first_columns_.assign(config_.layers.size(), 0);
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    // Layers of one shape have one answer.
    if (layer > 0 && config_.layers[layer] == config_.layers[layer - 1]) {
      first_columns_[layer] = first_columns_[layer - 1];
      continue;
    }
    LAMINA_ASSIGN_OR_RETURN(const bool same, SameWithoutQueries(layer));
    if (!same) {
      first_columns_[layer] = 0;
    }
  }
  return absl::OkStatus();
}

// Whether K and V are bitwise what they are with all columns. Leaves queries out from here on.
absl::StatusOr<bool> KvRecompute::SameWithoutQueries(uint32_t layer) {
  const AttentionDescriptor& shape = config_.layers[layer];
  Prng random(/*seed=*/1);
  std::vector<BFloat16> activations(kRows * config_.activation_width);
  for (BFloat16& value : activations) {
    value = ToBFloat16(static_cast<float>(random.Below(2001)) / 1000.0f - 1.0f);
  }
  std::vector<BFloat16> with(2 * kRows * shape.kv_width());
  std::vector<BFloat16> without(with.size());
  for (std::vector<BFloat16>* kv : {&with, &without}) {
    LAMINA_RETURN_IF_ERROR(RunTry(layer, activations, absl::MakeSpan(*kv)));
    first_columns_[layer] = shape.q_width() / kColumnsStep * kColumnsStep;
  }
  return std::memcmp(with.data(), without.data(), with.size() * sizeof(BFloat16)) == 0;
}

absl::Status KvRecompute::RunTry(uint32_t layer, absl::Span<const BFloat16> activations,
                                 absl::Span<BFloat16> kv) {
  const AttentionDescriptor& shape = config_.layers[layer];
  const size_t rows = activations.size() / config_.activation_width;
  std::vector<uint32_t> positions(rows);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<const BFloat16*> from(rows);
  for (size_t row = 0; row < rows; ++row) {
    from[row] = activations.data() + row * config_.activation_width;
  }
  const Extent slots{.first_slot = 0, .tokens = static_cast<uint32_t>(rows)};
  LAMINA_RETURN_IF_ERROR(AskAndWait(executor_.weight_source(), layer));
  const Planes planes{.heads = AllHeads(shape),
                      .k = kv.data(),
                      .v = kv.data() + rows * shape.kv_width(),
                      .head_stride = rows * shape.head_dim};
  const absl::Status run = Run(layer,
                               {.widths = {&config_.activation_width, 1},
                                .activations = from,
                                .positions = positions,
                                .slots = {&slots, 1}},
                               {&planes, 1});
  executor_.weight_source().Release(layer);
  return run;
}

absl::Status KvRecompute::Try(size_t rows) {
  const AttentionDescriptor& shape = config_.layers[0];
  const std::vector<BFloat16> activations(rows * config_.activation_width);
  std::vector<BFloat16> kv(2 * rows * shape.kv_width());
  return RunTry(0, activations, absl::MakeSpan(kv));
}

absl::Status KvRecompute::Run(uint32_t layer, const Tokens& tokens,
                              absl::Span<const Planes> planes) {
  const AttentionDescriptor& shape = config_.layers[layer];
  const BFloat16* const* from = tokens.activations.data();
  auto extent = tokens.slots.begin();
  uint32_t taken = 0;  // Tokens of the extent that are taken.
  for (size_t first = 0; first < tokens.positions.size(); first += kRows) {
    const size_t rows = std::min(kRows, tokens.positions.size() - first);
    LAMINA_RETURN_IF_ERROR(buffers_.SetRows({.token_ids = absl::MakeConstSpan(ids_).first(rows),
                                             .positions = tokens.positions.subspan(first, rows)}));
    const kernels::ActivationView in =
        buffers_.Activations(KvInputOf(executor_.program(), layer), rows);
    for (size_t i = 0; i < rows; ++i) {
      BFloat16* to = static_cast<BFloat16*>(in.data) + i * in.stride;
      for (const uint32_t width : tokens.widths) {
        to = std::copy_n(*from++, width, to);
      }
    }
    executor_.RunKvOps(layer, first_columns_[layer], buffers_);
    const auto qkv = executor_.QkvRows(layer, rows, buffers_);
    for (uint32_t row = 0; row < rows;) {
      const Extent slots{
          .first_slot = extent->first_slot + taken,
          .tokens = std::min(static_cast<uint32_t>(rows) - row, extent->tokens - taken)};
      for (const Planes& to : planes) {
        const BFloat16* const k =
            qkv.row(row) + shape.q_width() + size_t{to.heads.first} * shape.head_dim;
        kernels::StoreKv({.kv_heads = to.heads.count, .head_dim = shape.head_dim}, k,
                         k + shape.kv_width(), qkv.stride, {&slots, 1}, to.k, to.v, to.head_stride);
      }
      row += slots.tokens;
      taken += slots.tokens;
      if (taken == extent->tokens) {
        ++extent;
        taken = 0;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
