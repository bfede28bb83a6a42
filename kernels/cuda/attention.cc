// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_tiling.h"
#include "kernels/cuda/cuda_status_internal.h"
#include "kernels/cuda/step_tables.h"

namespace lamina::kernels::cuda {
namespace {

static_assert(kAttentionBlockTokens == kBlockTokens);

// Blocks of the longest sequence.
constexpr uint32_t kBlocksMax = 1u << 18;
// Pieces taken from an arena are padded to this.
constexpr uint64_t kAlignment = 256;

const uint16_t* Raw(const BFloat16* data) { return reinterpret_cast<const uint16_t*>(data); }
uint16_t* Raw(BFloat16* data) { return reinterpret_cast<uint16_t*>(data); }
cudaStream_t HandleOf(const Stream& stream) { return static_cast<cudaStream_t>(stream.get()); }

uint64_t Padded(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t TableBytes(const CudaAttentionOptions& o) {
  return Padded(o.partials_max * sizeof(AttentionUnit)) +
         Padded(o.query_rows_max * sizeof(AttentionRow)) +
         Padded(o.extents_max * sizeof(PlacedExtent));
}

absl::Status Check(const CudaAttentionOptions& o, const DeviceInfo& device) {
  if (o.arithmetic != AttentionArithmetic::kCanonical &&
      o.arithmetic != AttentionArithmetic::kTensor) {
    return absl::InvalidArgumentError(
        "attention in pairs of bf16 is of processors; this device has canonical and tensor");
  }
  const AttentionDescriptor& d = o.descriptor;
  if (d.head_dim % 16 != 0 || d.head_dim < 16 || d.head_dim > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim: ", d.head_dim, " is no multiple of 16 in [16, 256]"));
  }
  const uint32_t rows_max = TileRowsMax(o.arithmetic, d.head_dim, device.shared_bytes_max);
  if (rows_max == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim: tiles of heads of ", d.head_dim,
                     " do not fit into the shared memory of a thread block; ", device.name, " has ",
                     device.shared_bytes_max, " bytes, and 99 KiB are enough"));
  }
  if (d.kv_heads == 0 || d.query_heads % d.kv_heads != 0 || d.group() == 0 ||
      d.group() > rows_max) {
    return absl::InvalidArgumentError(absl::StrCat("query_heads: ", d.query_heads, " must be 1 to ",
                                                   rows_max, " for each of ", d.kv_heads,
                                                   " KV heads"));
  }
  if (d.sinks.size() > kSinksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("sinks: ", d.sinks.size(), " of a layer; a launch takes ", kSinksMax));
  }
  return absl::OkStatus();
}

// A table with its place on the device and its staging place in pinned memory.
template <typename T>
struct Table {
  T* device = nullptr;
  T* pinned = nullptr;

  absl::Status Take(uint32_t count, MemoryArena& device_arena, MemoryArena& pinned_arena) {
    LAMINA_ASSIGN_OR_RETURN(device, device_arena.Take<T>(count));
    LAMINA_ASSIGN_OR_RETURN(pinned, pinned_arena.Take<T>(count));
    return absl::OkStatus();
  }

  absl::Status Send(const std::vector<T>& from, const Stream& stream) const {
    if (from.empty()) {
      return absl::OkStatus();
    }
    std::memcpy(pinned, from.data(), from.size() * sizeof(T));
    return CopyAsync(device, pinned, from.size() * sizeof(T), stream);
  }
};

class CudaAttentionImpl final : public CudaAttention {
 public:
  CudaAttentionImpl(const CudaAttentionOptions& options, const DeviceInfo& device,
                    const Stream& stream, Event fetched)
      : options_(options),
        shared_bytes_max_(device.shared_bytes_max),
        multiprocessors_(static_cast<uint32_t>(device.multiprocessors)),
        tile_rows_(
            TileRowsMax(options.arithmetic, options.descriptor.head_dim, device.shared_bytes_max)),
        runs_(RunTilingOf(options.arithmetic, options.descriptor.head_dim,
                          options.descriptor.group(), device.shared_bytes_max)),
        stream_(stream),
        fetched_(std::move(fetched)) {}

  absl::Status Take(MemoryArena& device_arena, MemoryArena& pinned_arena) {
    LAMINA_RETURN_IF_ERROR(units_.Take(options_.partials_max, device_arena, pinned_arena));
    LAMINA_RETURN_IF_ERROR(rows_.Take(options_.query_rows_max, device_arena, pinned_arena));
    LAMINA_RETURN_IF_ERROR(extents_.Take(options_.extents_max, device_arena, pinned_arena));
    const uint64_t heads = uint64_t{options_.partials_max} * options_.descriptor.query_heads;
    LAMINA_ASSIGN_OR_RETURN(partial_lse_, device_arena.Take<float>(heads));
    LAMINA_ASSIGN_OR_RETURN(partial_out_,
                            device_arena.Take<float>(heads * options_.descriptor.head_dim));
    next_.units.reserve(options_.partials_max);
    next_.rows.reserve(options_.query_rows_max);
    next_.extents.reserve(options_.extents_max);
    loaded_.units.reserve(options_.partials_max);
    loaded_.rows.reserve(options_.query_rows_max);
    loaded_.extents.reserve(options_.extents_max);
    return absl::OkStatus();
  }

  absl::Status LoadStep(absl::Span<const StepItem> items) override {
    StepCut cut = {.tile_rows = tile_rows_, .run_rows = runs_.rows, .run_log2 = runs_.run_log2};
    cut.run_log2 = RunLog2Of(options_, cut, items, multiprocessors_);
    absl::Status filled = FillStepTables(options_, cut, items, next_);
    while (absl::IsResourceExhausted(filled) && cut.run_log2 < runs_.run_log2) {
      ++cut.run_log2;  // Longer runs leave fewer partials.
      filled = FillStepTables(options_, cut, items, next_);
    }
    LAMINA_RETURN_IF_ERROR(filled);
    return Load();
  }

  uint32_t PartialsOf(uint32_t query_tokens, uint32_t blocks) const override {
    const StepCut cut = {.tile_rows = tile_rows_, .run_rows = runs_.rows};
    const bool runs = TakesRuns(options_, cut, query_tokens);
    return query_tokens * (runs ? ((blocks - 1) >> runs_.run_log2) + 1 : blocks);
  }

  uint32_t TokensFor(uint32_t query_tokens, uint32_t blocks, uint32_t partials) const override {
    const StepCut cut = {.tile_rows = tile_rows_, .run_rows = runs_.rows};
    const uint32_t runs = ((blocks - 1) >> runs_.run_log2) + 1;
    const uint32_t by_runs = std::min(query_tokens, partials / runs);
    return TakesRuns(options_, cut, by_runs) ? by_runs : std::min(query_tokens, partials / blocks);
  }

  uint32_t rows() const override { return static_cast<uint32_t>(loaded_.rows.size()); }

  absl::Status Attend(const AttentionDescriptor& descriptor, const KvView& kv, const BFloat16* q,
                      size_t q_stride, BFloat16* out, size_t out_stride) override {
    LAMINA_RETURN_IF_ERROR(LaunchBlocks(descriptor, kv, q, q_stride));
    MergeBlocksArguments merge = MergeArguments(descriptor);
    merge.out = Raw(out);
    merge.out_stride = out_stride;
    merge.has_sinks = !descriptor.sinks.empty();
    std::copy(descriptor.sinks.begin(), descriptor.sinks.end(), merge.sinks);
    return LaunchMerge(merge);
  }

  absl::Status AttendPartial(const AttentionDescriptor& descriptor, const KvView& kv,
                             const BFloat16* q, size_t q_stride, uint32_t entries_max, float* out,
                             float* lse) override {
    if (loaded_.run_units > 0) {
      return absl::InvalidArgumentError("items of many query tokens leave no entries of blocks");
    }
    for (uint32_t row = 0; row < rows(); ++row) {
      if (Entries(row).size() > entries_max) {
        return absl::InvalidArgumentError(absl::StrCat("entries_max: ", entries_max, ", but row ",
                                                       row, " has ", Entries(row).size()));
      }
    }
    LAMINA_RETURN_IF_ERROR(LaunchBlocks(descriptor, kv, q, q_stride));
    MergeBlocksArguments merge = MergeArguments(descriptor);
    merge.entry_out = out;
    merge.entry_lse = lse;
    merge.entries_max = entries_max;
    return LaunchMerge(merge);
  }

  std::vector<StackEntry> Entries(uint32_t row) const override {
    return EntriesOf(loaded_.rows[row]);
  }

 private:
  // Sends next_ to the device.
  absl::Status Load() {
    for (const AttentionRow& row : next_.rows) {
      if (uint64_t{row.first_block} + row.blocks > kBlocksMax) {
        return absl::ResourceExhaustedError(
            absl::StrCat("a query token sees block ", row.first_block + row.blocks - 1,
                         "; the last possible is ", kBlocksMax - 1));
      }
    }
    if (next_ == loaded_) {
      return absl::OkStatus();  // Another layer of the same step.
    }
    LAMINA_RETURN_IF_ERROR(fetched_.Synchronize());
    std::swap(loaded_, next_);
    depth_ = 1;
    for (const AttentionRow& row : loaded_.rows) {
      depth_ = std::max(depth_, StackDepth(row.held_block, row.first_block + row.blocks));
    }
    LAMINA_RETURN_IF_ERROR(units_.Send(loaded_.units, stream_));
    LAMINA_RETURN_IF_ERROR(rows_.Send(loaded_.rows, stream_));
    LAMINA_RETURN_IF_ERROR(extents_.Send(loaded_.extents, stream_));
    return fetched_.Record(stream_);
  }

  absl::Status LaunchBlocks(const AttentionDescriptor& d, const KvView& kv, const BFloat16* q,
                            size_t q_stride) {
    const AttentionDescriptor& mine = options_.descriptor;
    if (d.kv_heads == 0 || d.kv_heads > mine.kv_heads ||
        d.query_heads != d.kv_heads * mine.group() || d.head_dim != mine.head_dim ||
        d.window != mine.window || d.sinks.size() > kSinksMax) {
      return absl::InvalidArgumentError(
          "descriptor: heads, head size, window or sinks are not those that this CudaAttention was "
          "made for");
    }
    if (loaded_.units.empty()) {
      return absl::OkStatus();
    }
    const AttendBlocksArguments arguments = {
        .shape = {.query_heads = d.query_heads,
                  .kv_heads = d.kv_heads,
                  .head_dim = d.head_dim,
                  .window = d.window,
                  .scale = d.scale,
                  .soft_cap = d.soft_cap},
        .units = units_.device,
        .extents = extents_.device,
        .rows_max = loaded_.tile_rows_max,
        .stage_tokens = StageTokensOf(d.head_dim, loaded_.tile_rows_max, shared_bytes_max_),
        .ring = RingOf(d.head_dim, loaded_.tile_rows_max, shared_bytes_max_),
        .q = Raw(q),
        .q_stride = q_stride,
        .k = Raw(kv.k),
        .v = Raw(kv.v),
        .head_stride = kv.head_stride,
        .partial_out = partial_out_,
        .partial_lse = partial_lse_};
    const auto units = static_cast<uint32_t>(loaded_.units.size()) - loaded_.run_units;
    if (loaded_.run_units > 0) {
      AttendBlocksArguments of_runs = arguments;
      of_runs.units += units;
      of_runs.ring = runs_.ring;
      of_runs.levels = runs_.levels;
      LAMINA_RETURN_IF_ERROR(CudaToStatus(
          AttendRunsTensor(of_runs, loaded_.run_units, HandleOf(stream_)), "AttendRunsTensor"));
    }
    if (units == 0) {
      return absl::OkStatus();
    }
    if (options_.arithmetic == AttentionArithmetic::kTensor) {
      return CudaToStatus(AttendBlocksTensor(arguments, units, HandleOf(stream_)),
                          "AttendBlocksTensor");
    }
    const bool few = uint64_t{units} * d.kv_heads <= uint64_t{kFewBlocks} * multiprocessors_;
    if (loaded_.tile_tokens_max == 1 && HasDecodeKernel(d.head_dim) && !few) {
      return CudaToStatus(AttendBlocksDecode(arguments, units, HandleOf(stream_)),
                          "AttendBlocksDecode");
    }
    return CudaToStatus(AttendBlocks(arguments, units, HandleOf(stream_)), "AttendBlocks");
  }

  MergeBlocksArguments MergeArguments(const AttentionDescriptor& d) const {
    return {.query_heads = d.query_heads,
            .head_dim = d.head_dim,
            .rows = rows_.device,
            .partial_out = partial_out_,
            .partial_lse = partial_lse_,
            .depth = depth_};
  }

  absl::Status LaunchMerge(const MergeBlocksArguments& merge) {
    if (rows() == 0) {
      return absl::OkStatus();
    }
    return CudaToStatus(MergeBlocks(merge, rows(), HandleOf(stream_)), "MergeBlocks");
  }

  const CudaAttentionOptions options_;
  const size_t shared_bytes_max_;   // The most that a thread block of the device has.
  const uint32_t multiprocessors_;  // The device's.
  const uint32_t tile_rows_;
  const RunTiling runs_;
  const Stream& stream_;
  Event fetched_;  // The device has read the pinned tables.
  Table<AttentionUnit> units_;
  Table<AttentionRow> rows_;
  Table<PlacedExtent> extents_;
  float* partial_out_ = nullptr;  // [partials_max, query_heads, head_dim]
  float* partial_lse_ = nullptr;  // [partials_max, query_heads]
  uint32_t depth_ = 1;            // Depth of the stacks of the loaded rows.
  StepTables loaded_;
  StepTables next_;
};

}  // namespace

uint64_t CudaAttention::DeviceBytes(const CudaAttentionOptions& o) {
  const uint64_t heads = uint64_t{o.partials_max} * o.descriptor.query_heads;
  return TableBytes(o) + Padded(heads * sizeof(float)) +
         Padded(heads * o.descriptor.head_dim * sizeof(float));
}

uint64_t CudaAttention::PinnedBytes(const CudaAttentionOptions& o) { return TableBytes(o); }

absl::StatusOr<std::unique_ptr<CudaAttention>> CudaAttention::Create(
    const CudaAttentionOptions& options, const DeviceInfo& device, MemoryArena& device_arena,
    MemoryArena& pinned_arena, const Stream& stream) {
  LAMINA_RETURN_IF_ERROR(Check(options, device));
  LAMINA_ASSIGN_OR_RETURN(Event fetched, Event::Create());
  auto attention = std::make_unique<CudaAttentionImpl>(options, device, stream, std::move(fetched));
  LAMINA_RETURN_IF_ERROR(attention->Take(device_arena, pinned_arena));
  return attention;
}

absl::Status StoreKv(const AttentionDescriptor& descriptor, const BFloat16* k, const BFloat16* v,
                     size_t stride, absl::Span<const uint32_t> slots, BFloat16* arena_k,
                     BFloat16* arena_v, size_t head_stride, const Stream& stream) {
  if (slots.empty()) {
    return absl::OkStatus();
  }
  const StoreRowsArguments arguments = {.kv_heads = descriptor.kv_heads,
                                        .head_dim = descriptor.head_dim,
                                        .k = Raw(k),
                                        .v = Raw(v),
                                        .stride = stride,
                                        .slots = slots.data(),
                                        .arena_k = Raw(arena_k),
                                        .arena_v = Raw(arena_v),
                                        .head_stride = head_stride};
  return CudaToStatus(StoreRows(arguments, static_cast<uint32_t>(slots.size()), HandleOf(stream)),
                      "StoreRows");
}

}  // namespace lamina::kernels::cuda
