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
  part_ = part;
  piece_ = Int8PieceOf(part, piece, data);
}

absl::Status Int8Window::Store(uint32_t /*layer*/, HeadRange /*heads*/,
                               absl::Span<const kernels::KvRows> rows) {
  for (const kernels::KvRows& row : rows) {
    kernels::StoreKv(part_, row.k, row.v, row.stride, row.slots, piece_.k, piece_.v,
                     piece_.head_stride);
  }
  return absl::OkStatus();
}

absl::Status Int8Window::Attend(uint32_t /*layer*/, HeadRange /*heads*/,
                                absl::Span<const kernels::AttentionItem> items) {
  kernel_.Attend(part_, piece_.View(), items, *scratch_, pool_);
  return absl::OkStatus();
}

absl::Status Int8Window::Close(uint32_t /*layer*/, HeadRange /*heads*/,
                               absl::Span<const kernels::Int8Block> blocks) {
  const kernels::KvView tails = piece_.View();
  for (const kernels::Int8Block& block : blocks) {
    const uint32_t tokens =
        std::accumulate(block.slots.begin(), block.slots.end(), 0u,
                        [](uint32_t sum, const Extent& extent) { return sum + extent.tokens; });
    if (block.first + kInt8BlockTokens <= tokens) {
      kernels::CloseInt8Block(part_, tails, block.tail_slot, block.slots, block.first, piece_.int8);
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
