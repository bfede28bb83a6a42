// SPDX-License-Identifier: Apache-2.0
//
// The linear layer through oneDNN: weights cut into blocks of features, each packed once in the
// layout that oneDNN's matmul asks for, which is the same for every row count.
//
// Rows are taken in calls of 1 to 64, or 128, rows, as far as a probe of the shape shows that their
// bits agree (row_pieces.h), with a primitive for each. Work goes to the pool as (rows, block)
// pairs; what a primitive computes depends on neither the threads nor the range of columns asked
// for. oneDNN's row-invariant loop writes rows without gaps, so a block of several rows is computed
// into a buffer in the second cache and copied to its columns; that costs 2 to 4 per cent.

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/linear_engine.h"
#include "kernels/cpu/onednn_matmul_internal.h"
#include "kernels/cpu/onednn_probe_internal.h"
#include "kernels/cpu/row_pieces.h"
#include "kernels/work_cuts.h"

namespace lamina::kernels::cpu {
namespace {

using dnnl::memory;

constexpr size_t kRowsExactMax = RowPieces::kExactMax;
constexpr size_t kRowsPiece = RowPieces::kLong;

// Features of a block. Small enough that up to eight threads share a layer of a small model, large
// enough that the 1 to 2 us which a primitive costs besides its work do not show.
constexpr size_t kBlockStep = 64;
constexpr size_t kBlockUsual = 512;
constexpr size_t kBlocksMax = 8;
constexpr size_t kBlockMax = 2048;

// A layer of at most so many features is one call where there is one thread: a second one shows.
constexpr size_t kBlockAlone = 768;

// An even number of even blocks: for two threads, and without a rest that costs a call of its own.
// More than eight threads get a block each, of f32: the loop for it has the same bits at every
// width (linear_test). For bf16 oneDNN chooses between loops by width, so that narrow blocks may
// lose AMX, or have other bits.
size_t BlockFeatures(size_t out_features, size_t threads, DType compute_type) {
  if (threads == 1 && out_features <= kBlockAlone) {
    return out_features;
  }
  const size_t pairs = (out_features + kBlockUsual) / (2 * kBlockUsual);
  size_t blocks = std::clamp<size_t>(2 * pairs, 1, kBlocksMax);
  if (compute_type == DType::kF32 && threads > kBlocksMax) {
    blocks = std::max(blocks, std::min(threads, out_features / kBlockStep));
  }
  const size_t even = (out_features + blocks - 1) / blocks;
  return std::min((even + kBlockStep - 1) / kBlockStep * kBlockStep, kBlockMax);
}

class OnednnWeights final : public EngineWeights {
 public:
  struct Block {
    size_t first = 0;
    size_t features = 0;
    memory weights;
    memory bias;                        // Empty without one.
    const RowPieces* pieces = nullptr;  // The engine's, for this shape.
    bool moved = false;                 // The weights lie in somebody else's memory.
    // For pieces of 1 to 64 rows and of 128, as far as they have been asked for: found without a
    // search, which costs as much as a row of a small layer.
    mutable std::array<const OnednnMatmul*, kRowsExactMax + 1> matmuls = {};
  };

  OnednnWeights(LinearEngine& engine, const WeightView& weights)
      : EngineWeights(engine, weights.in_features, weights.out_features),
        has_bias(!weights.bias.empty()) {}

  uint64_t bytes() const override {
    uint64_t sum = 0;
    for (const Block& block : blocks) {
      sum += block.weights.get_desc().get_size() + (has_bias ? block.features * sizeof(float) : 0);
    }
    return sum;
  }

  std::vector<absl::Span<std::byte>> Pieces() override {
    std::vector<absl::Span<std::byte>> pieces;
    for (const Block& block : blocks) {
      pieces.emplace_back(static_cast<std::byte*>(block.weights.get_data_handle()),
                          block.weights.get_desc().get_size());
    }
    return pieces;
  }
  // A block is multiplied as a whole, wherever in it the features begin.
  size_t FirstByte(size_t piece, size_t first_out) const override {
    const Block& block = blocks[piece];
    return block.first + block.features <= first_out ? block.weights.get_desc().get_size() : 0;
  }
  void Place(absl::Span<std::byte* const> at) override {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!blocks[i].moved) {  // oneDNN's own memory goes with the object that has it.
        blocks[i].weights =
            memory(blocks[i].weights.get_desc(), blocks[i].weights.get_engine(), DNNL_MEMORY_NONE);
        blocks[i].moved = true;
      }
      blocks[i].weights.set_data_handle(at[i]);
    }
  }

  const bool has_bias;
  std::vector<Block> blocks;
};

class OnednnLinearEngine final : public LinearEngine {
 public:
  OnednnLinearEngine(DType compute_type, ThreadPool& pool, std::string loop)
      : compute_type_(compute_type),
        pool_(pool),
        loop_(std::move(loop)),
        engine_(dnnl::engine::kind::cpu, 0) {
    for (size_t worker = 0; worker < pool.threads(); ++worker) {
      streams_.emplace_back(engine_);
      padded_in_.emplace_back();
      buffers_.push_back(hwy::AllocateAligned<float>(kRowsPiece * kBlockMax));
      LAMINA_CHECK(buffers_.back() != nullptr);
    }
  }

  std::string description() const override {
    const dnnl_version_t* version = dnnl_version();
    return absl::StrCat("onednn ", version->major, ".", version->minor, ".", version->patch, " ",
                        loop_);
  }

  absl::StatusOr<std::unique_ptr<EngineWeights>> Pack(const WeightView& weights) override {
    try {
      auto packed = std::make_unique<OnednnWeights>(*this, weights);
      const size_t step = BlockFeatures(weights.out_features, pool_.threads(), compute_type_);
      for (size_t first = 0; first < weights.out_features; first += step) {
        const size_t features = std::min(step, weights.out_features - first);
        packed->blocks.push_back(PackBlock(weights, first, features));
        LAMINA_ASSIGN_OR_RETURN(packed->blocks.back().pieces, PiecesOf(weights, features));
      }
      return packed;
    } catch (const dnnl::error& error) {
      return PackError(weights, error.what());
    } catch (const std::bad_alloc& error) {
      return PackError(weights, error.what());
    }
  }

  absl::Status Prepare(const EngineWeights& weights, size_t rows_max) override {
    const auto& packed = static_cast<const OnednnWeights&>(weights);
    try {
      for (const OnednnWeights::Block& block : packed.blocks) {
        for (size_t rows = 1; rows <= std::min(rows_max, kRowsExactMax); ++rows) {
          Matmul(packed, block, block.pieces->First(rows).call);
        }
        if (rows_max >= kRowsPiece && block.pieces->Uses(kRowsPiece)) {
          Matmul(packed, block, kRowsPiece);
        }
      }
    } catch (const dnnl::error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("oneDNN could not prepare a linear layer: ", error.what()));
    }
    return absl::OkStatus();
  }

  uint64_t scratch_bytes() const override {
    uint64_t bytes = dense_in_.size() + buffers_.size() * kRowsPiece * kBlockMax * sizeof(float);
    for (const std::vector<char>& rows : padded_in_) {
      bytes += rows.size();
    }
    for (const auto& [shape, matmul] : matmuls_) {
      bytes += matmul->scratch_bytes();
    }
    return bytes;
  }

  void Multiply(absl::Span<const EngineProduct> products) override {
    LAMINA_CHECK(MakeTasks(products));
    size_t work = 0;
    for (const EngineProduct& product : products) {
      work += WorkOf({product.in.rows, product.in.cols, product.out.cols});
    }
    const auto body = [&](size_t index, size_t worker) { RunTask(tasks_[index], worker); };
    pool_.Run(tasks_.size(), UsefulThreads(work, pool_.threads_in_use()), std::ref(body));
  }

 private:
  // One block of features for one piece of the rows.
  struct Task {
    const OnednnWeights::Block* block;
    const OnednnMatmul* matmul;
    const char* in;
    MatrixView<float> out;  // The piece's rows of the product's output, whose first column is
    size_t first_out;       // this feature.
    size_t call;  // Rows that the primitive computes; more than out.rows where the call is padded.
    bool direct;  // One row, all features of the block asked for: no need of a copy.
  };

  static absl::Status PackError(const WeightView& weights, const char* what) {
    return absl::ResourceExhaustedError(absl::StrCat("oneDNN could not pack a linear layer of ",
                                                     weights.out_features, " x ",
                                                     weights.in_features, ": ", what));
  }

  // The calls for blocks of this shape, probed once.
  absl::StatusOr<const RowPieces*> PiecesOf(const WeightView& weights, size_t features) {
    const MatmulShape shape = {
        .inputs = weights.in_features, .features = features, .bias = !weights.bias.empty()};
    const auto found = probed_.find(shape);
    if (found != probed_.end()) {
      return &found->second;
    }
    LAMINA_ASSIGN_OR_RETURN(const ProbedShape probed, ProbeShape(shape, compute_type_));
    const RowPieces& pieces = probed_.emplace(shape, probed.pieces).first->second;
    const size_t padded_bytes =
        pieces.padded_max() * weights.in_features * DTypeBytes(compute_type_);
    for (std::vector<char>& rows : padded_in_) {
      rows.resize(std::max(rows.size(), padded_bytes));
    }
    return &pieces;
  }

  OnednnWeights::Block PackBlock(const WeightView& weights, size_t first, size_t features) {
    OnednnWeights::Block block = {.first = first, .features = features};
    const MatmulShape shape = {.rows = 1,
                               .inputs = weights.in_features,
                               .features = features,
                               .bias = !weights.bias.empty()};
    const SingleThreadedOpenMp single;
    const auto inputs = static_cast<memory::dim>(weights.in_features);
    // Row-major [features, inputs] is oneDNN's [inputs, features] with the strides exchanged.
    const memory::desc plain_desc({inputs, static_cast<memory::dim>(features)},
                                  OnednnType(weights.dtype), {1, inputs});
    const size_t offset = first * weights.in_features * DTypeBytes(weights.dtype);
    memory plain(plain_desc, engine_,
                 const_cast<char*>(static_cast<const char*>(weights.data) + offset));
    block.weights = memory(WeightsLayout(shape, compute_type_, engine_), engine_);
    dnnl::reorder(plain, block.weights).execute(streams_[0], plain, block.weights);
    if (shape.bias) {
      block.bias = memory(
          {{1, static_cast<memory::dim>(features)}, memory::data_type::f32, memory::format_tag::ab},
          engine_);
      std::copy_n(weights.bias.data() + first, features,
                  static_cast<float*>(block.bias.get_data_handle()));
    }
    return block;
  }

  const OnednnMatmul* Matmul(const OnednnWeights& weights, const OnednnWeights::Block& block,
                             size_t rows) {
    const OnednnMatmul*& known = block.matmuls[std::min(rows, kRowsExactMax + 1) - 1];
    if (known == nullptr) {
      known = MakeMatmul(weights, block, rows);
    }
    return known;
  }

  // The one of all layers of this shape.
  const OnednnMatmul* MakeMatmul(const OnednnWeights& weights, const OnednnWeights::Block& block,
                                 size_t rows) {
    const MatmulShape shape = {.rows = rows,
                               .inputs = weights.in_features(),
                               .features = block.features,
                               .bias = weights.has_bias};
    const auto found = matmuls_.find(shape);
    if (found != matmuls_.end()) {
      return found->second.get();
    }
    auto made = std::make_unique<OnednnMatmul>(shape, compute_type_, block.weights.get_desc(),
                                               engine_, pool_.threads());
    return matmuls_.emplace(shape, std::move(made)).first->second.get();
  }

  // False: oneDNN refused a primitive that Prepare() was not asked for.
  bool MakeTasks(absl::Span<const EngineProduct> products) {
    try {
      tasks_.clear();
      ReserveDense(products);
      char* dense = dense_in_.data();
      for (const EngineProduct& product : products) {
        ListTasks(product, Dense(product.in, dense));
      }
      return true;
    } catch (const dnnl::error& error) {
      LogError("onednn made no primitive ", error.what());
      return false;
    }
  }

  // Adds to tasks_. Blocks outside, rows inside: neighbouring tasks share a block's weights.
  void ListTasks(const EngineProduct& product, const char* in) {
    const auto& weights = static_cast<const OnednnWeights&>(*product.weights);
    const MatrixView<float>& out = product.out;
    const size_t first_out = product.first_out;
    const size_t last_out = first_out + out.cols;
    for (const OnednnWeights::Block& block : weights.blocks) {
      const size_t block_end = block.first + block.features;
      if (block_end <= first_out || block.first >= last_out) {
        continue;
      }
      const bool whole = first_out <= block.first && block_end <= last_out;
      for (size_t row = 0; row < out.rows;) {
        const RowPieces::Piece piece = block.pieces->First(out.rows - row);
        tasks_.push_back({.block = &block,
                          .matmul = Matmul(weights, block, piece.call),
                          .in = in + row * RowBytes(product.in),
                          .out = out.Rows(row, piece.rows),
                          .first_out = first_out,
                          .call = piece.call,
                          .direct = whole && piece.call == 1});
        row += piece.rows;
      }
    }
  }

  static size_t RowBytes(const ActivationView& in) { return in.cols * DTypeBytes(in.dtype); }
  static bool HasGaps(const ActivationView& in) { return in.stride != in.cols && in.rows != 1; }

  void ReserveDense(absl::Span<const EngineProduct> products) {
    size_t bytes = 0;
    for (const EngineProduct& product : products) {
      bytes += HasGaps(product.in) ? product.in.rows * RowBytes(product.in) : 0;
    }
    dense_in_.resize(std::max(dense_in_.size(), bytes));
  }

  // The rows without gaps, at `dense`, which moves behind them, if they must be copied.
  static const char* Dense(const ActivationView& in, char*& dense) {
    const char* const data = static_cast<const char*>(in.data);
    if (!HasGaps(in)) {
      return data;
    }
    const char* const copy = dense;
    for (size_t i = 0; i < in.rows; ++i) {
      dense = std::copy_n(data + i * in.stride * DTypeBytes(in.dtype), RowBytes(in), dense);
    }
    return copy;
  }

  void RunTask(const Task& task, size_t worker) {
    const OnednnWeights::Block& block = *task.block;
    const char* in = task.in;
    if (task.call > task.out.rows) {  // What stands in the rows behind is never looked at.
      std::copy_n(in, task.out.rows * task.matmul->in_row_bytes(), padded_in_[worker].data());
      in = padded_in_[worker].data();
    }
    float* to =
        task.direct ? task.out.data + (block.first - task.first_out) : buffers_[worker].get();
    task.matmul->Run(worker, streams_[worker], block.weights, block.bias, in, to);
    if (task.direct) {
      return;
    }
    const size_t begin = std::max(block.first, task.first_out);
    const size_t end = std::min(block.first + block.features, task.first_out + task.out.cols);
    for (size_t i = 0; i < task.out.rows; ++i) {
      std::copy(to + i * block.features + (begin - block.first),
                to + i * block.features + (end - block.first),
                task.out.row(i) + (begin - task.first_out));
    }
  }

  DType compute_type_;
  ThreadPool& pool_;
  std::string loop_;
  dnnl::engine engine_;
  std::vector<dnnl::stream> streams_;  // [workers]
  std::map<MatmulShape, std::unique_ptr<OnednnMatmul>> matmuls_;
  std::vector<Task> tasks_;
  std::map<MatmulShape, RowPieces> probed_;  // By shape with rows 0.
  std::vector<char> dense_in_;
  std::vector<std::vector<char>> padded_in_;  // [workers], rows of calls that are padded.
  std::vector<hwy::AlignedFreeUniquePtr<float[]>> buffers_;  // [workers][128 x 2048]
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearEngine>> MakeOnednnLinearEngine(DType compute_type,
                                                                     ThreadPool& pool) {
  // A block as small models have it tells whether there is a loop at all, and its name.
  absl::StatusOr<ProbedShape> probed =
      ProbeShape({.inputs = 576, .features = kBlockUsual}, compute_type);
  if (!probed.ok()) {
    return HasFastLoop(compute_type) ? absl::FailedPreconditionError(probed.status().message())
                                     : probed.status();
  }
  try {
    return std::make_unique<OnednnLinearEngine>(compute_type, pool, std::move(probed->loop));
  } catch (const dnnl::error& error) {
    return absl::UnimplementedError(absl::StrCat("oneDNN has no engine here: ", error.what()));
  }
}

}  // namespace lamina::kernels::cpu
