// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/cuda/kv_waits_internal.h"

namespace lamina::kernels::cuda {
namespace {

// Of each lane, and of all together.
constexpr uint64_t kPieces = 16;
// That trials wait, at most: their signals are there.
constexpr uint64_t kTrialNanos = 10'000'000'000;

size_t WidestRow(const CudaKvWaits::Options& options) {
  size_t widest = 0;
  for (const AttentionDescriptor& layer : options.layers) {
    widest = std::max<size_t>(widest, layer.qkv_width());
  }
  return widest;
}

size_t WidestQuery(const CudaKvWaits::Options& options) {
  size_t widest = 0;
  for (const AttentionDescriptor& layer : options.layers) {
    widest = std::max<size_t>(widest, layer.q_width());
  }
  return widest;
}

size_t TrialWindowBytes(size_t width) {
  return kWindowHeaderBytes + width * sizeof(BFloat16) + kPieceAlignment;
}

}  // namespace

uint64_t CudaKvWaits::DeviceBytes(const Options& options) {
  const uint64_t rows = options.attention.query_rows_max;
  const uint64_t lane = LayerAttentions::DeviceBytes(options.layers, options.attention) +
                        BytesOf<BFloat16>(rows * WidestRow(options)) +
                        BytesOf<BFloat16>(rows * WidestQuery(options)) + BytesOf<uint32_t>(rows) +
                        kPieces * kPieceAlignment;
  return options.lanes * lane;
}

uint64_t CudaKvWaits::PinnedBytes(const Options& options) {
  const uint64_t lane = LayerAttentions::PinnedBytes(options.layers, options.attention) +
                        BytesOf<uint32_t>(options.attention.query_rows_max) +
                        BytesOf<WaitRecord>(1) + BytesOf<UnitRecord>(options.layers.size()) +
                        kPieces * kPieceAlignment;
  return options.lanes * lane + TrialWindowBytes(WidestRow(options)) +
         TrialWindowBytes(WidestQuery(options)) + kPieces * kPieceAlignment;
}

CudaKvWaits::CudaKvWaits(const Options& options, const KvLayers& layers, const Stream& stores,
                         std::atomic<bool>& usable)
    : options_(options), layers_(layers), stores_(stores), usable_(usable) {
  items_.reserve(options.attention.query_rows_max);
}

absl::StatusOr<std::unique_ptr<CudaKvWaits>> CudaKvWaits::Create(
    const Options& options, const DeviceInfo& info, const KvLayers& layers, const Stream& stores,
    std::atomic<bool>& usable, MemoryArena& device_arena, MemoryArena& pinned_arena) {
  std::unique_ptr<CudaKvWaits> waits(new CudaKvWaits(options, layers, stores, usable));
  LAMINA_ASSIGN_OR_RETURN(Words* const words, pinned_arena.Take<Words>(1));
  waits->words_ = new (words) Words{};
  for (uint32_t lane = 0; lane < options.lanes; ++lane) {
    LAMINA_RETURN_IF_ERROR(waits->TakeLane(info, device_arena, pinned_arena));
  }
  waits->ClearRecords();
  LAMINA_RETURN_IF_ERROR(waits->TryKernels(pinned_arena));
  return waits;
}

absl::Status CudaKvWaits::TakeLane(const DeviceInfo& info, MemoryArena& device_arena,
                                   MemoryArena& pinned_arena) {
  const uint64_t rows = options_.attention.query_rows_max;
  LAMINA_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  lanes_.push_back(std::make_unique<Lane>(std::move(stream)));
  Lane& lane = *lanes_.back();
  LAMINA_ASSIGN_OR_RETURN(lane.attentions,
                          LayerAttentions::Create(options_.layers, options_.attention, info,
                                                  device_arena, pinned_arena, lane.stream));
  LAMINA_ASSIGN_OR_RETURN(lane.rows, device_arena.Take<BFloat16>(rows * WidestRow(options_)));
  LAMINA_ASSIGN_OR_RETURN(lane.out, device_arena.Take<BFloat16>(rows * WidestQuery(options_)));
  LAMINA_RETURN_IF_ERROR(lane.slots.Take(rows, device_arena, pinned_arena));
  LAMINA_ASSIGN_OR_RETURN(lane.record, pinned_arena.Take<WaitRecord>(1));
  LAMINA_ASSIGN_OR_RETURN(lane.units, pinned_arena.Take<UnitRecord>(options_.layers.size()));
  return absl::OkStatus();
}

// A unit of one row in a layer of each kind: zeros, which go into a slot that has them.
absl::Status CudaKvWaits::TryKernels(MemoryArena& pinned_arena) {
  const size_t query_bytes = TrialWindowBytes(WidestRow(options_));
  LAMINA_ASSIGN_OR_RETURN(std::byte* const query, pinned_arena.Take<std::byte>(query_bytes));
  LAMINA_ASSIGN_OR_RETURN(std::byte* const reply,
                          pinned_arena.Take<std::byte>(TrialWindowBytes(WidestQuery(options_))));
  LAMINA_ASSIGN_OR_RETURN(Trial* const trial, pinned_arena.Take<Trial>(1));
  new (trial) Trial{};
  std::fill_n(query, query_bytes, std::byte{0});
  const Extent slot = {.first_slot = 0, .tokens = 1};
  const WaitingRow row = {.extents = {&slot, 1}};
  timeout_nanos_ = kTrialNanos;
  Lane& lane = *lanes_.front();
  for (const std::unique_ptr<CudaAttention>& kind : lane.attentions.all()) {
    uint32_t layer = 0;
    while (lane.attentions.OfLayer(layer) != kind.get()) {
      ++layer;
    }
    LAMINA_RETURN_IF_ERROR(TryBeginStep(lane, {&row, 1}));
    LAMINA_RETURN_IF_ERROR(TryLaunch(lane, {.layer = layer,
                                            .signal = &trial->signal,
                                            .at_least = 1,
                                            .query = query,
                                            .reply = reply,
                                            .reply_signal = &trial->reply_signal,
                                            .reply_value = 1}));
    LAMINA_RETURN_IF_ERROR(lane.stream.Synchronize());
    if (Look(0, 0).outcome != WaitOutcome::kOk) {
      return absl::InternalError(absl::StrCat("a trial of a device's wait ended with outcome ",
                                              static_cast<uint32_t>(Look(0, 0).outcome)));
    }
  }
  ClearRecords();
  return absl::OkStatus();
}

void CudaKvWaits::ClearRecords() {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    new (lane->record) WaitRecord{};
    for (size_t i = 0; i < options_.layers.size(); ++i) {
      new (lane->units + i) UnitRecord{};
    }
    lane->rows_count = 0;
    lane->launched = 0;
  }
}

absl::Status CudaKvWaits::Open(absl::Span<const absl::Span<std::byte>> windows, Nanos silence_max) {
  Close();
  LAMINA_CHECK(silence_max > 0);
  timeout_nanos_ = static_cast<uint64_t>(silence_max);
  ClearRecords();
  std::atomic_ref(words_->abort).store(0, std::memory_order_release);
  const absl::Status opened = OpenAll(windows);
  if (!opened.ok()) {
    windows_.clear();
  }
  return opened;
}

absl::Status CudaKvWaits::OpenAll(absl::Span<const absl::Span<std::byte>> windows) {
  for (const absl::Span<std::byte> pages : windows) {
    LAMINA_ASSIGN_OR_RETURN(RegisteredMemory registered, RegisteredMemory::Create(pages));
    windows_.push_back(std::move(registered));
  }
  return absl::OkStatus();
}

void CudaKvWaits::Close() {
  if (windows_.empty()) {
    return;
  }
  Abort();
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (const absl::Status status = lane->stream.Synchronize(); !status.ok()) {
      Noted(status).IgnoreError();
      LogWarning("closing the windows of a device: ", status.message());
    }
  }
  windows_.clear();
}

void CudaKvWaits::Abort() { std::atomic_ref(words_->abort).store(1, std::memory_order_release); }

void CudaKvWaits::Beat() {
  // One thread writes it.
  std::atomic_ref(words_->heartbeat).store(words_->heartbeat + 1, std::memory_order_relaxed);
}

bool CudaKvWaits::Fits(absl::Span<const WaitingRow> rows) const {
  uint64_t partials = 0;
  uint64_t extents = 0;
  for (const WaitingRow& row : rows) {
    partials += row.position / kBlockTokens + 1;
    extents += row.extents.size();
  }
  const LayerAttentions::Options& most = options_.attention;
  return rows.size() <= most.query_rows_max && partials <= most.partials_max &&
         extents <= most.extents_max;
}

// Slots, and the places of a lane's tables, are addresses of the device's memory soon, where
// nothing stops a wrong one.
absl::Status CudaKvWaits::CheckStep(uint32_t lane, absl::Span<const WaitingRow> rows) const {
  if (lane >= lanes_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step for lane ", lane, " of a device that serves ", lanes_.size()));
  }
  if (!Fits(rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", rows.size(), " rows, with their extents and blocks, for a lane ",
                     "with tables of ", options_.attention.query_rows_max, " rows, ",
                     options_.attention.extents_max, " extents and ",
                     options_.attention.partials_max, " blocks: ask Fits() first"));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].slot >= options_.slots) {
      return absl::InvalidArgumentError(absl::StrCat("row ", i, " stores into slot ", rows[i].slot,
                                                     " of a device with ", options_.slots));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaKvWaits::BeginStep(uint32_t lane, absl::Span<const WaitingRow> rows) {
  LAMINA_RETURN_IF_ERROR(CheckStep(lane, rows));
  return Noted(TryBeginStep(*lanes_[lane], rows));
}

absl::Status CudaKvWaits::TryBeginStep(Lane& lane, absl::Span<const WaitingRow> rows) {
  LAMINA_RETURN_IF_ERROR(stores_.Synchronize());
  items_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    items_.push_back({.extents = rows[i].extents, .first_position = rows[i].position});
    lane.slots.pinned[i] = rows[i].slot;
  }
  LAMINA_RETURN_IF_ERROR(lane.slots.Send(rows.size(), lane.stream));
  for (const std::unique_ptr<CudaAttention>& attention : lane.attentions.all()) {
    LAMINA_RETURN_IF_ERROR(attention->LoadStep(items_));
  }
  lane.rows_count = static_cast<uint32_t>(rows.size());
  lane.launched = 0;
  for (size_t i = 0; i < options_.layers.size(); ++i) {
    lane.units[i].sequence = 0;  // The device is done with all of them.
  }
  return absl::OkStatus();
}

template <typename T>
T* CudaKvWaits::OnDevice(T* host) const {
  const auto window = std::find_if(windows_.begin(), windows_.end(),
                                   [&](const RegisteredMemory& m) { return m.Holds(host); });
  LAMINA_CHECK(window != windows_.end());
  return window->OnDevice(host);
}

absl::Status CudaKvWaits::Launch(uint32_t lane, const WaitingUnit& unit) {
  WaitingUnit there = unit;
  there.signal = OnDevice(unit.signal);
  there.query = OnDevice(unit.query);
  there.reply = OnDevice(unit.reply);
  there.reply_signal = OnDevice(unit.reply_signal);
  return Noted(TryLaunch(*lanes_[lane], there));
}

absl::Status CudaKvWaits::TryLaunch(Lane& lane, const WaitingUnit& unit) {
  LAMINA_CHECK(lane.launched < options_.layers.size());
  const KvLayers::Layer& layer = layers_[unit.layer];
  const AttentionDescriptor& d = layer.descriptor;
  const size_t rows = lane.rows_count;
  const uint64_t sequence = lane.launched + 1;
  UnitRecord* const record = lane.units + lane.launched++;
  LAMINA_RETURN_IF_ERROR(WaitForWindow({.signal = unit.signal,
                                        .at_least = unit.at_least,
                                        .window = reinterpret_cast<const WindowStamp*>(unit.query),
                                        .expected = unit.expected,
                                        .heartbeat = &words_->heartbeat,
                                        .timeout_nanos = timeout_nanos_,
                                        .abort = &words_->abort,
                                        .record = lane.record,
                                        .sequence = sequence},
                                       lane.stream));
  LAMINA_RETURN_IF_ERROR(PutBytes({.to = lane.rows,
                                   .from = unit.query + kWindowHeaderBytes,
                                   .bytes = rows * d.qkv_width() * sizeof(BFloat16),
                                   .record = lane.record},
                                  lane.stream));
  const BFloat16* const k = lane.rows + d.q_width();
  LAMINA_RETURN_IF_ERROR(StoreKv(d, k, k + d.kv_width(), d.qkv_width(), {lane.slots.device, rows},
                                 layer.k, layer.v, layer.head_stride, lane.stream));
  LAMINA_RETURN_IF_ERROR(
      lane.attentions.OfLayer(unit.layer)
          ->Attend(d, layer.view(), lane.rows, d.qkv_width(), lane.out, d.q_width()));
  LAMINA_RETURN_IF_ERROR(PutBytes({.to = unit.reply,
                                   .from = lane.out,
                                   .bytes = rows * d.q_width() * sizeof(BFloat16),
                                   .record = lane.record,
                                   .stamped = true,
                                   .stamp = unit.stamp},
                                  lane.stream));
  return RaiseSignal({.signal = unit.reply_signal,
                      .value = unit.reply_value,
                      .record = lane.record,
                      .unit = record,
                      .sequence = sequence},
                     lane.stream);
}

UnitState CudaKvWaits::Look(uint32_t lane, uint32_t unit) const {
  const Lane& own = *lanes_[lane];
  LAMINA_CHECK(unit < own.launched);
  UnitRecord& record = own.units[unit];
  const auto is_done = [&record] {
    return std::atomic_ref(record.sequence).load(std::memory_order_acquire) != 0;
  };
  if (is_done()) {
    return {.outcome = WaitOutcome::kOk, .nanos = static_cast<Nanos>(record.nanos)};
  }
  const uint32_t failed = std::atomic_ref(own.record->failed).load(std::memory_order_acquire);
  if (failed != 0 && is_done()) {  // Meanwhile; it is one behind that failed.
    return {.outcome = WaitOutcome::kOk, .nanos = static_cast<Nanos>(record.nanos)};
  }
  return {.outcome = static_cast<WaitOutcome>(failed)};
}

absl::Status CudaKvWaits::Check(uint32_t lane) {
  return Noted(lanes_[lane]->stream.IsDone().status());
}

}  // namespace lamina::kernels::cuda
