// SPDX-License-Identifier: Apache-2.0
//
// ComputeDevice: where a compute node's activations and weights are, with what runs on them: dense
// layers, the attention of prompt chunks, and sampling.
//
// Two kinds of memory: the device's, which Dense and ChunkAttention work on, and the host's, which
// transports and the sampler see. On the processor these are one (`is_host()`), and nothing is
// copied. Elsewhere everything that is launched or copied runs in order, behind the caller's back;
// Synchronize() waits for it.
//
// Errors of calls that return nothing are noted; Synchronize() returns the first of them. So
// whatever leaves the node (q, k, v, contexts, logits) is fetched behind a Synchronize(), which a
// failed device does not pass.
//
// To add a device: implement this, and run tests/unit/kernels/compute_device_suite.cc on it.
//
// Threading:  made by any thread, then used by one at a time, which calls Begin() first.
// Allocation: Allocate(), AllocateHost(), all that is called Make...(), MeasureReads(), Capture()
// and Dense::Pack() take memory; they are for loading and for the beginning
//             of an epoch.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_arithmetic.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "common/sampling_params.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/dense.h"
#include "kernels/kv_device.h"
#include "kernels/matrix_view.h"
#include "kernels/sampling.h"
#include "kernels/window_channel.h"

namespace lamina::kernels {

// A piece of memory; it goes with its last owner, which must not outlive the device.
struct Buffer {
  std::byte* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<void> owner;

  absl::Span<std::byte> span() const { return {data, bytes}; }
};

// `rows` rows of `row_bytes` bytes; each begins a stride, in bytes, behind the one before.
struct RowsCopy {
  void* to = nullptr;
  size_t to_stride = 0;
  const void* from = nullptr;
  size_t from_stride = 0;
  size_t row_bytes = 0;
  size_t rows = 1;
};

// Consecutive tokens of a prompt, the rows from `first_row` on of a batch.
struct ChunkItem {
  Extent sequence;  // The slots of all tokens up to the last of these.
  uint32_t first_position = 0;
  uint32_t tokens = 0;
  uint32_t first_row = 0;
  // Outputs are read of `read` of these tokens, from `read_from` on, or of as many as there are.
  // Requires: read_from <= tokens.
  uint32_t read_from = 0;
  uint32_t read = UINT32_MAX;

  uint32_t tokens_read() const { return std::min(read, tokens - read_from); }
};

struct ChunkAttentionOptions {
  std::vector<AttentionDescriptor> layers;
  AttentionArithmetic arithmetic = AttentionArithmetic::kCanonical;
  uint32_t slots = 0;
  uint32_t context_tokens_max = 0;  // The most tokens of one prompt.
  uint32_t query_tokens_max = 0;    // The most over all items of one Attend().
  // Rows attend to INT8 as docs/adr/0171-int8-behind-the-open-block.md says: slots have both forms.
  bool int8 = false;
  friend bool operator==(const ChunkAttentionOptions&, const ChunkAttentionOptions&) = default;
};

// Attention of prompt chunks over K and V of these prompts, in slots of its own: the scratch KV.
class ChunkAttention {
 public:
  virtual ~ChunkAttention() = default;

  virtual uint64_t bytes() const = 0;  // Memory of K and V.

  // Stores k and v of the items' rows in their slots, then attends over them those rows whose
  // outputs are read. Does not wait for the device. The bits are those of kernels/attention.h in
  // canonical arithmetic; in any, chunks do not change a row's.
  // Shapes: qkv  [rows, q | k | v] of the layer, out  [rows, query heads * head_dim], both in the
  //         device's memory; other rows are left alone. Items' rows ascend without gaps.
  // Errors: kInternal  the device failed; says how.
  virtual absl::Status Attend(uint32_t layer, absl::Span<const ChunkItem> items,
                              const MatrixView<BFloat16>& qkv, const MatrixView<BFloat16>& out) = 0;
};

struct RowSamplerOptions {
  uint32_t vocabulary = 0;
  uint32_t rows_max = 0;             // The most rows of one call.
  uint32_t sequence_tokens_max = 0;  // The most tokens of one row, prompt and output.
};

// Samples rows of logits where they are, so that only tokens leave the device.
class RowSampler {
 public:
  virtual ~RowSampler() = default;

  // Whether it samples this way. Other rows are sampled on the host, from logits brought there.
  virtual bool Takes(const SamplingParams& params) const = 0;

  // Samples row i as rows[i] says; rows with null `params` are left out. Does not wait.
  // Shapes: logits  [rows, vocabulary] f32, in the device's memory.
  // Errors: kInternal  the device failed; says how. Requires: Takes() all of them.
  virtual absl::Status Sample(const MatrixView<const float>& logits,
                              absl::Span<const SampleRequest> rows) = 0;

  // What the last call sampled, by row; there after Synchronize().
  virtual absl::Span<const TokenId> tokens() const = 0;
};

// Calls of a device's Dense and copies that one call does again, with the pointers and sizes of
// then and what memory holds now. Must have run to its end when it is destroyed.
class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;

  // Does all of it, in order behind what was called before. Does not wait; a failure is noted.
  virtual void Replay() = 0;
};

class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  virtual const std::string& name() const = 0;  // "cpu", "cuda:0 NVIDIA H200".
  virtual bool is_host() const = 0;
  virtual Dense& dense() = 0;

  // By the thread that will use it, each time that another one does. Forgets noted errors.
  // Errors: kInternal  the device has failed for good; the process must be started again.
  virtual absl::Status Begin() = 0;

  // Memory of the device, and of the host for copies to and from it, as zeros. Where the device is
  // the host it begins with a cache line.
  // Errors: kResourceExhausted  says how much was asked for.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes) = 0;
  virtual absl::StatusOr<Buffer> AllocateHost(size_t bytes) = 0;

  // Copies between any two places that do not overlap, in the order of calls. The host's end must
  // stay as it is until Synchronize(). Empty: no rows, or rows of no bytes, are nothing.
  // Requires: strides of at least row_bytes, if there are several rows.
  virtual void CopyRows(const RowsCopy& copy) = 0;
  void Copy(void* to, const void* from, size_t bytes) {
    CopyRows(
        {.to = to, .to_stride = bytes, .from = from, .from_stride = bytes, .row_bytes = bytes});
  }

  // Waits for everything. Errors: kInternal  the first thing since Begin() that failed; says how.
  virtual absl::Status Synchronize() = 0;

  // Errors: kInvalidArgument    layers, an arithmetic, or INT8 that its kernels do not compute.
  //         kResourceExhausted  says how much was asked for.
  virtual absl::StatusOr<std::unique_ptr<ChunkAttention>> MakeChunkAttention(
      const ChunkAttentionOptions& options) = 0;

  // K and V of token slots in the device's memory, for rows of one query token or many. Its calls
  // take rows from the device's memory and leave outputs there, in the order of this device's
  // calls, and wait for nothing: outputs are there for whatever is called next. No partials.
  // Errors: kInvalidArgument    layers, an arithmetic, or other options that it does not serve.
  //         kResourceExhausted  says how much was asked for.
  virtual absl::StatusOr<std::unique_ptr<KvDevice>> MakeKvDevice(
      const KvDeviceOptions& options) = 0;

  // Bytes/s that attention over such K and V may read. Measures: some 0.1 s on the processor.
  virtual absl::StatusOr<double> MeasureReads() = 0;

  // Seconds by the device's own clock from the first to the last of what `work` calls. Waits.
  // Errors: those of `work`; kInternal  the device failed; says how.
  virtual absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> work) = 0;

  // Null: the host samples all rows. Errors: kResourceExhausted  says how much was asked for.
  virtual absl::StatusOr<std::unique_ptr<RowSampler>> MakeSampler(
      const RowSamplerOptions& options) = 0;

  // A channel whose lanes are all in the order of this device's calls. It is gone before this is.
  // Null: the host carries rows, and waits. Errors: the device's, with its name for it.
  virtual absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(
      const ChannelOptions& options) = 0;

  // Takes down what `work` asks of dense() and CopyRows(); nothing of it runs. It must have run
  // once before, so that nothing is loaded or chosen meanwhile, and may neither take memory nor
  // wait. Waits for what was called before. Null: one call would save nothing here, and `work` was
  // not called.
  // Errors: the device's, with its name for it; nothing is noted. Then call the work each time.
  virtual absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(
      absl::FunctionRef<void()> work) = 0;
};

// Moves `values` into the device's memory; on the processor no byte is copied. Waits.
template <typename T>
absl::StatusOr<Buffer> MoveToDevice(std::vector<T> values, ComputeDevice& device) {
  const size_t bytes = values.size() * sizeof(T);
  if (device.is_host()) {
    auto owner = std::make_shared<std::vector<T>>(std::move(values));
    return Buffer{
        .data = reinterpret_cast<std::byte*>(owner->data()), .bytes = bytes, .owner = owner};
  }
  LAMINA_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(bytes));
  device.Copy(buffer.data, values.data(), bytes);
  LAMINA_RETURN_IF_ERROR(device.Synchronize());
  return buffer;
}

// The processor. `attention` and `pool` outlive it.
std::unique_ptr<ComputeDevice> MakeCpuComputeDevice(std::unique_ptr<Dense> dense,
                                                    const AttentionKernel& attention,
                                                    ThreadPool& pool);

}  // namespace lamina::kernels
