// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/chunk_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "kernels/cuda/stream_kv_device.h"

namespace lamina::kernels::cuda {
namespace {

KvDeviceOptions KvOptionsOf(const ChunkAttentionOptions& options) {
  const uint32_t rows = std::max<uint32_t>(1, options.query_tokens_max);
  return {.layers = options.layers,
          .arithmetic = options.arithmetic,
          .slots = options.slots,
          .context_tokens_max = options.context_tokens_max,
          .items_max = rows,
          .query_tokens_max = rows,
          .store_tokens_max = rows};
}

class CudaChunkAttention final : public ChunkAttention {
 public:
  CudaChunkAttention(const ChunkAttentionOptions& options, std::unique_ptr<KvDevice> kv)
      : layers_(options.layers), kv_(std::move(kv)) {
    own_.reserve(std::max<uint32_t>(1, options.query_tokens_max));
    stored_.reserve(own_.capacity());
    items_.reserve(own_.capacity());
  }

  uint64_t bytes() const override { return kv_->bytes(); }

  absl::Status Attend(uint32_t layer, absl::Span<const ChunkItem> items,
                      const MatrixView<BFloat16>& qkv, const MatrixView<BFloat16>& out) override {
    const AttentionDescriptor& shape = layers_[layer];
    own_.clear();
    stored_.clear();
    items_.clear();
    for (const ChunkItem& item : items) {
      own_.push_back(
          {.first_slot = item.sequence.first_slot + item.first_position, .tokens = item.tokens});
    }
    for (size_t i = 0; i < items.size(); ++i) {
      const ChunkItem& item = items[i];
      const BFloat16* const k = qkv.row(item.first_row) + shape.q_width();
      stored_.push_back(
          {.k = k, .v = k + shape.kv_width(), .stride = qkv.stride, .slots = {&own_[i], 1}});
      if (item.tokens_read() == 0) {
        continue;
      }
      const uint32_t row = item.first_row + item.read_from;
      items_.push_back({.extents = {&item.sequence, 1},
                        .first_position = item.first_position + item.read_from,
                        .query_tokens = item.tokens_read(),
                        .q = qkv.row(row),
                        .q_stride = qkv.stride,
                        .out = out.row(row),
                        .out_stride = out.stride});
    }
    LAMINA_RETURN_IF_ERROR(kv_->Store(layer, AllHeads(shape), stored_));
    return items_.empty() ? absl::OkStatus() : kv_->Attend(layer, AllHeads(shape), items_);
  }

 private:
  const std::vector<AttentionDescriptor> layers_;
  const std::unique_ptr<KvDevice> kv_;
  std::vector<Extent> own_;  // The slots of each item's tokens.
  std::vector<KvRows> stored_;
  std::vector<AttentionItem> items_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkAttention>> MakeCudaChunkAttention(
    const ChunkAttentionOptions& options, uint64_t partial_bytes_max, const DeviceInfo& info,
    const Stream& stream) {
  if (options.int8) {
    return absl::InvalidArgumentError("attention of prompts on CUDA computes no INT8");
  }
  LAMINA_ASSIGN_OR_RETURN(
      std::unique_ptr<KvDevice> kv,
      MakeStreamKvDevice(KvOptionsOf(options), partial_bytes_max, info, stream));
  return std::make_unique<CudaChunkAttention>(options, std::move(kv));
}

}  // namespace lamina::kernels::cuda
