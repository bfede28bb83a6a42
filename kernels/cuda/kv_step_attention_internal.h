// SPDX-License-Identifier: Apache-2.0
//
// CudaKvStepAttention: decode steps whose rows lie in a CUDA device's memory
// (kernels/kv_step_attention.h). Three launches a unit, on the lane's own stream: k and v into
// their slots, block partials, and their merge.
//
// Each kernel runs once in Create(): loading one may wait for those that run, and these may be
// waits.
//
// Memory: arenas of its own, so that lanes come and go while K and V stay.
// Threading: as KvStepAttention says.

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
#include "kernels/kv_step_attention.h"

namespace lamina::kernels::cuda {

class CudaKvStepAttention final : public KvStepAttention {
 public:
  struct Options {
    std::vector<AttentionDescriptor> layers;
    uint32_t lanes = 0;
    uint32_t slots = 0;                  // Slots of each layer.
    LayerAttentions::Options attention;  // For each lane; its rows are those of a step.
  };

  // `layers`, and the stream that the device's Store() uses, outlive it. `usable` is lowered when a
  // call fails. Waits for the kernels that it tries, which leave K and V as they are.
  // Errors: kResourceExhausted  memory was refused; says how much was asked for.
  //         others are the device's.
  static absl::StatusOr<std::unique_ptr<CudaKvStepAttention>> Create(const Options& options,
                                                                     const DeviceInfo& info,
                                                                     const KvLayers& layers,
                                                                     const Stream& stores,
                                                                     std::atomic<bool>& usable);
  CudaKvStepAttention(const CudaKvStepAttention&) = delete;
  CudaKvStepAttention& operator=(const CudaKvStepAttention&) = delete;

  // Streams of the first lanes. Requires: as many lanes at least.
  std::vector<const Stream*> streams(uint32_t lanes) const;
  uint32_t lanes() const { return static_cast<uint32_t>(lanes_.size()); }

  BFloat16* rows(uint32_t lane) override { return lanes_[lane]->rows; }
  const BFloat16* outputs(uint32_t lane) const override { return lanes_[lane]->out; }
  bool Fits(absl::Span<const StepRow> rows) const override;
  absl::Status BeginStep(uint32_t lane, absl::Span<const StepRow> rows) override;
  absl::Status Attend(uint32_t lane, uint32_t layer) override;

 private:
  struct Lane {
    explicit Lane(Stream own) : stream(std::move(own)) {}

    const Stream stream;
    LayerAttentions attentions;  // They keep the stream's address.
    BFloat16* rows = nullptr;    // [rows, q | k | v], of the unit at hand.
    BFloat16* out = nullptr;     // [rows, q]
    MemoryPair<uint32_t> slots;
    uint32_t rows_count = 0;
  };

  CudaKvStepAttention(const Options& options, const KvLayers& layers, const Stream& stores,
                      std::atomic<bool>& usable, MemoryArena device_arena,
                      MemoryArena pinned_arena);
  absl::Status TakeLane(const DeviceInfo& info);
  absl::Status TryKernels();
  absl::Status ReadFirstSlot(const Lane& lane, uint32_t layer);
  absl::Status CheckStep(uint32_t lane, absl::Span<const StepRow> rows) const;
  absl::Status TryBeginStep(Lane& lane, absl::Span<const StepRow> rows);
  absl::Status TryAttend(const Lane& lane, uint32_t layer);
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
  MemoryArena device_arena_;
  MemoryArena pinned_arena_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<StepItem> items_;
};

}  // namespace lamina::kernels::cuda
