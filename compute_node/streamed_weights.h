// SPDX-License-Identifier: Apache-2.0
//
// StreamedWeights: weights of a model that is larger than the memory it is given. Some slices'
// weights stay on the device; those of the others lie in a WeightStore, packed, and come back in
// the order of the slices, ahead of the slice that needs them, into slots that take turns. Packed
// means as products read them: in the blocks of their file, as 8 bits, or as bf16 (weight_form.h).
//
//   slices   0  1  2  3  4  5 ...     r: resident, s: streamed, as evenly spread as can be, so
//            r  s  r  s  r  s ...     that one comes while others run
//
// Slots hold the slices that are wanted next: as many as there are slots, from the earliest slice
// that some lane has still to run on, and around. One lane needs two, so that one comes while the
// other is read. Several lanes share three, whatever their number: all run a slice while it is
// here, one that is ahead of the slots waits, and the slowest never does. Either may do with one
// less (`ahead` 0): one lane's next slice then comes when the last one is read no more. What a
// product reads are the bytes that were packed, so results have the bits of ResidentWeights of the
// same form.
//
// What makes k and v of a slice may come before its other weights (`kv_first`, transfer_order.h),
// and can then be read meanwhile:
//
//   empty --Order()--> ordered --> k and v --> loaded --Ask()--> placed --Order() of another-->
//
// Which slices stream is chosen by sizes that are known before anything is read (weight_sizes.h).
// Where some turn out to be larger, more slices are stowed once all are there.
//
// Tables, vectors (norms, biases) and the last slice, which has the LM head, stay on the device.
//
// Threading: the data thread, and one of its own that reads the store; they share atomics alone.
// Allocation: when weights are loaded.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shared_bus.h"
#include "compute_node/slice_program.h"
#include "compute_node/transfer_order.h"
#include "compute_node/weight_form.h"
#include "compute_node/weight_source.h"
#include "compute_node/weight_store.h"
#include "kernels/compute_device.h"

namespace lamina::compute_node {

struct StreamedWeightsOptions {
  uint64_t budget = 0;                  // Bytes of the device for all weights, slots included.
  uint32_t lanes = 1;                   // Lanes that may hold a slice at the same time.
  WeightForm form = WeightForm::kBF16;  // Slices are stored, and come, in it.
  std::string directory = {};           // Folder of the store.
  uint32_t ahead = 1;                   // Slots for slices that come while others are read.
  // What slices come over, with others' transfers; null: as fast as they are read.
  std::shared_ptr<SharedBus> bus = nullptr;
  bool kv_first = false;  // What makes k and v comes first.
};

// Chooses which of `slices` slices stream, as evenly spread as can be: as few as leave the others,
// and the slots, within the budget.
// Shapes: bytes  [slices], of each slice's weights that may stream; 0: it has none
// Errors: kFailedPrecondition  `fixed` bytes and the slots alone exceed the budget; says both.
absl::StatusOr<std::vector<bool>> ChooseStreamed(absl::Span<const uint64_t> bytes, uint64_t fixed,
                                                 uint32_t slots, uint64_t budget);

class StreamedWeights final : public HeldWeights {
 public:
  // The device must outlive this.
  StreamedWeights(kernels::ComputeDevice& device, StreamedWeightsOptions options);
  ~StreamedWeights() override;

  absl::Status Load(const SliceProgram& program, const model::WeightSource& source,
                    absl::Span<const model::OpId> ops,
                    const ModelWeights::Progress& progress) override;
  void Drop() override;
  uint64_t bytes() const override;
  uint64_t streamed_bytes() const override { return stowed_bytes_; }
  std::string Describe() const override;

  const ModelWeights& weights() const override { return weights_; }
  absl::StatusOr<WeightWait> Ask(uint32_t slice) override;
  bool KvHere(uint32_t slice, size_t first_column) override;
  void Release(uint32_t slice) override;
  bool comes_in_order() const override { return true; }
  void SetEarliest(uint32_t slice) override;

 private:
  static constexpr uint32_t kNoSlot = UINT32_MAX;
  struct Slice {
    std::vector<StowedLinear> linears;
    std::optional<KvFeatures> kv;
    Transfers transfers;  // Where it streams.
    size_t bytes = 0;     // Bytes that it takes in a slot.
    bool streamed = false;
    uint32_t slot = kNoSlot;
  };
  // kKv: of what is ordered, what makes k and v has been loaded.
  enum class SlotState : uint32_t { kEmpty, kOrdered, kKv, kLoaded, kPlaced, kFailed };
  // The thread writes the slot.
  static bool Comes(SlotState state) {
    return state == SlotState::kOrdered || state == SlotState::kKv;
  }
  struct Slot {
    kernels::Buffer buffer;
    std::byte* data = nullptr;  // In it, at the beginning of a line.
    uint32_t slice = UINT32_MAX;
    uint32_t holders = 0;
    absl::Status error;  // Written before kFailed, read behind it.
    std::atomic<SlotState> state{SlotState::kEmpty};
  };

  // As Load(), but for what it leaves behind after an error.
  absl::Status LoadAll(const SliceProgram& program, const model::WeightSource& source,
                       absl::Span<const model::OpId> ops, const ModelWeights::Progress& progress);
  // Marks the slices that are to stream, by what their weights will take.
  absl::Status Choose(const SliceProgram& program, const model::WeightSource& source,
                      absl::Span<const model::OpId> ops);
  // Takes note of a matrix that has been loaded; stows it, if its slice streams.
  absl::Status Add(Slice& slice, kernels::PackedLinear& linear);
  // Into the store, and out of memory.
  absl::Status Stow(StowedLinear& stowed);
  // Has more slices stream where some turned out to be larger than they were expected to be.
  absl::Status StowMore();
  uint32_t SlotCount() const { return (options_.lanes == 1 ? 1u : 2u) + options_.ahead; }
  absl::Status MakeSlots();
  // How many slices that stream come before this one, from the earliest on and around.
  uint32_t StepsAhead(uint32_t slice) const;
  bool IsWanted(uint32_t slice) const { return StepsAhead(slice) < slots_.size(); }
  // A slot that nobody holds, and whose slice is not wanted; kNoSlot: there is none.
  uint32_t FreeSlot() const;
  // Has the slice brought, unless no slot is free.
  bool Order(uint32_t slice);
  void OrderWanted();
  void Clear(Slot& slot);
  void Place(const StowedLinear& linear, std::byte* begin);
  void Place(const Slice& slice, std::byte* begin);
  void Run();
  absl::Status Bring(Slot& slot);
  absl::Status Bring(const StowedPiece& part, std::byte* to);

  kernels::ComputeDevice& device_;
  const StreamedWeightsOptions options_;
  const std::unique_ptr<TransferOrder> transfer_order_;
  WeightForms forms_;
  ModelWeights weights_;
  std::unique_ptr<WeightStore> store_;
  std::vector<Slice> slices_;  // [slices of the program]
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::byte*> places_;  // Places of one linear's pieces.
  uint64_t movable_bytes_ = 0;      // All slices that may stream have so many,
  uint64_t stowed_bytes_ = 0;       // and those that do have so many.
  std::vector<uint32_t> streamed_;  // The slices that stream, in their order.
  uint32_t earliest_ = 0;

  // Orders: a ring of slots, written by the data thread, read by the other one.
  std::vector<uint32_t> orders_;
  std::atomic<uint32_t> ordered_{0};  // So many in all.
  std::atomic<bool> end_{false};
  std::thread thread_;
};

}  // namespace lamina::compute_node
