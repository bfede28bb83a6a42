// SPDX-License-Identifier: Apache-2.0
//
// LinearEngine: one way to pack weights and multiply by them on this processor. CpuDense has
// some, oneDNN's and our own, and asks each weight which made it.
//
// Threading: one caller at a time; the pool is the only parallelism.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/thread_pool.h"
#include "kernels/block_type.h"
#include "kernels/dense.h"

namespace lamina::kernels::cpu {

struct WeightView {
  const void* data = nullptr;  // [out_features, in_features], row-major.
  DType dtype = DType::kBF16;
  size_t out_features = 0;
  size_t in_features = 0;
  absl::Span<const float> bias;  // [out_features] or empty.
};

// Weights in blocks of a GGUF file.
struct BlockView {
  absl::Span<const BlockRows> parts;  // Stacked: out_features rows in all.
  size_t out_features = 0;
  size_t in_features = 0;
  absl::Span<const float> bias;  // [out_features] or empty.
};

class LinearEngine;

// Weights that remember which engine packed them.
class EngineWeights : public PackedLinear {
 public:
  EngineWeights(LinearEngine& engine, size_t in_features, size_t out_features)
      : engine_(engine), in_(in_features), out_(out_features) {}
  size_t in_features() const override { return in_; }
  size_t out_features() const override { return out_; }
  LinearEngine& engine() const { return engine_; }

 private:
  LinearEngine& engine_;
  size_t in_;
  size_t out_;
};

// One product: columns [first_out, first_out + out.cols) of `in` times the weights.
struct EngineProduct {
  const EngineWeights* weights = nullptr;
  ActivationView in;
  size_t first_out = 0;
  MatrixView<float> out;
};

// Dense::LinearGated() without a place for the products.
struct GatedProduct {
  const EngineWeights* weights = nullptr;  // [gates, then as many ups]
  ActivationView in;
  Activation activation = Activation::kSilu;
  ActivationView out;
};

class LinearEngine {
 public:
  virtual ~LinearEngine() = default;
  virtual std::string description() const = 0;

  // Errors: kResourceExhausted  no memory.
  //         kUnimplemented      this engine has no row-invariant loop for the shape.
  virtual absl::StatusOr<std::unique_ptr<EngineWeights>> Pack(const WeightView& weights) = 0;
  // Keeps them in their blocks. The default refuses.
  // Errors: kResourceExhausted  no memory.
  //         kUnimplemented      this engine, or this layer, has to be widened.
  virtual absl::StatusOr<std::unique_ptr<EngineWeights>> PackBlocks(const BlockView& /*weights*/) {
    return absl::UnimplementedError(absl::StrCat(description(), " multiplies no blocks"));
  }
  virtual absl::Status Prepare(const EngineWeights& weights, size_t rows_max) = 0;
  // What this engine has of Dense::scratch_bytes().
  virtual uint64_t scratch_bytes() const = 0;
  // Dense::LooksUp() and LookUp(). The default does not.
  virtual bool LooksUp(const EngineWeights& /*weights*/) const { return false; }
  virtual void LookUp(const EngineWeights& /*weights*/, absl::Span<const uint32_t> /*ids*/,
                      MatrixView<float> /*out*/) {}
  // All of them in one run of the pool. Each is of weights that this engine packed, has rows and
  // columns, and writes what no other reads or writes.
  virtual void Multiply(absl::Span<const EngineProduct> products) = 0;
  // Makes `out`, with the bits of Multiply() and of the activation of what that makes, in one run
  // of the pool; or does nothing and returns false, where this does not pay. The default does so.
  virtual bool MultiplyGated(const GatedProduct& /*product*/) { return false; }
};

// Multiplies panels of 64 features by f32 fused multiply-adds in the order of the input features;
// for bf16 too.
std::unique_ptr<LinearEngine> MakeOwnLinearEngine(DType compute_type, ThreadPool& pool);

// Multiplies these panels in pairs of bf16 (pair_tiles.h). Null: this processor has no AVX-512
// BF16, or oneDNN is told to leave it alone (DNNL_MAX_CPU_ISA).
std::unique_ptr<LinearEngine> MakePairLinearEngine(ThreadPool& pool);

// Multiplies these panels in tiles of AMX (tile_products.h). Errors: as CheckTiles()
// (tile_choice.h).
absl::StatusOr<std::unique_ptr<LinearEngine>> MakeTileLinearEngine(ThreadPool& pool);

// Emulates these tiles, with their bits, on any processor. For tests.
std::unique_ptr<LinearEngine> MakeEmulatedTileLinearEngine(ThreadPool& pool);

// oneDNN's matmul.
// Errors: kUnimplemented       oneDNN has no fast loop for this type on this processor.
//         kFailedPrecondition  it has one, which is not row-invariant: speed is lost.
absl::StatusOr<std::unique_ptr<LinearEngine>> MakeOnednnLinearEngine(DType compute_type,
                                                                     ThreadPool& pool);

// MakeCpuDense() with oneDNN wherever it is row-invariant, also where the fallback GEMM is faster.
// Tests of its loops use it.
std::unique_ptr<Dense> MakeCpuDenseOfOnednn(const DenseOptions& options);

}  // namespace lamina::kernels::cpu
