// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "kernels/activation_arena.h"
#include "kernels/int8_arena.h"
#include "kernels/kv_arena.h"
#include "kernels/kv_device.h"
#include "kernels/kv_stores.h"
#include "kernels/processor_attention.h"

namespace lamina::kernels {
namespace {

// What a device keeps.
struct Arenas {
  KvArena kv;
  std::optional<ActivationArena> activations;
  std::optional<Int8Arena> int8;
};

class CpuKvDevice final : public KvDevice, public KvReads, public KvWrites, public KvInt8 {
 public:
  CpuKvDevice(const KvDeviceOptions& options, const AttentionKernel& kernel, ThreadPool& pool,
              Arenas arenas)
      : layers_(options.layers),
        kernel_(kernel),
        pool_(pool),
        name_(kernel.name()),
        query_tokens_max_(options.query_tokens_max),
        arena_(std::move(arenas.kv)),
        stores_(pool, options.store_tokens_max),
        activations_(std::move(arenas.activations)),
        int8_(std::move(arenas.int8)) {
    // Scratch of the layer with most to a row serves all.
    const auto widest =
        std::max_element(layers_.begin(), layers_.end(),
                         [](const auto& a, const auto& b) { return a.q_width() < b.q_width(); });
    scratch_ = kernel.MakeScratch(*widest, options.query_tokens_max, options.context_tokens_max,
                                  pool.threads());
  }

  const std::string& name() const override { return name_; }
  uint32_t slots() const override { return int8_.has_value() ? int8_->slots() : arena_.slots(); }
  uint64_t bytes() const override {
    return arena_.bytes() + (activations_.has_value() ? activations_->bytes() : 0) +
           (int8_.has_value() ? int8_->bytes() : 0);
  }
  uint32_t query_tokens_max() const override { return query_tokens_max_; }
  bool usable() const override { return true; }
  absl::Status Begin() override { return absl::OkStatus(); }

  absl::Status Store(uint32_t layer, HeadRange heads, absl::Span<const KvRows> rows) override {
    for (const KvRows& row : rows) {
      stores_.Add(row);
    }
    stores_.Run(
        heads, layers_[layer].head_dim,
        {.k = arena_.k(layer), .v = arena_.v(layer), .head_stride = arena_.head_stride(layer)});
    return absl::OkStatus();
  }

  absl::Status Attend(uint32_t layer, HeadRange heads,
                      absl::Span<const AttentionItem> items) override {
    KvView view = arena_.View(layer, heads.first);
    Int8View int8;
    if (int8_.has_value()) {
      int8 = int8_->View(layer, heads.first);
      view.int8 = &int8;
    }
    kernel_.Attend(PartOf(layers_[layer], heads), view, items, *scratch_, pool_);
    return absl::OkStatus();
  }

  KvInt8* int8() override { return int8_.has_value() ? this : nullptr; }
  absl::Status Close(uint32_t layer, HeadRange heads, absl::Span<const Int8Block> blocks) override {
    const AttentionDescriptor part = PartOf(layers_[layer], heads);
    const KvView tail = arena_.View(layer, heads.first);
    const Int8View to = int8_->View(layer, heads.first);
    for (const Int8Block& block : blocks) {
      CloseInt8Block(part, tail, block.tail_slot, block.slots, block.first, to);
    }
    return absl::OkStatus();
  }

  absl::Status LoadClosed(uint32_t layer, uint32_t head, absl::Span<const Extent> extents,
                          uint32_t first, uint32_t tokens, const Int8View& to) override {
    LoadInt8(layers_[layer].head_dim, int8_->View(layer, head), extents, first, tokens, to);
    return absl::OkStatus();
  }

  KvReads* reads() override { return this; }
  absl::Status Load(uint32_t layer, uint32_t head, absl::Span<const Extent> extents, uint32_t first,
                    uint32_t tokens, BFloat16* k, BFloat16* v) override {
    const KvView arena = arena_.View(layer, head);
    LoadKv(layers_[layer].head_dim, arena.k, arena.v, extents, first, tokens, k, v);
    return absl::OkStatus();
  }
  std::optional<KvView> View(uint32_t layer, uint32_t head) override {
    return arena_.View(layer, head);
  }
  absl::Span<const std::byte> memory() override { return arena_.memory(); }

  KvWrites* writes() override { return this; }
  absl::Status Unload(uint32_t layer, uint32_t head, const BFloat16* k, const BFloat16* v,
                      absl::Span<const Extent> extents, uint32_t first, uint32_t tokens) override {
    const size_t plane = head * arena_.head_stride(layer);
    UnloadKv(layers_[layer].head_dim, k, v, extents, first, tokens, arena_.k(layer) + plane,
             arena_.v(layer) + plane);
    return absl::OkStatus();
  }
  absl::Status UnloadClosed(uint32_t layer, uint32_t head, const Int8View& from,
                            absl::Span<const Extent> extents, uint32_t first,
                            uint32_t tokens) override {
    UnloadInt8(layers_[layer].head_dim, from, extents, first, tokens, int8_->View(layer, head));
    return absl::OkStatus();
  }

  KvActivations* activations() override {
    return activations_.has_value() ? &*activations_ : nullptr;
  }

  KvDeviceRows* device_rows() override { return nullptr; }
  KvStepAttention* step_attention() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(const ChannelOptions&) override {
    return nullptr;
  }

 private:
  const std::vector<AttentionDescriptor> layers_;
  const AttentionKernel& kernel_;
  ThreadPool& pool_;
  const std::string name_;
  const uint32_t query_tokens_max_;
  KvArena arena_;
  KvStores stores_;
  std::optional<ActivationArena> activations_;
  std::optional<Int8Arena> int8_;
  std::unique_ptr<AttentionScratch> scratch_;
};

}  // namespace

absl::StatusOr<double> KvDevice::SecondsOf(absl::FunctionRef<absl::Status()> work) {
  const Nanos start = RealClock().Now();
  LAMINA_RETURN_IF_ERROR(work());
  return ToSeconds(RealClock().Now() - start);
}

KvDeviceMaker CpuKvDevices(const AttentionKernel& kernel, ThreadPool& pool) {
  return [&kernel,
          &pool](const KvDeviceOptions& options) -> absl::StatusOr<std::unique_ptr<KvDevice>> {
    LAMINA_ASSIGN_OR_RETURN(const AttentionKernel* const attention,
                            AttentionOfProcessor(options.arithmetic, kernel));
    // Where all tokens are kept as activations the arena of K and V is one that nobody uses.
    const bool activations_alone = options.slots == 0 && options.activation_slots > 0;
    LAMINA_ASSIGN_OR_RETURN(KvArena arena,
                            KvArena::Create(options.layers, activations_alone ? 1 : options.slots));
    std::optional<ActivationArena> activations;
    if (options.activation_width > 0) {
      LAMINA_ASSIGN_OR_RETURN(activations,
                              ActivationArena::Create(static_cast<uint32_t>(options.layers.size()),
                                                      std::max(1u, options.activation_slots),
                                                      options.activation_width));
    }
    std::optional<Int8Arena> int8;
    if (options.int8_slots > 0) {
      LAMINA_ASSIGN_OR_RETURN(int8, Int8Arena::Create(options.layers, options.int8_slots));
    }
    return std::make_unique<CpuKvDevice>(
        options, int8.has_value() ? Int8KernelOf(*attention) : *attention, pool,
        Arenas{.kv = std::move(arena),
               .activations = std::move(activations),
               .int8 = std::move(int8)});
  };
}

}  // namespace lamina::kernels
