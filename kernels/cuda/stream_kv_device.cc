// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stream_kv_device.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kv_layers_internal.h"
#include "kernels/cuda/row_runs_internal.h"
#include "kernels/kv_arena.h"

namespace lamina::kernels::cuda {
namespace {

constexpr uint64_t kPieceAlignment = 256;  // Alignment of a MemoryArena's pieces.
// Rows that one launch leaves out at a time, at most.
constexpr size_t kLeftOutMax = size_t{1} << 16;

uint32_t BlocksOf(uint64_t tokens) {
  return static_cast<uint32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

KvLayers::Options LayerOptionsOf(const KvDeviceOptions& options, uint64_t partial_bytes_max) {
  uint64_t partial_bytes = 1;  // Bytes of one query token and one block, in the widest layer.
  for (const AttentionDescriptor& layer : options.layers) {
    partial_bytes = std::max<uint64_t>(
        partial_bytes, uint64_t{layer.query_heads} * PartialWidth(layer) * sizeof(float));
  }
  const uint64_t blocks = std::max<uint32_t>(1, BlocksOf(options.context_tokens_max));
  const uint32_t rows = std::max({1u, options.items_max, options.store_tokens_max});
  return {.layers = options.layers,
          .slots = options.slots,
          .arithmetic = options.arithmetic,
          .query_rows_max = rows,
          .partials_max = static_cast<uint32_t>(
              std::clamp<uint64_t>(partial_bytes_max / partial_bytes, blocks, blocks * rows)),
          // Sequences share no slots, or an Attend goes in several parts.
          .extents_max = options.slots + 2 * rows};
}

class StreamKvDevice final : public KvDevice {
 public:
  StreamKvDevice(const KvDeviceOptions& options, uint64_t partial_bytes_max, const DeviceInfo& info,
                 const Stream& stream, Event fetched)
      : options_(options),
        limits_(LayerOptionsOf(options, partial_bytes_max)),
        name_(absl::StrCat("cuda:", info.index, " ", info.name,
                           options.arithmetic == AttentionArithmetic::kTensor
                               ? ", attention on tensor cores"
                               : "")),
        info_(info),
        stream_(stream),
        fetched_(std::move(fetched)) {
    slots_.reserve(limits_.query_rows_max);
    next_slots_.reserve(limits_.query_rows_max);
    runs_.reserve(limits_.query_rows_max);
    part_.items.reserve(limits_.query_rows_max);
  }

  absl::Status TakeMemory() {
    const uint64_t slots_bytes = limits_.query_rows_max * sizeof(uint32_t) + kPieceAlignment;
    LAMINA_ASSIGN_OR_RETURN(
        device_arena_,
        MemoryArena::Create(ArenaKind::kDevice, KvLayers::DeviceBytes(limits_) + slots_bytes));
    LAMINA_ASSIGN_OR_RETURN(
        pinned_arena_,
        MemoryArena::Create(ArenaKind::kPinnedHost, KvLayers::PinnedBytes(limits_) + slots_bytes));
    LAMINA_ASSIGN_OR_RETURN(
        layers_, KvLayers::Create(limits_, info_, *device_arena_, *pinned_arena_, stream_));
    LAMINA_ASSIGN_OR_RETURN(device_slots_, device_arena_->Take<uint32_t>(limits_.query_rows_max));
    LAMINA_ASSIGN_OR_RETURN(pinned_slots_, pinned_arena_->Take<uint32_t>(limits_.query_rows_max));
    return stream_.Synchronize();
  }

  const std::string& name() const override { return name_; }
  uint32_t slots() const override { return options_.slots; }
  uint64_t bytes() const override { return KvArena::SlotBytes(options_.layers) * options_.slots; }
  uint32_t query_tokens_max() const override { return options_.query_tokens_max; }
  bool usable() const override { return usable_.load(std::memory_order_relaxed); }
  absl::Status Begin() override { return OpenDevice(info_.index).status(); }
  absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> work) override {
    const absl::StatusOr<double> seconds = SecondsOn(stream_, work);
    LAMINA_RETURN_IF_ERROR(Noted(seconds.status()));
    return seconds;
  }
  KvDeviceRows* device_rows() override { return nullptr; }
  KvStepAttention* step_attention() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(const ChannelOptions&) override {
    return nullptr;
  }

  absl::Status Store(uint32_t layer, HeadRange heads, absl::Span<const KvRows> rows) override {
    return Noted(TryStore(layers_[layer].Part(heads), rows));
  }
  std::optional<KvPlanes> Planes(uint32_t layer) override {
    const KvLayers::Layer& of = layers_[layer];
    return KvPlanes{.k = of.k, .v = of.v, .head_stride = of.head_stride};
  }
  absl::Status Attend(uint32_t layer, HeadRange heads,
                      absl::Span<const AttentionItem> items) override {
    return Noted(TryAttend(layers_[layer].Part(heads), items));
  }

 private:
  // Items whose rows of q and of out follow each other, or with as many rows between them in both,
  // which one launch takes.
  struct Part {
    std::vector<StepItem> items;
    uint32_t rows = 0;
    uint32_t left_out = 0;  // Rows between those.
    uint32_t partials = 0;
    size_t extents = 0;
    const BFloat16* q = nullptr;
    size_t q_stride = 0;
    BFloat16* out = nullptr;
    size_t out_stride = 0;

    void Clear() {
      items.clear();
      rows = left_out = partials = 0;
      extents = 0;
    }
    // How many rows lie between the last one, if there is any, and the item's from `done` on.
    // Nothing: one launch does not take both.
    std::optional<uint32_t> RowsBefore(const AttentionItem& item, uint32_t done) const {
      if (rows == 0) {
        return 0;
      }
      if (q_stride != item.q_stride || out_stride != item.out_stride) {
        return std::nullopt;
      }
      const size_t next = size_t{rows} + left_out;
      const std::ptrdiff_t ahead = item.q + done * q_stride - (q + next * q_stride);
      const std::ptrdiff_t out_ahead = item.out + done * out_stride - (out + next * out_stride);
      if (ahead < 0 || out_ahead < 0) {
        return std::nullopt;
      }
      const size_t between = q_stride == 0 ? 0 : static_cast<size_t>(ahead) / q_stride;
      const bool alike = between * q_stride == static_cast<size_t>(ahead) &&
                         between * out_stride == static_cast<size_t>(out_ahead);
      if (!alike || between > kLeftOutMax) {
        return std::nullopt;
      }
      return static_cast<uint32_t>(between);
    }
  };

  absl::Status Noted(absl::Status status) {
    usable_.store(usable() && status.ok(), std::memory_order_relaxed);
    return status;
  }

  absl::Status TryStore(const KvLayers::Layer& layer, absl::Span<const KvRows> rows) {
    next_slots_.clear();
    runs_.clear();
    for (const KvRows& some : rows) {
      uint32_t token = 0;
      for (const Extent& extent : some.slots) {
        if (next_slots_.size() + extent.tokens > limits_.query_rows_max) {
          return absl::InternalError(absl::StrCat(name_, ": more than ", limits_.query_rows_max,
                                                  " tokens to store at once"));
        }
        for (uint32_t i = 0; i < extent.tokens; ++i, ++token) {
          AddToRuns(some, token, static_cast<uint32_t>(next_slots_.size()), runs_);
          next_slots_.push_back(extent.first_slot + i);
        }
      }
    }
    LAMINA_RETURN_IF_ERROR(SendSlots());
    for (const KvRun& run : runs_) {
      LAMINA_RETURN_IF_ERROR(StoreKv(layer.descriptor, run.k, run.v, run.stride,
                                     {device_slots_ + run.first, run.tokens}, layer.k, layer.v,
                                     layer.head_stride, stream_));
    }
    return absl::OkStatus();
  }

  // Once for all layers of a step.
  absl::Status SendSlots() {
    if (next_slots_ == slots_) {
      return absl::OkStatus();
    }
    LAMINA_RETURN_IF_ERROR(fetched_.Synchronize());
    std::swap(slots_, next_slots_);
    const size_t bytes = slots_.size() * sizeof(uint32_t);
    std::memcpy(pinned_slots_, slots_.data(), bytes);
    LAMINA_RETURN_IF_ERROR(CopyAsync(device_slots_, pinned_slots_, bytes, stream_));
    return fetched_.Record(stream_);
  }

  absl::Status TryAttend(const KvLayers::Layer& layer, absl::Span<const AttentionItem> items) {
    part_.Clear();
    for (const AttentionItem& item : items) {
      if (item.partial != nullptr) {
        return absl::InternalError(absl::StrCat(name_, ": an item that asks for partials"));
      }
      const uint32_t blocks = BlocksOf(uint64_t{item.first_position} + item.query_tokens);
      for (uint32_t done = 0; done < item.query_tokens;) {
        const uint32_t room = layer.attention->TokensFor(
            std::min(item.query_tokens - done, limits_.query_rows_max - part_.rows), blocks,
            limits_.partials_max - part_.partials);
        const bool fits = room > 0 && part_.extents + item.extents.size() <= limits_.extents_max;
        const std::optional<uint32_t> between = part_.RowsBefore(item, done);
        if (fits && between.has_value()) {
          AddToPart(item, done, room, *between);
          part_.partials += layer.attention->PartialsOf(room, blocks);
          done += room;
          continue;
        }
        if (part_.rows == 0) {
          return absl::InternalError(
              absl::StrCat(name_, ": a query token at ", item.first_position + done, " with ",
                           item.extents.size(), " extents is more than this device was made for"));
        }
        LAMINA_RETURN_IF_ERROR(AttendPart(layer));
      }
    }
    return AttendPart(layer);
  }

  void AddToPart(const AttentionItem& item, uint32_t done, uint32_t tokens, uint32_t left_out) {
    if (part_.rows == 0) {
      part_.q = item.q + done * item.q_stride;
      part_.q_stride = item.q_stride;
      part_.out = item.out + done * item.out_stride;
      part_.out_stride = item.out_stride;
    }
    part_.items.push_back({.extents = item.extents,
                           .first_position = item.first_position + done,
                           .query_tokens = tokens,
                           .first_seen = item.first_seen,
                           .left_out = left_out});
    part_.rows += tokens;
    part_.left_out += left_out;
    part_.extents += item.extents.size();
  }

  absl::Status AttendPart(const KvLayers::Layer& layer) {
    if (part_.rows == 0) {
      return absl::OkStatus();
    }
    LAMINA_RETURN_IF_ERROR(layer.attention->LoadStep(part_.items));
    const absl::Status status = layer.attention->Attend(
        layer.descriptor, layer.view(), part_.q, part_.q_stride, part_.out, part_.out_stride);
    part_.Clear();
    return status;
  }

  const KvDeviceOptions options_;
  const KvLayers::Options limits_;
  const std::string name_;
  const DeviceInfo info_;
  const Stream& stream_;
  Event fetched_;  // The device has read pinned_slots_.
  std::optional<MemoryArena> device_arena_;
  std::optional<MemoryArena> pinned_arena_;
  KvLayers layers_;
  uint32_t* device_slots_ = nullptr;
  uint32_t* pinned_slots_ = nullptr;
  std::vector<uint32_t> slots_;  // Slots that the device has been given.
  std::vector<uint32_t> next_slots_;
  std::vector<KvRun> runs_;
  Part part_;
  std::atomic<bool> usable_{true};
};

}  // namespace

absl::StatusOr<std::unique_ptr<KvDevice>> MakeStreamKvDevice(const KvDeviceOptions& options,
                                                             uint64_t partial_bytes_max,
                                                             const DeviceInfo& info,
                                                             const Stream& stream) {
  if (options.layers.empty() || options.slots == 0) {
    return absl::InvalidArgumentError("a KV device needs layers and slots");
  }
  if (options.activation_width > 0 || options.int8_slots > 0) {
    return absl::InvalidArgumentError(
        "K and V with a compute device on CUDA keep neither activations nor INT8");
  }
  LAMINA_ASSIGN_OR_RETURN(Event fetched, Event::Create());
  auto device = std::make_unique<StreamKvDevice>(options, partial_bytes_max, info, stream,
                                                 std::move(fetched));
  LAMINA_RETURN_IF_ERROR(device->TakeMemory());
  return device;
}

}  // namespace lamina::kernels::cuda
