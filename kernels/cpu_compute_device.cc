// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "common/clock.h"
#include "common/status_macros.h"
#include "kernels/compute_device.h"
#include "kernels/int8_arena.h"
#include "kernels/kv_arena.h"
#include "kernels/kv_stores.h"
#include "kernels/processor_attention.h"
#include "kernels/read_bandwidth.h"

namespace lamina::kernels {
namespace {

// Rows of a multiple of 64 bytes then begin with a line, so that no vector lies in two.
constexpr std::align_val_t kLine{64};

class CpuChunkAttention final : public ChunkAttention {
 public:
  CpuChunkAttention(const ChunkAttentionOptions& options, const AttentionKernel& kernel,
                    ThreadPool& pool, KvArena arena)
      : layers_(options.layers),
        kernel_(kernel),
        pool_(pool),
        arena_(std::move(arena)),
        stores_(pool, options.query_tokens_max) {
    // Scratch of the layer with most to a row serves all.
    const auto widest =
        std::max_element(layers_.begin(), layers_.end(), [](const auto& a, const auto& b) {
          return std::pair(a.q_width(), a.head_dim) < std::pair(b.q_width(), b.head_dim);
        });
    scratch_ = kernel.MakeScratch(*widest, std::max<uint32_t>(1, options.query_tokens_max),
                                  options.context_tokens_max, pool.threads());
  }

  uint64_t bytes() const override { return arena_.bytes(); }

  absl::Status Attend(uint32_t layer, absl::Span<const ChunkItem> items,
                      const MatrixView<BFloat16>& qkv, const MatrixView<BFloat16>& out) override {
    const AttentionDescriptor& shape = layers_[layer];
    items_.clear();
    for (const ChunkItem& item : items) {
      const BFloat16* k = qkv.row(item.first_row) + shape.q_width();
      const Extent own{.first_slot = item.sequence.first_slot + item.first_position,
                       .tokens = item.tokens};
      stores_.Add({.k = k, .v = k + shape.kv_width(), .stride = qkv.stride, .slots = {&own, 1}});
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
    stores_.Run(
        AllHeads(shape), shape.head_dim,
        {.k = arena_.k(layer), .v = arena_.v(layer), .head_stride = arena_.head_stride(layer)});
    if (!items_.empty()) {
      kernel_.Attend(shape, arena_.View(layer), items_, *scratch_, pool_);
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<AttentionDescriptor> layers_;
  const AttentionKernel& kernel_;
  ThreadPool& pool_;
  KvArena arena_;
  KvStores stores_;
  std::unique_ptr<AttentionScratch> scratch_;
  std::vector<AttentionItem> items_;
};

// Attention of chunks over INT8. Both forms of a token have one slot: bf16 is there all the time,
// and INT8 once its block is full.
class CpuInt8ChunkAttention final : public ChunkAttention {
 public:
  CpuInt8ChunkAttention(const ChunkAttentionOptions& options, const AttentionKernel& kernel,
                        ThreadPool& pool, KvArena arena, Int8Arena int8)
      : layers_(options.layers),
        kernel_(kernel),
        pool_(pool),
        arena_(std::move(arena)),
        stores_(pool, options.query_tokens_max),
        int8_(std::move(int8)) {
    const auto widest =
        std::max_element(layers_.begin(), layers_.end(), [](const auto& a, const auto& b) {
          return std::pair(a.q_width(), a.head_dim) < std::pair(b.q_width(), b.head_dim);
        });
    scratch_ = kernel.MakeScratch(*widest, std::max<uint32_t>(1, options.query_tokens_max),
                                  options.context_tokens_max, pool.threads());
  }

  uint64_t bytes() const override { return arena_.bytes() + int8_.bytes(); }

  absl::Status Attend(uint32_t layer, absl::Span<const ChunkItem> items,
                      const MatrixView<BFloat16>& qkv, const MatrixView<BFloat16>& out) override {
    const AttentionDescriptor& shape = layers_[layer];
    items_.clear();
    blocks_.clear();
    for (const ChunkItem& item : items) {
      const BFloat16* k = qkv.row(item.first_row) + shape.q_width();
      const Extent own{.first_slot = item.sequence.first_slot + item.first_position,
                       .tokens = item.tokens};
      stores_.Add({.k = k, .v = k + shape.kv_width(), .stride = qkv.stride, .slots = {&own, 1}});
      const uint32_t end = item.first_position + item.tokens;
      const uint32_t read_from = item.first_position + item.read_from;
      const uint32_t read_end = read_from + item.tokens_read();
      for (uint32_t at = item.first_position; at < end;) {
        const uint32_t first = Int8TokensOf(at);
        const uint32_t next = std::min(end, first + kInt8BlockTokens);
        const uint32_t from = std::max(at, read_from);
        if (const uint32_t to = std::min(next, read_end); from < to) {
          const uint32_t row = item.first_row + from - item.first_position;
          items_.push_back({.extents = {&item.sequence, 1},
                            .first_position = from,
                            .query_tokens = to - from,
                            .q = qkv.row(row),
                            .q_stride = qkv.stride,
                            .out = out.row(row),
                            .out_stride = out.stride,
                            .int8_tokens = first,
                            .tail_slot = item.sequence.first_slot + first});
        }
        if (next == first + kInt8BlockTokens) {
          blocks_.push_back({.tail_slot = item.sequence.first_slot + first,
                             .slots = {&item.sequence, 1},
                             .first = first});
        }
        at = next;
      }
    }
    stores_.Run(
        AllHeads(shape), shape.head_dim,
        {.k = arena_.k(layer), .v = arena_.v(layer), .head_stride = arena_.head_stride(layer)});
    Int8View int8 = int8_.View(layer);
    KvView view = arena_.View(layer);
    pool_.Run(blocks_.size(), [&](size_t i, size_t) {
      CloseInt8Block(shape, view, blocks_[i].tail_slot, blocks_[i].slots, blocks_[i].first, int8);
    });
    view.int8 = &int8;
    if (!items_.empty()) {
      kernel_.Attend(shape, view, items_, *scratch_, pool_);
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<AttentionDescriptor> layers_;
  const AttentionKernel& kernel_;
  ThreadPool& pool_;
  KvArena arena_;
  KvStores stores_;
  Int8Arena int8_;
  std::unique_ptr<AttentionScratch> scratch_;
  std::vector<AttentionItem> items_;
  std::vector<Int8Block> blocks_;
};

class CpuComputeDevice final : public ComputeDevice {
 public:
  CpuComputeDevice(std::unique_ptr<Dense> dense, const AttentionKernel& attention, ThreadPool& pool)
      : dense_(std::move(dense)), attention_(attention), pool_(pool) {}

  const std::string& name() const override { return name_; }
  bool is_host() const override { return true; }
  Dense& dense() override { return *dense_; }
  absl::Status Begin() override { return absl::OkStatus(); }

  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    auto* const data = static_cast<std::byte*>(::operator new(bytes, kLine));
    std::shared_ptr<void> owner(data, [](std::byte* all) { ::operator delete(all, kLine); });
    std::memset(data, 0, bytes);
    return Buffer{.data = data, .bytes = bytes, .owner = std::move(owner)};
  }
  absl::StatusOr<Buffer> AllocateHost(size_t bytes) override { return Allocate(bytes); }

  void CopyRows(const RowsCopy& copy) override {
    if (copy.to == copy.from || copy.row_bytes == 0) {
      return;
    }
    for (size_t row = 0; row < copy.rows; ++row) {
      std::memcpy(static_cast<std::byte*>(copy.to) + row * copy.to_stride,
                  static_cast<const std::byte*>(copy.from) + row * copy.from_stride,
                  copy.row_bytes);
    }
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<ChunkAttention>> MakeChunkAttention(
      const ChunkAttentionOptions& options) override {
    LAMINA_ASSIGN_OR_RETURN(const AttentionKernel* const attention,
                            AttentionOfProcessor(options.arithmetic, attention_));
    LAMINA_ASSIGN_OR_RETURN(KvArena arena, KvArena::Create(options.layers, options.slots));
    if (options.int8) {
      LAMINA_ASSIGN_OR_RETURN(Int8Arena int8, Int8Arena::Create(options.layers, options.slots));
      return std::make_unique<CpuInt8ChunkAttention>(options, Int8KernelOf(*attention), pool_,
                                                     std::move(arena), std::move(int8));
    }
    return std::make_unique<CpuChunkAttention>(options, *attention, pool_, std::move(arena));
  }

  absl::StatusOr<std::unique_ptr<KvDevice>> MakeKvDevice(const KvDeviceOptions& options) override {
    return CpuKvDevices(attention_, pool_)(options);
  }

  absl::StatusOr<double> MeasureReads() override { return MeasureReadBandwidth(pool_); }

  absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> work) override {
    const Nanos begin = RealClock().Now();
    LAMINA_RETURN_IF_ERROR(work());
    return ToSeconds(RealClock().Now() - begin);
  }

  absl::StatusOr<std::unique_ptr<RowSampler>> MakeSampler(const RowSamplerOptions&) override {
    return nullptr;
  }

  absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(const ChannelOptions&) override {
    return nullptr;
  }

  absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(absl::FunctionRef<void()>) override {
    return nullptr;
  }

 private:
  const std::string name_ = "cpu";
  const std::unique_ptr<Dense> dense_;
  const AttentionKernel& attention_;
  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<ComputeDevice> MakeCpuComputeDevice(std::unique_ptr<Dense> dense,
                                                    const AttentionKernel& attention,
                                                    ThreadPool& pool) {
  return std::make_unique<CpuComputeDevice>(std::move(dense), attention, pool);
}

}  // namespace lamina::kernels
