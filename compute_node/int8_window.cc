// SPDX-License-Identifier: Apache-2.0
#include "compute_node/int8_window.h"

#include <numeric>

#include "kernels/int8_arena.h"

namespace lamina::compute_node {

Int8Window::Int8Window(const AttentionDescriptor& widest, uint32_t context_tokens_max,
                       const kernels::AttentionKernel& kernel, ThreadPool& pool)
    : kernel_(kernels::Int8KernelOf(kernel)),
      pool_(pool),
      name_(kernel_.name()),
      scratch_(kernel_.MakeScratch(widest, kInt8BlockTokens, context_tokens_max, pool.threads())) {}

void Int8Window::SetPiece(const AttentionDescriptor& part, const plan::FetchPiece& piece,
                          std::byte* data) {
  const plan::FetchPlanes planes = plan::PlanesOf(piece, part.head_dim);
  part_ = part;
  int8_view_ = {.k = reinterpret_cast<uint8_t*>(data + planes.int8_k),
                .v = reinterpret_cast<uint8_t*>(data + planes.int8_v),
                .k_scales = reinterpret_cast<kernels::Int8Scale*>(data + planes.k_scales),
                .v_scales = reinterpret_cast<kernels::Int8Scale*>(data + planes.v_scales),
                .slots = piece.int8_slots};
  k_ = reinterpret_cast<BFloat16*>(data + planes.k);
  v_ = reinterpret_cast<BFloat16*>(data + planes.v);
  head_stride_ = size_t{piece.slots} * part.head_dim;
  bytes_ = planes.end;
}

absl::Status Int8Window::Store(uint32_t /*layer*/, HeadRange /*heads*/,
                               absl::Span<const kernels::KvRows> rows) {
  for (const kernels::KvRows& row : rows) {
    kernels::StoreKv(part_, row.k, row.v, row.stride, row.slots, k_, v_, head_stride_);
  }
  return absl::OkStatus();
}

absl::Status Int8Window::Attend(uint32_t /*layer*/, HeadRange /*heads*/,
                                absl::Span<const kernels::AttentionItem> items) {
  kernel_.Attend(part_, {.k = k_, .v = v_, .head_stride = head_stride_, .int8 = &int8_view_}, items,
                 *scratch_, pool_);
  return absl::OkStatus();
}

absl::Status Int8Window::Close(uint32_t /*layer*/, HeadRange /*heads*/,
                               absl::Span<const kernels::Int8Block> blocks) {
  const kernels::KvView tails{.k = k_, .v = v_, .head_stride = head_stride_};
  for (const kernels::Int8Block& block : blocks) {
    const uint32_t tokens =
        std::accumulate(block.slots.begin(), block.slots.end(), 0u,
                        [](uint32_t sum, const Extent& extent) { return sum + extent.tokens; });
    if (block.first + kInt8BlockTokens <= tokens) {
      kernels::CloseInt8Block(part_, tails, block.tail_slot, block.slots, block.first, int8_view_);
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
