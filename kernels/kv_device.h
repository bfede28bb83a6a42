// SPDX-License-Identifier: Apache-2.0
//
// KvDevice: K and V of token slots in all layers, and attention over them, on one device: what a
// memory node drives, or under policy local a compute node.
//
// Its rows live in the caller's host memory (windows); how they come to the device and back is the
// device's own business. Two more ways are interfaces of their own, which a device may have: rows
// in its own memory, read and written where they are (device_rows()), and whole steps of such rows,
// which are enqueued ahead of them (step_attention()) and come and go by a channel of the device's
// own (MakeChannel()). The bits are those of kernels/attention.h on every device, unless another
// arithmetic is asked for.
//
//   Store(layer, rows)   k and v into their slots
//   Attend(layer, items) outputs are in host memory when it returns
//
// To add a device: implement this, and add it to the suite in tests/unit/kernels/kv_device_suite.h.
//
// Threading:  made by any thread, then used by one, which calls Begin() first.
// Allocation: memory is reserved and touched when it is made, none on the device afterwards but by
//             MakeStepLanes().

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_arithmetic.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "common/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/kv_step_attention.h"
#include "kernels/window_channel.h"

namespace lamina::kernels {

struct KvDeviceOptions {
  std::vector<AttentionDescriptor> layers;
  AttentionArithmetic arithmetic = AttentionArithmetic::kCanonical;
  uint32_t slots = 0;
  uint32_t context_tokens_max = 0;  // The most tokens of one sequence.
  uint32_t items_max = 0;           // The most items of one Attend().
  uint32_t query_tokens_max = 1;    // The most of an item; the device may serve fewer.
  uint32_t store_tokens_max = 0;    // The most tokens of one Store().
  // Elements of a token's activation in every layer, which activations() keeps in slots of its own,
  // so many of them. A device without them is refused. Width 0: it keeps none.
  uint32_t activation_width = 0;
  uint32_t activation_slots = 0;
  // Slots of INT8, next to which `slots` are those of tails alone (int8()). A device without INT8
  // is refused. 0: it keeps none.
  uint32_t int8_slots = 0;
  // What the caller's numbers of slots mean. Nothing to the device: but one that was made for
  // another meaning holds nothing that the caller knows.
  uint64_t slot_layout = 0;
  friend bool operator==(const KvDeviceOptions&, const KvDeviceOptions&) = default;
};

// K and V of consecutive tokens, and their slots in order.
// Shapes: k, v  [tokens, heads, head_dim] bf16, `stride` elements between tokens; the heads that
//         the call names
struct KvRows {
  const BFloat16* k = nullptr;
  const BFloat16* v = nullptr;
  size_t stride = 0;
  absl::Span<const Extent> slots;
};

// Rows in the device's memory, of which the processor neither touches nor copies any.
class KvDeviceRows {
 public:
  virtual ~KvDeviceRows() = default;

  // Memory of the device that calls may name from now on, instead of all that was said before: of
  // one call all sources (k and v; q) lie in it or none, and so do all outputs that are no
  // partials. K and V there may be overwritten, and outputs are there, once a later Attend() or
  // Settle() has returned.
  virtual absl::Status UseMemory(absl::Span<const absl::Span<const std::byte>> ranges) = 0;

  // Orders a copy of `bytes` of that memory to the host, at most kPeekBytesMax: they are at
  // peeked() once a later Attend() of some items, or Settle(), has returned.
  // Errors: as KvDevice::Store().
  static constexpr size_t kPeekBytesMax = 64;
  virtual absl::Status Peek(const std::byte* from, size_t bytes) = 0;
  virtual const std::byte* peeked() const = 0;

  // Waits for all that has been ordered. Errors: as KvDevice::Store().
  // Cost: a trip to the device; none if an Attend() of some items was the last call.
  virtual absl::Status Settle() = 0;
};

// K and V out of a device's arena, for those who attend elsewhere.
class KvReads {
 public:
  virtual ~KvReads() = default;

  // Copies bf16 K and V of tokens [first, first + tokens) of one KV head to slots of these numbers
  // of the planes `k` and `v`, after all that was stored before; `extents` name the arena's slots
  // of the sequence's tokens. As kernels::LoadKv(). Errors: as KvDevice::Store().
  virtual absl::Status Load(uint32_t layer, uint32_t head, absl::Span<const Extent> extents,
                            uint32_t first, uint32_t tokens, BFloat16* k, BFloat16* v) = 0;

  // Where K and V of a KV head lie in the host's memory: what Load() copies, slot by slot, so that
  // whole tiles of K need no copy. They are as they were stored until somebody stores to their
  // slots again. Nothing: they do not lie in the host's memory.
  virtual std::optional<KvView> View(uint32_t /*layer*/, uint32_t /*head*/) { return std::nullopt; }
  // The memory that has all these views. Constant. Empty: there are none.
  virtual absl::Span<const std::byte> memory() { return {}; }

  // Load() of INT8 of closed blocks, or of scales of K alone, like kernels::LoadInt8().
  // Requires: KvDevice::int8().
  virtual absl::Status LoadClosed(uint32_t layer, uint32_t head, absl::Span<const Extent> extents,
                                  uint32_t first, uint32_t tokens, const Int8View& to) = 0;
};

// K and V back into a device's arena, as KvReads has brought them out of it. A device that has it
// takes its calls and those of KvReads from any thread, of slots that nobody else reads or writes
// meanwhile, next to its own thread's calls.
class KvWrites {
 public:
  virtual ~KvWrites() = default;

  // The reverse of KvReads::Load(), as kernels::UnloadKv(). Errors: as KvDevice::Store().
  virtual absl::Status Unload(uint32_t layer, uint32_t head, const BFloat16* k, const BFloat16* v,
                              absl::Span<const Extent> extents, uint32_t first,
                              uint32_t tokens) = 0;

  // The reverse of KvReads::LoadClosed(), like kernels::UnloadInt8().
  // Requires: KvDevice::int8().
  virtual absl::Status UnloadClosed(uint32_t layer, uint32_t head, const Int8View& from,
                                    absl::Span<const Extent> extents, uint32_t first,
                                    uint32_t tokens) = 0;
};

// Activations of consecutive tokens, and their slots in order.
// Shapes: activation  [tokens, activation_width] bf16, `stride` elements between tokens
struct ActivationRows {
  const BFloat16* activation = nullptr;
  size_t stride = 0;
  absl::Span<const Extent> slots;
};

// Activations that k and v of tokens were made from, for those who make them again. Their slots are
// not those of K and V: the caller says which tokens have which.
class KvActivations {
 public:
  virtual ~KvActivations() = default;

  // Copies all rows into their slots. They may be overwritten when it returns.
  // Errors: as KvDevice::Store().
  virtual absl::Status Store(uint32_t layer, absl::Span<const ActivationRows> rows) = 0;

  // Copies those of tokens [first, first + tokens) of a sequence to `to`, one behind the other,
  // after all that was stored before. `extents` name the slots of its tokens 0, 1, 2, ...
  // Errors: as KvDevice::Store().   Requires: they name first + tokens of them.
  virtual absl::Status Load(uint32_t layer, absl::Span<const Extent> extents, uint32_t first,
                            uint32_t tokens, BFloat16* to) = 0;
};

// A block of a sequence whose tokens are all stored, in slots of bf16 from `tail_slot` on, and the
// INT8 slots that it is to have: of tokens [first, first + kInt8BlockTokens) that `slots` name.
struct Int8Block {
  uint32_t tail_slot = 0;
  absl::Span<const Extent> slots;
  uint32_t first = 0;
};

// K and V as INT8 (docs/adr/0171-int8-behind-the-open-block.md). Items attend the first
// `int8_tokens` in these slots, and the others in those of bf16, from `tail_slot` on.
class KvInt8 {
 public:
  virtual ~KvInt8() = default;

  // Quantises the blocks' K and V of these heads, after all that was stored before.
  // Errors: as KvDevice::Store().   Cost: some 2 ns an element.
  virtual absl::Status Close(uint32_t layer, HeadRange heads,
                             absl::Span<const Int8Block> blocks) = 0;
};

// K and V of one layer's slots, in memory of the device.
// Shapes: k, v  [kv_heads, slots, head_dim] bf16, `head_stride` elements between heads
struct KvPlanes {
  BFloat16* k = nullptr;
  BFloat16* v = nullptr;
  size_t head_stride = 0;
};

class KvDevice {
 public:
  virtual ~KvDevice() = default;

  // Names the kernels, and the device if it is not the processor: "highway/AVX2", "cuda:0 H200".
  virtual const std::string& name() const = 0;
  virtual uint32_t slots() const = 0;  // With INT8 those of it.
  virtual uint64_t bytes() const = 0;  // Memory of K and V.
  // The most query tokens of an item: as many as were asked for, or fewer.
  virtual uint32_t query_tokens_max() const = 0;

  // False once a call has failed: make another one. Any thread.
  virtual bool usable() const = 0;

  // By the thread that will use it.
  virtual absl::Status Begin() = 0;

  // Copies all rows of these KV heads into their slots. They may be overwritten when it returns.
  // Requires: no slot is there twice.
  // Errors: kInternal  the device failed and is not usable() any more; says how.
  virtual absl::Status Store(uint32_t layer, HeadRange heads, absl::Span<const KvRows> rows) = 0;

  // Where Store() puts the layer's rows, for kernels that run in the order of this device's calls
  // and store rows themselves (Dense::FinishQkv()). Nothing: Store() alone does.
  virtual std::optional<KvPlanes> Planes(uint32_t /*layer*/) { return std::nullopt; }

  // Attends all items, each of at most query_tokens_max() tokens, after all that was stored before.
  // Items are those of the attention over these KV heads alone (PartOf()); of it they have the
  // bits.
  // Errors: as Store; no output may be used then.
  // Cost:   as AttentionKernel::Attend, and for a device across a bus two copies of the rows.
  virtual absl::Status Attend(uint32_t layer, HeadRange heads,
                              absl::Span<const AttentionItem> items) = 0;

  // Seconds by the device's own clock from the first to the last of what `work` calls; where it has
  // none, by the host's. Waits. Errors: those of `work`; as Store().
  virtual absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> work);

  // Null: it takes rows from the host's memory only.
  virtual KvDeviceRows* device_rows() = 0;
  // As device_rows() does it. Errors: kUnimplemented  it has none, and there are ranges.
  absl::Status UseMemory(absl::Span<const absl::Span<const std::byte>> ranges) {
    if (device_rows() != nullptr) {
      return device_rows()->UseMemory(ranges);
    }
    return ranges.empty() ? absl::OkStatus()
                          : absl::UnimplementedError(name() + " takes rows from the host's memory");
  }

  // Null: K and V can be attended there and nowhere else.
  virtual KvReads* reads() { return nullptr; }
  // Null: what was brought out of it cannot be brought back.
  virtual KvWrites* writes() { return nullptr; }
  // Null: it keeps K and V alone, as it does without KvDeviceOptions::activation_width.
  virtual KvActivations* activations() { return nullptr; }
  // Null: it keeps bf16 alone, as it does without KvDeviceOptions::int8_slots.
  virtual KvInt8* int8() { return nullptr; }

  // Makes step_attention() for these lanes in place of the one of before, unless it is for the same
  // ones; for 0 lanes there is none from then on. K and V stay as they are. A device that attends
  // rows of one call at a time makes none, which is no error.
  // Requires: no channel on the lanes of before; for lanes, Begin() on this thread.
  // Errors:   kResourceExhausted  memory was refused. Others are the device's. There is no
  //                               step_attention() then, and all else goes on.
  virtual absl::Status MakeStepLanes(const StepLanes& /*lanes*/) { return absl::OkStatus(); }
  // Null: it attends rows of one call at a time, or no lanes were made.
  virtual KvStepAttention* step_attention() = 0;
  // A channel for the first `options.lanes` lanes of step_attention(), on their streams; it is gone
  // before this is. Null: there is no step_attention().
  // Errors: kInvalidArgument  more lanes than were made. Others are the device's, by name.
  virtual absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(
      const ChannelOptions& options) = 0;
};

// Makes devices of one kind, each with an arena of its own.
// Errors: kInvalidArgument    layers, an arithmetic, or items of more query tokens, that its
//                             kernels do not compute; activations or INT8 that it does not keep.
//         kResourceExhausted  memory was refused; says how much was asked for.
//         kUnavailable        the device is not there.
using KvDeviceMaker =
    std::function<absl::StatusOr<std::unique_ptr<KvDevice>>(const KvDeviceOptions&)>;

// On this processor. `kernel` and `pool` outlive the devices. Those with INT8 attend by
// CpuInt8Attention(), if the kernel is not the reference.
KvDeviceMaker CpuKvDevices(const AttentionKernel& kernel, ThreadPool& pool);

}  // namespace lamina::kernels
