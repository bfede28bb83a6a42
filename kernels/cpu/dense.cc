// SPDX-License-Identifier: Apache-2.0
//
// CpuDense: the dense layers on this processor. Products of f32 go to oneDNN where its loops are
// row-invariant. Those of bf16 are multiplied by loops of our own, in the tiles of AMX
// (tile_choice.h), or in pairs where these are fast (pair_products.h); oneDNN's tiles take them
// where ours cannot, and the fallback GEMM takes what is left. The rest is vector code over rows.

#include "kernels/dense.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/linear_engine.h"
#include "kernels/cpu/pair_products.h"
#include "kernels/cpu/rope_angles.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/scale_kernels.h"
#include "kernels/cpu/tile_products.h"

namespace lamina::kernels {
namespace cpu {
namespace {

// Elements below which a second thread costs more than it saves: a wake-up is some microseconds,
// a row kernel does an element in about half a nanosecond.
constexpr size_t kElementsPerTask = 16384;

// Says whose products of bf16 pairs are taken where there are several.
enum class Pairs : uint8_t {
  kOurs,
  kOnednns,
  kNobodys,  // They are slow here.
};

struct Engines {
  std::string description() const { return (onednn != nullptr ? onednn : own)->description(); }
  uint64_t scratch_bytes() const {
    return own->scratch_bytes() + (onednn != nullptr ? onednn->scratch_bytes() : 0);
  }

  std::unique_ptr<LinearEngine> own;
  std::unique_ptr<LinearEngine> onednn;  // Null: ours takes all.
};

// Not in the tiles of AMX, which are fast.
bool MultipliesPairs(absl::string_view loop) { return absl::EndsWith(loop, "avx512_core_bf16"); }

// Null where oneDNN is not row-invariant, or slower than ours.
std::unique_ptr<LinearEngine> MakeOnednn(DType compute_type, Pairs pairs, ThreadPool& pool) {
  absl::StatusOr<std::unique_ptr<LinearEngine>> onednn = MakeOnednnLinearEngine(compute_type, pool);
  if (onednn.ok() && pairs == Pairs::kNobodys && MultipliesPairs((*onednn)->description())) {
    LogInfo("dense layers take the fallback GEMM, which is faster here than ",
            (*onednn)->description());
    return nullptr;
  }
  if (onednn.ok()) {
    return *std::move(onednn);
  }
  if (absl::IsFailedPrecondition(onednn.status())) {
    LogWarning("dense layers are slow: this processor's fast loop is refused, ours is taken: ",
               onednn.status().message());
  } else {
    LogInfo("dense layers take the fallback GEMM: ", onednn.status().message());
  }
  return nullptr;
}

// Our own loop in tiles. Null: there are none, or `refused` says why they are not taken.
std::unique_ptr<LinearEngine> MakeTiles(ThreadPool& pool, absl::Status& refused) {
  absl::StatusOr<std::unique_ptr<LinearEngine>> tiles = MakeTileLinearEngine(pool);
  if (tiles.ok()) {
    return *std::move(tiles);
  }
  if (absl::IsFailedPrecondition(tiles.status())) {
    refused = tiles.status();
  }
  return nullptr;
}

Engines ChooseEngines(const DenseOptions& options, Pairs pairs, ThreadPool& pool) {
  const bool fastest = options.loop == DenseLoop::kFastest;
  const bool brain = options.compute_type == DType::kBF16;
  absl::Status refused;
  Engines engines;
  if (brain && options.loop == DenseLoop::kEmulatedTiles) {
    engines.own = MakeEmulatedTileLinearEngine(pool);
    return engines;
  }
  if (brain && fastest && pairs != Pairs::kOnednns) {
    engines.own = MakeTiles(pool, refused);
  }
  if (engines.own == nullptr && brain && fastest && pairs == Pairs::kOurs) {
    engines.own = MakePairLinearEngine(pool);
  }
  if (engines.own == nullptr) {
    engines.own = MakeOwnLinearEngine(options.compute_type, pool);
    engines.onednn = fastest ? MakeOnednn(options.compute_type, pairs, pool) : nullptr;
  }
  if (!refused.ok()) {
    LogWarning("dense layers are slow: AMX is there, but ", engines.description(),
               " is taken instead: ", refused.message());
  }
  return engines;
}

class CpuDense final : public Dense {
 public:
  CpuDense(const DenseOptions& options, Pairs pairs)
      : compute_type_(options.compute_type),
        own_pool_(options.pool != nullptr ? nullptr
                                          : std::make_unique<ThreadPool>(
                                                ThreadPoolOptions{.threads = options.threads,
                                                                  .cores = options.cores,
                                                                  .spin_us = options.spin_us})),
        pool_(options.pool != nullptr ? *options.pool : *own_pool_),
        engines_(ChooseEngines(options, pairs, pool_)) {}

  std::string description() const override { return engines_.description(); }
  DType compute_type() const override { return compute_type_; }

  absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const void* weights, DType dtype,
                                                     size_t out_features, size_t in_features,
                                                     absl::Span<const float> bias) override {
    LAMINA_CHECK(bias.empty() || bias.size() == out_features);
    LAMINA_CHECK(out_features > 0 && in_features > 0);
    const WeightView view = {weights, dtype, out_features, in_features, bias};
    if (engines_.onednn != nullptr) {
      absl::StatusOr<std::unique_ptr<EngineWeights>> packed = engines_.onednn->Pack(view);
      if (packed.status().code() != absl::StatusCode::kUnimplemented) {
        return packed;
      }
      LogWarning("a linear layer of ", out_features, " x ", in_features,
                 " takes the fallback GEMM, which is slower: ", packed.status().message());
    }
    return engines_.own->Pack(view);
  }

  absl::StatusOr<std::unique_ptr<PackedLinear>> PackBlocks(absl::Span<const BlockRows> parts,
                                                           size_t in_features,
                                                           absl::Span<const float> bias) override {
    size_t out_features = 0;
    for (const BlockRows& part : parts) {
      out_features += part.rows.size();
      LAMINA_CHECK(part.type == BlockType::kInt8 || in_features % InfoOf(part.type).elements == 0);
    }
    LAMINA_CHECK(bias.empty() || bias.size() == out_features);
    LAMINA_CHECK(out_features > 0 && in_features > 0);
    if (engines_.onednn != nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(engines_.onednn->description(), " multiplies no blocks"));
    }
    return engines_.own->PackBlocks({parts, out_features, in_features, bias});
  }

  absl::Status Prepare(const PackedLinear& weights, size_t rows_max) override {
    const auto& packed = static_cast<const EngineWeights&>(weights);
    return packed.engine().Prepare(packed, rows_max);
  }

  uint64_t scratch_bytes() const override { return engines_.scratch_bytes(); }

  void Linear(const PackedLinear& weights, const ActivationView& in, size_t first_out,
              MatrixView<float> out) override {
    const EngineProduct product = ProductOf(weights, in, first_out, out);
    if (in.rows != 0 && out.cols != 0) {
      product.weights->engine().Multiply({&product, 1});
    }
  }

  void LinearEach(absl::Span<const LinearPart> parts) override {
    for (LinearEngine* engine : {engines_.onednn.get(), engines_.own.get()}) {
      products_.clear();
      for (const LinearPart& part : parts) {
        const EngineProduct product = ProductOf(*part.weights, part.in, 0, part.out);
        LAMINA_CHECK(part.out.cols == product.weights->out_features());
        if (&product.weights->engine() == engine && part.in.rows != 0) {
          products_.push_back(product);
        }
      }
      if (!products_.empty()) {
        engine->Multiply(products_);
      }
    }
  }

  void RmsNorm(MatrixView<const float> x, absl::Span<const float> weight, float epsilon,
               const ActivationView& out) override {
    LAMINA_CHECK(weight.size() == x.cols && x.rows == out.rows && x.cols == out.cols);
    ForRows(x.rows, x.cols, [&](size_t first, size_t count) {
      RmsNormRows({x.Rows(first, count), weight.data(), nullptr, epsilon, out.Rows(first, count)});
    });
  }

  // Row by row, so that a sum is still in the first cache when its norm is taken.
  void AddRmsNorm(MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> sum,
                  absl::Span<const float> weight, float epsilon,
                  const ActivationView& out) override {
    LAMINA_CHECK(a.rows == b.rows && a.rows == sum.rows && a.rows == out.rows);
    LAMINA_CHECK(a.cols == b.cols && a.cols == sum.cols && a.cols == out.cols);
    LAMINA_CHECK(weight.size() == a.cols);
    ForRows(a.rows, a.cols, [&](size_t first, size_t count) {
      for (size_t row = first; row < first + count; ++row) {
        const MatrixView<float> added = sum.Rows(row, 1);
        AddRows(a.Rows(row, 1), b.Rows(row, 1), added);
        RmsNormRows({added, weight.data(), nullptr, epsilon, out.Rows(row, 1)});
      }
    });
  }

  void LayerNorm(MatrixView<const float> x, absl::Span<const float> weight,
                 absl::Span<const float> bias, float epsilon, const ActivationView& out) override {
    LAMINA_CHECK(weight.size() == x.cols && bias.size() == x.cols);
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    ForRows(x.rows, x.cols, [&](size_t first, size_t count) {
      LayerNormRows(
          {x.Rows(first, count), weight.data(), bias.data(), epsilon, out.Rows(first, count)});
    });
  }

  void RopeAndRound(MatrixView<const float> x, size_t heads, size_t head_dim,
                    const RopeTable& table, absl::Span<const uint32_t> positions,
                    MatrixView<BFloat16> out) override {
    LAMINA_CHECK(positions.size() == x.rows && out.rows == x.rows && out.cols == x.cols);
    LAMINA_CHECK(heads * head_dim <= x.cols && table.rotary_dim <= head_dim);
    LAMINA_CHECK(table.frequencies.size() * 2 == table.rotary_dim);
    RopeAngles& angles = AnglesOf(table);
    angles.Update(table, positions);
    const size_t half = table.rotary_dim / 2;
    ForRows(x.rows, x.cols, [&](size_t first, size_t count) {
      RopeRows({.x = x.Rows(first, count),
                .heads = heads,
                .head_dim = head_dim,
                .layout = table.layout,
                .rotary_dim = table.rotary_dim,
                .cosines = angles.cosines() + first * half,
                .sines = angles.sines() + first * half,
                .out = out.Rows(first, count)});
    });
  }

  void GatedActivation(Activation activation, MatrixView<const float> x,
                       const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == 2 * out.cols);
    ForRows(x.rows, x.cols, [&](size_t first, size_t count) {
      ActivateRows(
          {activation, x.Rows(first, count), x.row(first) + out.cols, out.Rows(first, count)});
    });
  }

  void LinearGated(const PackedLinear& weights, const ActivationView& in, Activation activation,
                   MatrixView<float> gate_up, const ActivationView& out) override {
    const EngineProduct product = ProductOf(weights, in, 0, gate_up);
    LAMINA_CHECK(gate_up.cols == weights.out_features() && gate_up.cols == 2 * out.cols);
    LAMINA_CHECK(in.rows == out.rows);
    if (!product.weights->engine().MultiplyGated({product.weights, in, activation, out})) {
      Dense::LinearGated(weights, in, activation, gate_up, out);
    }
  }

  void Activate(Activation activation, MatrixView<const float> x,
                const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    ForRows(x.rows, x.cols, [&](size_t first, size_t count) {
      ActivateRows({activation, x.Rows(first, count), nullptr, out.Rows(first, count)});
    });
  }

  void Add(MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> out) override {
    LAMINA_CHECK(a.rows == b.rows && a.rows == out.rows && a.cols == b.cols && a.cols == out.cols);
    ForRows(a.rows, a.cols, [&](size_t first, size_t count) {
      AddRows(a.Rows(first, count), b.Rows(first, count), out.Rows(first, count));
    });
  }

  void Convert(MatrixView<const BFloat16> x, const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    ForRows(x.rows, x.cols, [&](size_t first, size_t count) {
      ConvertRows(x.Rows(first, count), out.Rows(first, count));
    });
  }

  void Round(MatrixView<const float> x, const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    ForRows(x.rows, x.cols, [&](size_t first, size_t count) {
      RoundRows(x.Rows(first, count), out.Rows(first, count));
    });
  }

  void NormHeads(MatrixView<const float> x, const HeadNorms& norms,
                 MatrixView<float> out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    LAMINA_CHECK(x.cols == (norms.query_heads + 2 * norms.kv_heads) * norms.head_dim);
    ForRows(x.rows, x.cols, [&](size_t first, size_t count) {
      NormHeadsRows(x.Rows(first, count), norms, out.Rows(first, count));
    });
  }

  void Scale(MatrixView<const float> x, float factor, float soft_cap,
             MatrixView<float> out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    ForRows(x.rows, x.cols, [&](size_t first, size_t count) {
      ScaleRows(x.Rows(first, count), factor, soft_cap, out.Rows(first, count));
    });
  }

  void Embed(const void* table, DType dtype, size_t width, absl::Span<const uint32_t> ids,
             MatrixView<float> out) override {
    LAMINA_CHECK(out.rows == ids.size() && out.cols == width);
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t first = size_t{ids[i]} * width;
      if (dtype == DType::kF32) {
        std::copy_n(static_cast<const float*>(table) + first, width, out.row(i));
      } else {
        const auto* row = static_cast<const BFloat16*>(table) + first;
        ConvertRows(
            {row, 1, width, width},
            {.data = out.row(i), .rows = 1, .cols = width, .stride = width, .dtype = DType::kF32});
      }
    }
  }

  bool EmbedsBlocks(const BlockTable& table) const override {
    return compute_type_ == DType::kBF16 && HasFiniteScales(table);
  }

  void EmbedBlocks(const BlockTable& table, absl::Span<const uint32_t> ids,
                   MatrixView<float> out) override {
    LAMINA_CHECK(out.rows == ids.size() && out.cols == table.width);
    WidenRows(table, ids, out);
  }

  bool LooksUp(const PackedLinear& weights) const override {
    const auto& packed = static_cast<const EngineWeights&>(weights);
    return packed.engine().LooksUp(packed);
  }

  void LookUp(const PackedLinear& weights, absl::Span<const uint32_t> ids,
              MatrixView<float> out) override {
    LAMINA_CHECK(out.rows == ids.size() && out.cols == weights.in_features());
    const auto& packed = static_cast<const EngineWeights&>(weights);
    packed.engine().LookUp(packed, ids, out);
  }

 private:
  EngineProduct ProductOf(const PackedLinear& weights, const ActivationView& in, size_t first_out,
                          MatrixView<float> out) const {
    const auto& packed = static_cast<const EngineWeights&>(weights);
    LAMINA_CHECK(in.dtype == compute_type_ && in.cols == packed.in_features());
    LAMINA_CHECK(in.rows == out.rows && first_out + out.cols <= packed.out_features());
    LAMINA_CHECK(first_out % 64 == 0);
    return {.weights = &packed, .in = in, .first_out = first_out, .out = out};
  }

  // Calls body(first, count) over all rows, from several threads when there is enough to do.
  template <class Body>
  void ForRows(size_t rows, size_t cols, const Body& body) {
    const size_t per_task = std::max<size_t>(1, kElementsPerTask / std::max<size_t>(1, cols));
    const size_t tasks = (rows + per_task - 1) / per_task;
    if (tasks <= 1 || pool_.threads_in_use() == 1) {
      body(0, rows);
      return;
    }
    const auto task = [&](size_t index, size_t /*worker*/) {
      const size_t first = index * per_task;
      body(first, std::min(per_task, rows - first));
    };
    pool_.Run(tasks, std::ref(task));
  }

  // Layers of one kind follow layers of another: each kind keeps its angles of the rows at hand.
  RopeAngles& AnglesOf(const RopeTable& table) {
    for (RopeAngles& angles : angles_) {
      if (angles.Is(table)) {
        return angles;
      }
    }
    std::rotate(angles_.begin(), angles_.end() - 1, angles_.end());
    return angles_.front();
  }

  DType compute_type_;
  const std::unique_ptr<ThreadPool> own_pool_;  // Null: the caller's.
  ThreadPool& pool_;
  const Engines engines_;
  std::vector<EngineProduct> products_;  // Scratch of one LinearEach().
  std::array<RopeAngles, 3> angles_;
};

}  // namespace

std::unique_ptr<Dense> MakeCpuDenseOfOnednn(const DenseOptions& options) {
  return std::make_unique<CpuDense>(options, Pairs::kOnednns);
}

}  // namespace cpu

void AskForTiles() {
  if (cpu::HasTileInstructions()) {
    cpu::TilePermission().IgnoreError();  // MakeCpuDense() tells of it.
  }
}

absl::StatusOr<std::unique_ptr<Dense>> MakeCpuDense(const DenseOptions& options) {
  if (options.pool == nullptr && options.threads == 0) {
    return absl::InvalidArgumentError("threads is 0; it must be at least 1");
  }
  return std::make_unique<cpu::CpuDense>(
      options, cpu::PairProductsAreSlow() ? cpu::Pairs::kNobodys : cpu::Pairs::kOurs);
}

}  // namespace lamina::kernels
