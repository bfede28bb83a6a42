// SPDX-License-Identifier: Apache-2.0
//
// Dense layers on one device: linear with packed weights, norms, rope, activations, embedding.
//
// Every function is row-invariant: the bits of an output row depend on that input row and the
// weights alone, not on the other rows, their number, or the thread count.
//
// Activations enter Linear in the compute type (bf16 or f32) and leave in f32; the residual stream
// is f32; q, k, v and attention output are bf16 (one rounding at slice borders).
//
// Threading: one caller at a time per Dense object.
// Allocation: Linear makes what it needs when it first sees a row count for some shape of weights;
//             Prepare() does that beforehand. Pieces of at most 64 rows are made to measure, longer
//             inputs are cut into pieces of 128.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/thread_pool.h"
#include "kernels/block_type.h"
#include "kernels/matrix_view.h"

namespace lamina::kernels {

// A matrix of activations in the compute type.
struct ActivationView {
  void* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;  // Elements.
  DType dtype = DType::kBF16;

  ActivationView Rows(size_t first, size_t count) const {
    return {static_cast<std::byte*>(data) + first * stride * DTypeBytes(dtype), count, cols, stride,
            dtype};
  }
  ActivationView Cols(size_t first, size_t count) const {
    return {static_cast<std::byte*>(data) + first * DTypeBytes(dtype), rows, count, stride, dtype};
  }
};

// Weights in a layout of the backend's choosing; their values are immutable, shareable between
// threads.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual size_t in_features() const = 0;
  virtual size_t out_features() const = 0;
  // Bytes of all that was packed, wherever it lies.
  virtual uint64_t bytes() const = 0;

  // What products read, apart from biases, so that it can lie elsewhere between products. None: the
  // backend cannot move it.
  virtual std::vector<absl::Span<std::byte>> Pieces() { return {}; }
  // Products of features from `first_out` on read no byte of the piece before this one, which is
  // the piece's size where they read none of it. The default says that they may read all.
  // Requires: first_out a multiple of 64, below out_features().
  virtual size_t FirstByte(size_t /*piece*/, size_t /*first_out*/) const { return 0; }
  // From now on piece i is read at `at[i]`, which has its bytes and is aligned to a cache line; or
  // nowhere, where that is null: no product may run then. Memory of its own is given back.
  // Requires: as many as Pieces().
  virtual void Place(absl::Span<std::byte* const> /*at*/) {}
};

enum class RopeLayout : uint8_t {
  kHalves,       // Pairs (i, i + rotary_dim/2): Hugging Face.
  kInterleaved,  // Pairs (2i, 2i + 1): LLaMA in GGUF.
};

// Rotation angles by position, made once per model: frequencies after scaling (linear, llama3,
// yarn).
struct RopeTable {
  RopeLayout layout = RopeLayout::kHalves;
  uint32_t rotary_dim = 0;              // Even; <= head_dim. The rest of a head passes unchanged.
  float magnitude = 1.0f;               // Multiplies cos and sin (yarn's attention factor).
  absl::Span<const float> frequencies;  // [rotary_dim / 2], radians per position.
};

enum class Activation : uint8_t {
  kRelu,
  kSilu,
  kGeluErf,
  kGeluTanh,
  // Gated alone, gpt-oss': with gate at most 7 and up in [-7, 7],
  // gate / (1 + exp(-1.702 gate)) * (up + 1).
  kClampedSwiglu,
};

// RMS norms of the heads of a row [q | k | v] (kernels/dense.h: NormHeads).
// Shapes: q_weight, k_weight  [head_dim], shared by heads; with `whole` [heads * head_dim] each,
//         and one norm is over all query heads, one over all KV heads
struct HeadNorms {
  size_t query_heads = 0;
  size_t kv_heads = 0;
  size_t head_dim = 0;
  bool whole = false;
  float epsilon = 0;
  absl::Span<const float> q_weight;
  absl::Span<const float> k_weight;
};

// The slot of a row whose k and v are not stored.
inline constexpr uint32_t kNoSlot = 0xffffffffu;

// Slots that k and v of rows [q | k | v] go to: those of one layer, in memory that the layers reach
// as they reach their outputs.
// Shapes: k, v   [kv_heads, slots, head_dim] bf16, `head_stride` elements between heads
//         slots  [rows], numbers of slots, or kNoSlot
struct KvRowStore {
  size_t kv_heads = 0;
  BFloat16* k = nullptr;
  BFloat16* v = nullptr;
  size_t head_stride = 0;
  absl::Span<const uint32_t> slots;
};

// What FinishQkv() makes of rows of q, k and v.
struct QkvFinish {
  const HeadNorms* norms = nullptr;  // Null: heads have none.
  // The next four are what RopeAndRound() takes.
  size_t heads = 0;
  size_t head_dim = 0;
  RopeTable table;
  absl::Span<const uint32_t> positions;
  const KvRowStore* store = nullptr;  // Null: nothing is stored.
};

// One product of LinearEach(): all features of its weights.
struct LinearPart {
  const PackedLinear* weights = nullptr;
  ActivationView in;
  MatrixView<float> out;
};

class Dense {
 public:
  virtual ~Dense() = default;

  // Says which loops run: "tiles of bf16 AMX_BF16", "pairs of bf16 AVX512_BF16" or "highway rows",
  // for status and logs.
  virtual std::string description() const = 0;
  virtual DType compute_type() const = 0;

  // Packs weights [out_features, in_features], row-major f32 or bf16, and an optional f32 bias.
  // Errors: kResourceExhausted.
  virtual absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const void* weights, DType dtype,
                                                             size_t out_features,
                                                             size_t in_features,
                                                             absl::Span<const float> bias) = 0;

  // Packs rows in blocks of a GGUF file, stacked, which stay as they are: the weights are their f32
  // values, rounded to bf16, and products have the bits of Pack() with these. The default refuses.
  // Errors: kResourceExhausted.
  //         kUnimplemented  this device, or this layer, has to be widened; says why.
  virtual absl::StatusOr<std::unique_ptr<PackedLinear>> PackBlocks(
      absl::Span<const BlockRows> /*parts*/, size_t /*in_features*/,
      absl::Span<const float> /*bias*/) {
    return absl::UnimplementedError(description() + " multiplies no blocks");
  }

  // Makes whatever Linear() needs for up to `rows_max` rows.
  virtual absl::Status Prepare(const PackedLinear& weights, size_t rows_max) = 0;

  // Bytes of the host that products take besides weights and what callers give: copies of inputs,
  // and each thread's memory. Grows with Prepare(), and with rows or shapes that it was not called
  // for. The default takes none.
  virtual uint64_t scratch_bytes() const { return 0; }

  // out[i, :] = in[i, :] W^T + bias.  Shapes: in [rows, in_features] compute type, out [rows,
  // out_features] f32. Columns [first_out, first_out + out.cols) only, for the LM head in chunks:
  // first_out a multiple of 64.
  virtual void Linear(const PackedLinear& weights, const ActivationView& in, size_t first_out,
                      MatrixView<float> out) = 0;

  // Linear() of every part, with the same bits, in one run of the threads: small products do not
  // wait for each other. Requires: no part's output is another's input or output.
  virtual void LinearEach(absl::Span<const LinearPart> parts) = 0;

  // out = x / sqrt(mean(x^2) + epsilon) * weight, rounded to out.dtype.
  virtual void RmsNorm(MatrixView<const float> x, absl::Span<const float> weight, float epsilon,
                       const ActivationView& out) = 0;

  // sum = a + b, then RmsNorm() of the sum, with the bits of both calls. `sum` may be `a` or `b`,
  // as may `out` where its rows are as long as theirs: each row is read before it is written.
  virtual void AddRmsNorm(MatrixView<const float> a, MatrixView<const float> b,
                          MatrixView<float> sum, absl::Span<const float> weight, float epsilon,
                          const ActivationView& out) {
    Add(a, b, sum);
    RmsNorm(sum, weight, epsilon, out);
  }

  // out = (x - mean) / sqrt(variance + epsilon) * weight + bias.
  virtual void LayerNorm(MatrixView<const float> x, absl::Span<const float> weight,
                         absl::Span<const float> bias, float epsilon,
                         const ActivationView& out) = 0;

  // Rotates the first `heads` heads of each row of f32 `x`, rounds all `x.cols` columns to bf16
  // `out`. positions [rows].
  virtual void RopeAndRound(MatrixView<const float> x, size_t heads, size_t head_dim,
                            const RopeTable& table, absl::Span<const uint32_t> positions,
                            MatrixView<BFloat16> out) = 0;

  // NormHeads() where there are norms, RopeAndRound(), and k and v of each row into its slot: with
  // the bits of these calls one after the other. What `normed` holds afterwards is not said;
  // without norms it is not looked at.
  // Shapes: x, normed, out  [rows, q | k | v]
  // Requires: rows that are stored have different slots. The default is for memory that the
  // processor reaches.
  virtual void FinishQkv(MatrixView<const float> x, const QkvFinish& finish,
                         MatrixView<float> normed, MatrixView<BFloat16> out);

  // out = act(gate) * up, gate = x[:, 0:n], up = x[:, n:2n].
  virtual void GatedActivation(Activation activation, MatrixView<const float> x,
                               const ActivationView& out) = 0;

  // Linear() of all features into `gate_up`, then GatedActivation() of these: with the bits of both
  // calls. What `gate_up` holds afterwards is not said.
  // Requires: `out` shares no memory with `in` or `gate_up`.
  virtual void LinearGated(const PackedLinear& weights, const ActivationView& in,
                           Activation activation, MatrixView<float> gate_up,
                           const ActivationView& out) {
    Linear(weights, in, 0, gate_up);
    GatedActivation(activation, gate_up, out);
  }

  // out = act(x).
  virtual void Activate(Activation activation, MatrixView<const float> x,
                        const ActivationView& out) = 0;

  // out = a + b. `out` may be `a` or `b`.
  virtual void Add(MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> out) = 0;

  // Copies bf16 rows to the compute type (the attention output before its projection).
  virtual void Convert(MatrixView<const BFloat16> x, const ActivationView& out) = 0;

  // out = x in the type of `out`, rounded where that is bf16.
  virtual void Round(MatrixView<const float> x, const ActivationView& out) = 0;

  // q and k of rows [q | k | v] through RMS norms, v as it is. `out` may not be `x`.
  // Shapes: x, out  [rows, (query_heads + 2 kv_heads) * head_dim]
  virtual void NormHeads(MatrixView<const float> x, const HeadNorms& norms,
                         MatrixView<float> out) = 0;

  // out = factor * x, then, where soft_cap is not 0, out = soft_cap * tanh(out / soft_cap). `out`
  // may be `x`.
  virtual void Scale(MatrixView<const float> x, float factor, float soft_cap,
                     MatrixView<float> out) = 0;

  // out[i, :] = table[ids[i], :], from bf16 or f32 rows `width` wide, to f32.
  // Requires: every id is inside the table (the caller has checked).
  virtual void Embed(const void* table, DType dtype, size_t width, absl::Span<const uint32_t> ids,
                     MatrixView<float> out) = 0;

  // Whether EmbedBlocks() takes this table. The default does not.
  virtual bool EmbedsBlocks(const BlockTable& /*table*/) const { return false; }

  // out[i, :] = row ids[i] of a table in blocks, rounded to bf16, as f32: what Embed() makes of its
  // bf16 rows. Requires: EmbedsBlocks(table), and every id is inside the table.
  virtual void EmbedBlocks(const BlockTable& /*table*/, absl::Span<const uint32_t> /*ids*/,
                           MatrixView<float> /*out*/) {}

  // Whether LookUp() takes these weights. The default does not.
  virtual bool LooksUp(const PackedLinear& /*weights*/) const { return false; }

  // out[i, :] = the weights of feature ids[i]: what Embed() makes of the same rows, so that an LM
  // head that is tied to the embedding is its table too. Requires: LooksUp(weights), and every id
  // is below out_features.
  virtual void LookUp(const PackedLinear& /*weights*/, absl::Span<const uint32_t> /*ids*/,
                      MatrixView<float> /*out*/) {}
};

// Which loop multiplies. Tests and benchmarks choose others than the fastest.
enum class DenseLoop : uint8_t {
  kFastest,
  kFallbackGemm,   // Also where another loop is faster.
  kEmulatedTiles,  // Products of bf16 with the bits of AMX's tiles, many times slower.
};

struct DenseOptions {
  DType compute_type = DType::kBF16;
  // Runs on these threads, which outlive it; the next three are then not looked at. Null: its own.
  ThreadPool* pool = nullptr;
  size_t threads = 1;      // The caller's counted. Own threads: no OpenMP team is ever started.
  std::vector<int> cores;  // For the threads beyond the caller's; see ThreadPoolOptions.
  int spin_us = 50;        // How these threads wait; see ThreadPoolOptions.
  DenseLoop loop = DenseLoop::kFastest;
};

// Plain loops in f32, double inside reductions. One thread.
std::unique_ptr<Dense> MakeReferenceDense(DType compute_type);

// The fastest row-invariant loop of this processor: our own in tiles of AMX or in bf16 pairs,
// oneDNN's as far as a probe here finds it row-invariant, or the fallback GEMM. Where a faster one
// than it takes is there but cannot be had, a warning in the log says which, and why.
absl::StatusOr<std::unique_ptr<Dense>> MakeCpuDense(const DenseOptions& options);

// Asks the system for the tiles of AMX, where the processor has them; MakeCpuDense() does so too.
// To be called before threads start: the system refuses where one of them has a signal stack on
// which tiles have no room.
void AskForTiles();

}  // namespace lamina::kernels
