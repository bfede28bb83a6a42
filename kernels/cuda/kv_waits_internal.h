// SPDX-License-Identifier: Apache-2.0
//
// CudaKvWaits: decode steps that a CUDA device serves by itself (kernels/kv_waits.h). Seven
// launches a unit, on the lane's own stream:
//
//   WaitForWindow   the query's word and header
//   PutBytes        its rows, from the host's memory to the device's, once
//   StoreKv         k and v into their slots
//   Attend          block partials, then their merge
//   PutBytes        header and outputs into the reply window
//   RaiseSignal     the reply's word, and the unit's record
//
// Each kernel runs once in Create(): loading one may wait for those that run, and these may be
// waiting.
//
// Memory: taken from the CudaKvDevice's arenas in Create().   Threading: as KvWaits says.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/kv_layers_internal.h"
#include "kernels/cuda/memory_pair_internal.h"
#include "kernels/cuda/registered_memory.h"
#include "kernels/cuda/wait.h"
#include "kernels/kv_device.h"

namespace lamina::kernels::cuda {

class CudaKvWaits final : public KvWaits {
 public:
  struct Options {
    std::vector<AttentionDescriptor> layers;
    uint32_t lanes = 0;
    uint32_t slots = 0;                  // Of each layer.
    LayerAttentions::Options attention;  // Of each lane; its rows are those of a step.
  };

  // Bytes that Create() will take, at most.
  static uint64_t DeviceBytes(const Options& options);
  static uint64_t PinnedBytes(const Options& options);

  // `layers`, and the stream that the device's Store() uses, outlive it. `usable` is lowered when a
  // call fails. Waits for the kernels that it tries.
  static absl::StatusOr<std::unique_ptr<CudaKvWaits>> Create(
      const Options& options, const DeviceInfo& info, const KvLayers& layers, const Stream& stores,
      std::atomic<bool>& usable, MemoryArena& device_arena, MemoryArena& pinned_arena);
  CudaKvWaits(const CudaKvWaits&) = delete;
  CudaKvWaits& operator=(const CudaKvWaits&) = delete;
  ~CudaKvWaits() override { Close(); }

  absl::Status Open(absl::Span<const absl::Span<std::byte>> windows, Nanos silence_max) override;
  void Close() override;
  void Abort() override;
  void Beat() override;
  bool Fits(absl::Span<const WaitingRow> rows) const override;
  absl::Status BeginStep(uint32_t lane, absl::Span<const WaitingRow> rows) override;
  absl::Status Launch(uint32_t lane, const WaitingUnit& unit) override;
  UnitState Look(uint32_t lane, uint32_t unit) const override;
  absl::Status Check(uint32_t lane) override;

 private:
  struct Lane {
    explicit Lane(Stream own) : stream(std::move(own)) {}

    const Stream stream;
    LayerAttentions attentions;  // They keep the stream's address.
    BFloat16* rows = nullptr;    // [rows, q | k | v], of the unit at hand.
    BFloat16* out = nullptr;     // [rows, q]
    MemoryPair<uint32_t> slots;
    WaitRecord* record = nullptr;  // Pinned, as are these:
    UnitRecord* units = nullptr;   // [layers], in the order of launches.
    uint32_t rows_count = 0;
    uint32_t launched = 0;  // Of the step.
  };
  // In pinned memory.
  struct Words {
    alignas(64) uint32_t abort = 0;
    alignas(64) uint64_t heartbeat = 0;
  };
  // What a unit of one row needs besides windows, to be tried.
  struct Trial {
    alignas(64) uint64_t signal = 1;  // It has come.
    alignas(64) uint64_t reply_signal = 0;
  };

  CudaKvWaits(const Options& options, const KvLayers& layers, const Stream& stores,
              std::atomic<bool>& usable);
  absl::Status TakeLane(const DeviceInfo& info, MemoryArena& device_arena,
                        MemoryArena& pinned_arena);
  absl::Status TryKernels(MemoryArena& pinned_arena);
  absl::Status CheckStep(uint32_t lane, absl::Span<const WaitingRow> rows) const;
  absl::Status TryBeginStep(Lane& lane, absl::Span<const WaitingRow> rows);
  // Addresses are the device's.
  absl::Status TryLaunch(Lane& lane, const WaitingUnit& unit);
  absl::Status OpenAll(absl::Span<const absl::Span<std::byte>> windows);
  void ClearRecords();
  template <typename T>
  T* OnDevice(T* host) const;
  absl::Status Noted(absl::Status status) {
    if (!status.ok()) {
      usable_.store(false, std::memory_order_relaxed);
    }
    return status;
  }

  const Options options_;
  const KvLayers& layers_;
  const Stream& stores_;
  std::atomic<bool>& usable_;
  Words* words_ = nullptr;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<StepItem> items_;
  std::vector<RegisteredMemory> windows_;
  uint64_t timeout_nanos_ = 0;
};

}  // namespace lamina::kernels::cuda
