// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/kv_device.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/canonical_math.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kv_layers_internal.h"
#include "kernels/cuda/kv_step_attention_internal.h"
#include "kernels/cuda/memory_pair_internal.h"
#include "kernels/cuda/row_runs_internal.h"
#include "kernels/cuda/window_channel.h"
#include "kernels/kv_arena.h"
#include "kernels/partial.h"

namespace lamina::kernels::cuda {
namespace {

// Pieces that a device takes from each arena, without those of its layers.
constexpr uint64_t kPieces = 16;

// Sizes that follow from the options.
struct Sizes {
  explicit Sizes(const KvDeviceOptions& o) {
    for (const AttentionDescriptor& layer : o.layers) {
      q_width = std::max<uint64_t>(q_width, layer.q_width());
      kv_width = std::max<uint64_t>(kv_width, layer.kv_width());
      query_heads = std::max<uint64_t>(query_heads, layer.query_heads);
    }
    const uint64_t blocks = (uint64_t{o.context_tokens_max} + kBlockTokens - 1) / kBlockTokens;
    entries_max = static_cast<uint32_t>(std::bit_width(blocks)) + 1;
    slot_bytes = KvArena::SlotBytes(o.layers);
    items = o.items_max;
    store_tokens = o.store_tokens_max;
    // So many as items see that share no slots, each some blocks, the last perhaps in part, from
    // inside an extent to inside another. Forks share theirs: then an Attend goes in several parts,
    // for each of which one item must fit.
    partials = std::max(o.slots / kBlockTokens + 2 * items, blocks + 1);
    extents = o.slots + 2 * items;
  }

  // Floats of entries: outputs of all heads, or the entries of their stacks.
  uint64_t entry_floats() const { return items * entries_max * q_width; }
  uint64_t entry_lses() const { return items * entries_max * query_heads; }

  uint64_t RowBytes() const {
    return KvDeviceRows::kPeekBytesMax + 2 * BytesOf<BFloat16>(items * q_width) +
           BytesOf<BFloat16>(2 * store_tokens * kv_width) + BytesOf<uint32_t>(store_tokens) +
           BytesOf<float>(entry_floats()) + BytesOf<float>(entry_lses()) +
           kPieces * kPieceAlignment;
  }

  uint64_t q_width = 0;
  uint64_t kv_width = 0;
  uint64_t query_heads = 0;
  uint32_t entries_max = 0;
  uint64_t slot_bytes = 0;
  uint64_t items = 0;
  uint64_t store_tokens = 0;
  uint64_t partials = 0;
  uint64_t extents = 0;
};

KvLayers::Options LayerOptionsOf(const KvDeviceOptions& options, const Sizes& sizes) {
  return {.layers = options.layers,
          .slots = options.slots,
          .arithmetic = options.arithmetic,
          .query_rows_max = static_cast<uint32_t>(sizes.items),
          .partials_max = static_cast<uint32_t>(sizes.partials),
          .extents_max = static_cast<uint32_t>(sizes.extents)};
}

// Each lane has whole steps, each row once.
CudaKvStepAttention::Options StepOptionsOf(const KvDeviceOptions& options, const StepLanes& lanes) {
  KvDeviceOptions step = options;
  step.items_max = lanes.rows_max;
  const Sizes sizes(step);
  return {.layers = options.layers,
          .lanes = lanes.lanes,
          .slots = options.slots,
          .attention = {.arithmetic = options.arithmetic,
                        .query_rows_max = static_cast<uint32_t>(sizes.items),
                        .partials_max = static_cast<uint32_t>(sizes.partials),
                        .extents_max = static_cast<uint32_t>(sizes.extents)}};
}

class CudaKvDevice final : public KvDevice, private KvDeviceRows {
 public:
  static absl::StatusOr<std::unique_ptr<KvDevice>> Create(int index,
                                                          const KvDeviceOptions& options);

  const std::string& name() const override { return name_; }
  uint32_t slots() const override { return options_.slots; }
  uint64_t bytes() const override { return sizes_.slot_bytes * options_.slots; }
  uint32_t query_tokens_max() const override { return 1; }
  bool usable() const override { return usable_.load(std::memory_order_relaxed); }
  absl::Status Begin() override { return OpenDevice(info_.index).status(); }
  absl::Status Store(uint32_t layer, HeadRange heads, absl::Span<const KvRows> rows) override {
    return Noted(TryStore(layers_[layer].Part(heads), rows));
  }
  absl::Status Attend(uint32_t layer, HeadRange heads,
                      absl::Span<const AttentionItem> items) override {
    return Noted(TryAttend(layers_[layer].Part(heads), items));
  }
  absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> work) override {
    const absl::StatusOr<double> seconds = SecondsOn(stream_, work);
    LAMINA_RETURN_IF_ERROR(Noted(seconds.status()));
    return seconds;
  }
  KvDeviceRows* device_rows() override { return this; }
  absl::Status MakeStepLanes(const StepLanes& lanes) override;
  KvStepAttention* step_attention() override { return steps_.get(); }
  absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(
      const ChannelOptions& options) override;

 private:
  absl::Status UseMemory(absl::Span<const absl::Span<const std::byte>> ranges) override {
    ranges_.assign(ranges.begin(), ranges.end());
    return absl::OkStatus();
  }
  absl::Status Peek(const std::byte* from, size_t bytes) override {
    LAMINA_CHECK(bytes <= kPeekBytesMax);
    ordered_ = true;
    return Noted(CopyAsync(peeked_, from, bytes, stream_));
  }
  const std::byte* peeked() const override { return peeked_; }
  absl::Status Settle() override { return ordered_ ? Noted(Synchronize()) : absl::OkStatus(); }

  using Layer = KvLayers::Layer;
  // Queries of all items of a call, in the device's memory.
  struct Queries {
    const BFloat16* q = nullptr;
    size_t stride = 0;
  };

  CudaKvDevice(const KvDeviceOptions& options, DeviceInfo info, Stream stream,
               MemoryArena device_arena, MemoryArena pinned_arena)
      : options_(options),
        sizes_(options),
        info_(std::move(info)),
        name_(absl::StrCat("cuda:", info_.index, " ", info_.name,
                           options.arithmetic == AttentionArithmetic::kTensor
                               ? ", attention on tensor cores"
                               : "")),
        stream_(std::move(stream)),
        device_arena_(std::move(device_arena)),
        pinned_arena_(std::move(pinned_arena)) {}

  absl::Status TakeMemory();
  absl::Status Noted(absl::Status status) {
    usable_.store(usable() && status.ok(), std::memory_order_relaxed);
    return status;
  }
  // Whether it is memory of the device that was named.
  bool OnDevice(const void* data) const {
    return std::any_of(ranges_.begin(), ranges_.end(), [data](const auto& range) {
      const auto* const byte = static_cast<const std::byte*>(data);
      return byte >= range.data() && byte < range.data() + range.size();
    });
  }
  absl::Status Synchronize() {
    ordered_ = false;
    return stream_.Synchronize();
  }
  absl::Status TryStore(const Layer& layer, absl::Span<const KvRows> rows);
  void Gather(const KvRows& rows, uint32_t token, uint32_t at, size_t width);
  absl::Status TryAttend(const Layer& layer, absl::Span<const AttentionItem> items);
  size_t CountThatFit(absl::Span<const AttentionItem> items) const;
  absl::Status AttendSome(const Layer& layer, absl::Span<const AttentionItem> items);
  absl::Status LoadTables(CudaAttention& attention, absl::Span<const AttentionItem> items);
  absl::StatusOr<Queries> FindQueries(absl::Span<const AttentionItem> items, size_t width);
  absl::Status AttendWhole(const Layer& layer, absl::Span<const AttentionItem> items,
                           const Queries& queries);
  absl::Status AttendToDevice(const Layer& layer, absl::Span<const AttentionItem> items,
                              const Queries& queries);
  absl::Status AttendParts(const Layer& layer, absl::Span<const AttentionItem> items,
                           const Queries& queries);

  const KvDeviceOptions options_;
  const Sizes sizes_;
  const DeviceInfo info_;
  const std::string name_;
  const Stream stream_;
  MemoryArena device_arena_;
  MemoryArena pinned_arena_;
  KvLayers layers_;
  MemoryPair<BFloat16> q_;
  MemoryPair<BFloat16> out_;
  MemoryPair<BFloat16> kv_;  // [tokens, k and v]
  MemoryPair<uint32_t> slots_;
  MemoryPair<float> entry_out_;
  MemoryPair<float> entry_lse_;
  std::byte* peeked_ = nullptr;  // Pinned.
  std::vector<absl::Span<const std::byte>> ranges_;
  std::atomic<bool> usable_{true};
  bool ordered_ = false;  // Something that was not waited for: the device may read kv_ and slots_.
  std::vector<KvRun> runs_;
  std::vector<StepItem> step_items_;
  std::vector<float> folded_;
  StepLanes step_lanes_;
  std::unique_ptr<CudaKvStepAttention> steps_;  // Null without lanes of steps.
};

absl::StatusOr<std::unique_ptr<KvDevice>> CudaKvDevice::Create(int index,
                                                               const KvDeviceOptions& options) {
  LAMINA_ASSIGN_OR_RETURN(DeviceInfo info, OpenDevice(index));
  const Sizes sizes(options);
  if (options.layers.empty() || options.slots == 0) {
    return absl::InvalidArgumentError("a KV device needs layers and slots");
  }
  if (options.activation_width > 0 || options.int8_slots > 0) {
    return absl::InvalidArgumentError("a KV device on CUDA keeps neither activations nor INT8");
  }
  const KvLayers::Options layers = LayerOptionsOf(options, sizes);
  LAMINA_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena device_arena,
      MemoryArena::Create(ArenaKind::kDevice, KvLayers::DeviceBytes(layers) + sizes.RowBytes()));
  LAMINA_ASSIGN_OR_RETURN(MemoryArena pinned_arena,
                          MemoryArena::Create(ArenaKind::kPinnedHost,
                                              KvLayers::PinnedBytes(layers) + sizes.RowBytes()));
  std::unique_ptr<CudaKvDevice> device(new CudaKvDevice(options, std::move(info), std::move(stream),
                                                        std::move(device_arena),
                                                        std::move(pinned_arena)));
  LAMINA_RETURN_IF_ERROR(device->TakeMemory());
  return device;
}

absl::Status CudaKvDevice::TakeMemory() {
  LAMINA_ASSIGN_OR_RETURN(layers_, KvLayers::Create(LayerOptionsOf(options_, sizes_), info_,
                                                    device_arena_, pinned_arena_, stream_));
  const auto take = [this](auto& pair, uint64_t count) {
    return pair.Take(count, device_arena_, pinned_arena_);
  };
  LAMINA_RETURN_IF_ERROR(take(q_, sizes_.items * sizes_.q_width));
  LAMINA_RETURN_IF_ERROR(take(out_, sizes_.items * sizes_.q_width));
  LAMINA_RETURN_IF_ERROR(take(kv_, 2 * sizes_.store_tokens * sizes_.kv_width));
  LAMINA_RETURN_IF_ERROR(take(slots_, sizes_.store_tokens));
  LAMINA_RETURN_IF_ERROR(take(entry_out_, sizes_.entry_floats()));
  LAMINA_RETURN_IF_ERROR(take(entry_lse_, sizes_.entry_lses()));
  LAMINA_ASSIGN_OR_RETURN(peeked_, pinned_arena_.Take<std::byte>(kPeekBytesMax));
  runs_.reserve(sizes_.store_tokens);
  step_items_.reserve(sizes_.items);
  return stream_.Synchronize();
}

absl::Status CudaKvDevice::MakeStepLanes(const StepLanes& lanes) {
  if (lanes == step_lanes_) {
    return absl::OkStatus();
  }
  steps_.reset();  // Both at once may not fit.
  step_lanes_ = {};
  if (lanes.lanes == 0) {
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(steps_, CudaKvStepAttention::Create(StepOptionsOf(options_, lanes), info_,
                                                              layers_, stream_, usable_));
  step_lanes_ = lanes;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WindowChannel>> CudaKvDevice::MakeChannel(
    const ChannelOptions& options) {
  if (steps_ == nullptr) {
    return nullptr;
  }
  if (options.lanes > steps_->lanes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a channel of ", options.lanes, " lanes of a device that has ", steps_->lanes()));
  }
  return MakeCudaWindowChannel(options, steps_->streams(options.lanes), &usable_);
}

absl::Status CudaKvDevice::TryStore(const Layer& layer, absl::Span<const KvRows> rows) {
  const size_t width = layer.descriptor.kv_width();
  LAMINA_RETURN_IF_ERROR(Settle());
  const bool there = !rows.empty() && OnDevice(rows.front().k);
  runs_.clear();
  uint32_t tokens = 0;
  for (const KvRows& run : rows) {
    uint32_t token = 0;
    for (const Extent& extent : run.slots) {
      if (tokens + extent.tokens > sizes_.store_tokens) {
        return absl::InternalError(
            absl::StrCat(name_, ": more than ", sizes_.store_tokens, " tokens to store at once"));
      }
      for (uint32_t i = 0; i < extent.tokens; ++i, ++token, ++tokens) {
        if (there) {
          AddToRuns(run, token, tokens, runs_);
        } else {
          Gather(run, token, tokens, width);
        }
        slots_.pinned[tokens] = extent.first_slot + i;
      }
    }
  }
  if (tokens == 0) {
    return absl::OkStatus();
  }
  ordered_ = true;
  if (!there) {
    LAMINA_RETURN_IF_ERROR(kv_.Send(size_t{tokens} * 2 * width, stream_));
    runs_.push_back(
        {.k = kv_.device, .v = kv_.device + width, .stride = 2 * width, .tokens = tokens});
  }
  LAMINA_RETURN_IF_ERROR(slots_.Send(tokens, stream_));
  for (const KvRun& run : runs_) {
    LAMINA_RETURN_IF_ERROR(StoreKv(layer.descriptor, run.k, run.v, run.stride,
                                   {slots_.device + run.first, run.tokens}, layer.k, layer.v,
                                   layer.head_stride, stream_));
  }
  return absl::OkStatus();
}

// A token from the host's memory, to where one copy takes all.
void CudaKvDevice::Gather(const KvRows& rows, uint32_t token, uint32_t at, size_t width) {
  BFloat16* const to = kv_.pinned + size_t{at} * 2 * width;
  std::memcpy(to, rows.k + token * rows.stride, width * sizeof(BFloat16));
  std::memcpy(to + width, rows.v + token * rows.stride, width * sizeof(BFloat16));
}

absl::Status CudaKvDevice::TryAttend(const Layer& layer, absl::Span<const AttentionItem> items) {
  while (!items.empty()) {
    const size_t count = CountThatFit(items);
    LAMINA_RETURN_IF_ERROR(AttendSome(layer, items.first(count)));
    items.remove_prefix(count);
  }
  return absl::OkStatus();
}

// The first items whose tables fit; at least one.
size_t CudaKvDevice::CountThatFit(absl::Span<const AttentionItem> items) const {
  uint64_t partials = 0;
  uint64_t extents = 0;
  size_t count = 0;
  while (count < items.size() && count < sizes_.items) {
    partials += items[count].first_position / kBlockTokens + 1;
    extents += items[count].extents.size();
    if (count > 0 && (partials > sizes_.partials || extents > sizes_.extents)) {
      break;
    }
    ++count;
  }
  return count;
}

absl::Status CudaKvDevice::AttendSome(const Layer& layer, absl::Span<const AttentionItem> items) {
  LAMINA_RETURN_IF_ERROR(LoadTables(*layer.attention, items));
  LAMINA_ASSIGN_OR_RETURN(const Queries queries, FindQueries(items, layer.descriptor.q_width()));
  const bool parts = std::any_of(items.begin(), items.end(),
                                 [](const auto& item) { return item.partial != nullptr; });
  if (parts) {
    return AttendParts(layer, items, queries);
  }
  return OnDevice(items.front().out) ? AttendToDevice(layer, items, queries)
                                     : AttendWhole(layer, items, queries);
}

absl::Status CudaKvDevice::LoadTables(CudaAttention& attention,
                                      absl::Span<const AttentionItem> items) {
  step_items_.clear();
  for (const AttentionItem& item : items) {
    if (item.query_tokens != 1) {
      return absl::InternalError(
          absl::StrCat(name_, ": an item of ", item.query_tokens, " query tokens; 1 is served"));
    }
    step_items_.push_back({.extents = item.extents,
                           .first_position = item.first_position,
                           .first_seen = item.first_seen});
  }
  return attention.LoadStep(step_items_);
}

// Rows in the device's memory stay where they are if they lie at one distance, which those of a
// sequence that is cut do not.
absl::StatusOr<CudaKvDevice::Queries> CudaKvDevice::FindQueries(
    absl::Span<const AttentionItem> items, size_t width) {
  if (!OnDevice(items.front().q)) {
    for (size_t i = 0; i < items.size(); ++i) {
      std::memcpy(q_.pinned + i * width, items[i].q, width * sizeof(BFloat16));
    }
    LAMINA_RETURN_IF_ERROR(q_.Send(items.size() * width, stream_));
    return Queries{.q = q_.device, .stride = width};
  }
  const auto row_of = [](const AttentionItem& item) { return item.q; };
  if (const RowRun all = FirstRun(items, width, row_of); all.rows == items.size()) {
    return Queries{.q = items.front().q, .stride = all.stride};
  }
  for (size_t i = 0; i < items.size();) {
    const RowRun run = FirstRun(items.subspan(i), width, row_of);
    LAMINA_RETURN_IF_ERROR(CopyRowsAsync(q_.device + i * width, items[i].q,
                                         run.Shape(width, width, run.stride), stream_));
    i += run.rows;
  }
  return Queries{.q = q_.device, .stride = width};
}

absl::Status CudaKvDevice::AttendWhole(const Layer& layer, absl::Span<const AttentionItem> items,
                                       const Queries& queries) {
  const size_t width = layer.descriptor.q_width();
  LAMINA_RETURN_IF_ERROR(layer.attention->Attend(layer.descriptor, layer.view(), queries.q,
                                                 queries.stride, out_.device, width));
  LAMINA_RETURN_IF_ERROR(out_.Fetch(items.size() * width, stream_));
  LAMINA_RETURN_IF_ERROR(Synchronize());
  for (size_t i = 0; i < items.size(); ++i) {
    std::memcpy(items[i].out, out_.pinned + i * width, width * sizeof(BFloat16));
  }
  return absl::OkStatus();
}

absl::Status CudaKvDevice::AttendToDevice(const Layer& layer, absl::Span<const AttentionItem> items,
                                          const Queries& queries) {
  const size_t width = layer.descriptor.q_width();
  const auto row_of = [](const AttentionItem& item) { return item.out; };
  const RowRun all = FirstRun(items, width, row_of);
  const bool there = all.rows == items.size();
  LAMINA_RETURN_IF_ERROR(
      layer.attention->Attend(layer.descriptor, layer.view(), queries.q, queries.stride,
                              there ? items.front().out : out_.device, there ? all.stride : width));
  for (size_t i = 0; !there && i < items.size();) {
    const RowRun run = FirstRun(items.subspan(i), width, row_of);
    LAMINA_RETURN_IF_ERROR(CopyRowsAsync(items[i].out, out_.device + i * width,
                                         run.Shape(width, run.stride, width), stream_));
    i += run.rows;
  }
  return Synchronize();
}

// The device leaves each row's stack; the processor folds it along the same tree.
absl::Status CudaKvDevice::AttendParts(const Layer& layer, absl::Span<const AttentionItem> items,
                                       const Queries& queries) {
  const AttentionDescriptor& d = layer.descriptor;
  uint32_t entries_max = 1;
  for (uint32_t row = 0; row < items.size(); ++row) {
    entries_max =
        std::max(entries_max, static_cast<uint32_t>(layer.attention->Entries(row).size()));
  }
  if (entries_max > sizes_.entries_max) {
    return absl::InternalError(
        absl::StrCat(name_, ": ", entries_max, " partials of a row, at most ", sizes_.entries_max));
  }
  LAMINA_RETURN_IF_ERROR(layer.attention->AttendPartial(d, layer.view(), queries.q, queries.stride,
                                                        entries_max, entry_out_.device,
                                                        entry_lse_.device));
  const size_t heads = items.size() * d.query_heads * entries_max;
  LAMINA_RETURN_IF_ERROR(entry_out_.Fetch(heads * d.head_dim, stream_));
  LAMINA_RETURN_IF_ERROR(entry_lse_.Fetch(heads, stream_));
  LAMINA_RETURN_IF_ERROR(Synchronize());
  PartialStack stack(d.head_dim);
  folded_.resize(PartialWidth(d));
  for (uint32_t row = 0; row < items.size(); ++row) {
    const std::vector<StackEntry> entries = layer.attention->Entries(row);
    for (uint32_t head = 0; head < d.query_heads; ++head) {
      const size_t first = (size_t{row} * d.query_heads + head) * entries_max;
      for (size_t i = 0; i < entries.size(); ++i) {
        stack.Push(entries[i].first_block, entries[i].blocks,
                   entry_out_.pinned + (first + i) * d.head_dim, entry_lse_.pinned[first + i]);
      }
      const AttentionItem& item = items[row];
      float* const to =
          item.partial != nullptr ? item.partial + head * PartialWidth(d) : folded_.data();
      stack.Fold(to, to + d.head_dim);
      if (item.partial == nullptr) {
        const float share = d.sinks.empty() ? 1.0f : ShareWithSink(to[d.head_dim], d.sinks[head]);
        std::transform(to, to + d.head_dim, item.out + size_t{head} * d.head_dim,
                       [share](float x) { return canonical::RoundOutput(share * x); });
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

KvDeviceMaker CudaKvDevices(int index) {
  return [index](const KvDeviceOptions& options) { return CudaKvDevice::Create(index, options); };
}

absl::StatusOr<double> MeasureReadBandwidth(int index) {
  constexpr uint64_t kBytes = uint64_t{256} << 20;
  constexpr int kPasses = 8;
  LAMINA_RETURN_IF_ERROR(OpenDevice(index).status());
  LAMINA_ASSIGN_OR_RETURN(MemoryArena arena,
                          MemoryArena::Create(ArenaKind::kDevice, 2 * kBytes + kPieceAlignment));
  LAMINA_ASSIGN_OR_RETURN(std::byte* const from, arena.Take<std::byte>(kBytes));
  LAMINA_ASSIGN_OR_RETURN(std::byte* const to, arena.Take<std::byte>(kBytes));
  LAMINA_ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
  LAMINA_ASSIGN_OR_RETURN(const Event start, Event::Create());
  LAMINA_ASSIGN_OR_RETURN(const Event end, Event::Create());
  LAMINA_RETURN_IF_ERROR(FillAsync(from, 0, kBytes, stream));
  LAMINA_RETURN_IF_ERROR(CopyAsync(to, from, kBytes, stream));
  LAMINA_RETURN_IF_ERROR(start.Record(stream));
  for (int pass = 0; pass < kPasses; ++pass) {
    LAMINA_RETURN_IF_ERROR(CopyAsync(to, from, kBytes, stream));
  }
  LAMINA_RETURN_IF_ERROR(end.Record(stream));
  LAMINA_RETURN_IF_ERROR(end.Synchronize());
  LAMINA_ASSIGN_OR_RETURN(const float milliseconds, end.MillisecondsSince(start));
  // Half of what a copy moves is read; a kernel that only reads gets the whole.
  return 2.0 * kPasses * static_cast<double>(kBytes) / (std::max(milliseconds, 1e-3f) * 1e-3);
}

}  // namespace lamina::kernels::cuda
