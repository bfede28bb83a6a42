// SPDX-License-Identifier: Apache-2.0
//
// The executor on the suite's device against the plain executor of graphs, which keeps every value
// by itself: a buffer that is given to a second value too early shows as a wrong logit. Before
// every slice all that no later slice may read is poisoned with NaN.

#include "compute_node/slice_executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <tuple>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "kernels/attention.h"
#include "kernels/dense.h"
#include "tests/support/reference_model.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

// Whole sequences, one row for each token, attended in place.
class WholeRun {
 public:
  WholeRun(Program& program, const std::vector<TokenId>& tokens)
      : program_(program),
        executor_(program.executor()),
        tokens_(tokens.begin(), tokens.end()),
        buffers_(*executor_.MakeBuffers(tokens.size())),
        tail_(*executor_.head().MakeBuffers()) {
    for (uint32_t i = 0; i < tokens.size(); ++i) {
      positions_.push_back(i);
    }
  }

  // Logits of every row.
  std::vector<std::vector<float>> Logits() {
    EXPECT_TRUE(executor_.Prepare(tokens_.size()).ok());
    EXPECT_TRUE(executor_.SetRows({tokens_, positions_}, buffers_).ok());
    PoisonAll(buffers_);
    MakeChunks();
    for (uint32_t slice = 0; slice + 1 < executor_.slice_count(); ++slice) {
      Poison(slice);
      executor_.RunBeforeSend(slice, buffers_);
      Attend(slice);  // Prompt chunks attend before what is left of the slice runs.
      executor_.RunAfterSend(slice, buffers_);
      ExpectQkvStays(slice);
    }
    return Tail();
  }

 private:
  // Everything but what the slice is given: the context of the attention before it and its output.
  void Poison(uint32_t slice) {
    if (slice == 0) {
      return;
    }
    const model::Graph& graph = program_.model().graph;
    const model::Slice& before = executor_.program().split().slices[slice - 1];
    std::vector<model::ValueId> given = before.context;
    given.push_back(graph.ops[before.attention].output);
    std::vector<std::vector<std::byte>> kept;
    for (const model::ValueId value : given) {
      kept.emplace_back(Bytes(value));
      device().Copy(kept.back().data(), buffers_.data(value), Bytes(value));
    }
    EXPECT_TRUE(device().Synchronize().ok());
    PoisonAll(buffers_);
    for (size_t i = 0; i < given.size(); ++i) {
      device().Copy(buffers_.data(given[i]), kept[i].data(), kept[i].size());
    }
    EXPECT_TRUE(device().Synchronize().ok());
  }

  // NaN in f32 and in bf16, on the device and on the host.
  void PoisonAll(const ValueBuffers& buffers) {
    for (const absl::Span<std::byte> bytes : buffers.Allocations()) {
      std::memset(bytes.data(), 0xff, bytes.size());
    }
    for (const absl::Span<std::byte> bytes : buffers.DeviceAllocations()) {
      const std::vector<std::byte> poison(bytes.size(), std::byte{0xff});
      device().Copy(bytes.data(), poison.data(), poison.size());
      EXPECT_TRUE(device().Synchronize().ok());
    }
  }

  // What carries a value over an attention is never of the compute type.
  size_t Bytes(model::ValueId id) const {
    const model::Value& value = program_.model().graph.values[id];
    EXPECT_NE(value.type, model::ValueType::kCompute) << value.name;
    return tokens_.size() * value.width * (value.type == model::ValueType::kF32 ? 4 : 2);
  }

  void MakeChunks() {
    const auto rows = static_cast<uint32_t>(tokens_.size());
    std::vector<AttentionDescriptor> layers;
    for (uint32_t slice = 0; slice + 1 < executor_.slice_count(); ++slice) {
      layers.push_back(executor_.attention(slice).descriptor);
    }
    auto chunks = device().MakeChunkAttention({.layers = std::move(layers),
                                               .slots = rows,
                                               .context_tokens_max = rows,
                                               .query_tokens_max = rows});
    ASSERT_TRUE(chunks.ok()) << chunks.status();
    chunks_ = *std::move(chunks);
  }

  void Attend(uint32_t slice) {
    const auto rows = static_cast<uint32_t>(tokens_.size());
    EXPECT_TRUE(executor_.QkvToHost(slice, rows, rows, buffers_).ok());
    const auto qkv = executor_.QkvRows(slice, rows, buffers_);
    qkv_.assign(qkv.row(0), qkv.row(0) + rows * qkv.cols);
    const kernels::ChunkItem item{.sequence = {.first_slot = 0, .tokens = rows}, .tokens = rows};
    const absl::Status attended =
        chunks_->Attend(slice, {&item, 1}, executor_.DeviceQkvRows(slice, rows, buffers_),
                        executor_.DeviceAttentionRows(slice, rows, buffers_));
    EXPECT_TRUE(attended.ok()) << attended;
    CarryOver(slice);
  }

  // What goes to another node comes back as it was.
  void CarryOver(uint32_t slice) {
    const size_t rows = tokens_.size();
    EXPECT_TRUE(executor_.ContextToHost(slice, rows, 0, buffers_).ok());
    const model::Slice& cut = executor_.program().split().slices[slice];
    std::vector<model::ValueId> carried = cut.context;
    carried.push_back(program_.model().graph.ops[cut.attention].output);
    for (const model::ValueId value : carried) {
      if (!device().is_host()) {
        const std::vector<std::byte> poison(Bytes(value), std::byte{0xff});
        device().Copy(buffers_.data(value), poison.data(), poison.size());
        EXPECT_TRUE(device().Synchronize().ok());
      }
    }
    executor_.ContextToDevice(slice, rows, rows, buffers_);
    executor_.AttentionToDevice(slice, 0, rows, buffers_);
  }

  // A transport may still be reading q, k, v while the rest of the slice runs.
  void ExpectQkvStays(uint32_t slice) {
    const auto qkv = executor_.QkvRows(slice, tokens_.size(), buffers_);
    EXPECT_EQ(std::memcmp(qkv_.data(), qkv.row(0), qkv_.size() * sizeof(BFloat16)), 0);
    EXPECT_TRUE(executor_.QkvToHost(slice, tokens_.size(), tokens_.size(), buffers_)
                    .ok());  // As the device has it.
    EXPECT_EQ(std::memcmp(qkv_.data(), qkv.row(0), qkv_.size() * sizeof(BFloat16)), 0);
  }

  std::vector<std::vector<float>> Tail() {
    std::vector<std::vector<float>> all;
    for (uint32_t first = 0; first < tokens_.size(); first += 3) {
      PoisonAll(tail_);
      std::vector<uint32_t> chosen;
      for (uint32_t i = first; i < std::min<size_t>(first + 3, tokens_.size()); ++i) {
        chosen.push_back(i);
      }
      executor_.head().Begin(buffers_, chosen, tail_);
      const auto logits = executor_.head().Logits(chosen.size(), tail_);
      int head_chunks = 0;
      for (size_t column = 0; column < logits.cols; ++head_chunks) {
        column = executor_.head().Run(chosen.size(), column, tail_);
      }
      EXPECT_GT(head_chunks, 1);
      std::vector<uint32_t> all_rows(chosen.size());
      std::iota(all_rows.begin(), all_rows.end(), 0);
      EXPECT_TRUE(executor_.head().LogitsToHost(all_rows, tail_).ok());
      for (size_t i = 0; i < chosen.size(); ++i) {
        all.emplace_back(logits.row(i), logits.row(i) + logits.cols);
      }
    }
    return all;
  }

  kernels::ComputeDevice& device() { return executor_.device(); }

  Program& program_;
  SliceExecutor& executor_;
  std::unique_ptr<kernels::ChunkAttention> chunks_;
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> positions_;
  ValueBuffers buffers_;
  ValueBuffers tail_;
  std::vector<BFloat16> qkv_;
};

class SliceExecutorTest : public ::testing::TestWithParam<std::tuple<const char*, DType>> {};

TEST_P(SliceExecutorTest, GivesTheLogitsOfThePlainExecutor) {
  const auto& [type, compute_type] = GetParam();
  Program program(Spec(type), compute_type);
  Prng random(1);
  std::vector<TokenId> tokens;
  for (int i = 0; i < 40; ++i) {
    tokens.push_back(static_cast<TokenId>(random.Below(96)));
  }
  const auto reference = test_support::ReferenceModel::Load(
      program.model(), {.round_bf16 = true, .round_compute = compute_type == DType::kBF16});
  ASSERT_TRUE(reference.ok()) << reference.status();

  const std::vector<std::vector<float>> found = WholeRun(program, tokens).Logits();

  const std::vector<std::vector<float>> expected = reference->Logits(tokens);
  ASSERT_EQ(found.size(), expected.size());
  // The roundings are the same, the order of sums is another: now and then a value falls to the
  // other side of a bf16 step, 2^-8 of itself. A wrong buffer is off by the logits' own size, or
  // NaN.
  for (size_t row = 0; row < found.size(); ++row) {
    float largest = 1.0f;
    for (const float logit : expected[row]) {
      largest = std::max(largest, std::abs(logit));
    }
    for (size_t i = 0; i < found[row].size(); ++i) {
      ASSERT_NEAR(found[row][i], expected[row][i], 0.02f * largest) << "row " << row;
    }
  }
}

// What is there for a tile alone is poisoned with all else before each slice, not before each tile.
TEST_P(SliceExecutorTest, TilesOfRowsHaveTheBitsOfAllRowsTogether) {
  const auto& [type, compute_type] = GetParam();
  std::vector<TokenId> tokens(41);
  std::iota(tokens.begin(), tokens.end(), TokenId{17});
  Program whole(Spec(type), compute_type);
  if (!whole.executor().device().is_host()) {
    GTEST_SKIP() << "ops see all rows here";
  }
  const std::vector<std::vector<float>> expected = WholeRun(whole, tokens).Logits();
  for (const size_t tile_rows : {1, 7, 17, 40}) {
    Program tiles(Spec(type), compute_type, UINT32_MAX, nullptr, tile_rows);
    const std::vector<std::vector<float>> found = WholeRun(tiles, tokens).Logits();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t row = 0; row < found.size(); ++row) {
      EXPECT_EQ(found[row], expected[row]) << "row " << row << ", tiles of " << tile_rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SliceExecutorTest,
                         ::testing::Combine(::testing::Values("llama", "qwen2", "opt",
                                                              "gpt_neox_parallel",
                                                              "gpt_neox_sequential"),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param), "_",
                                               DTypeName(std::get<1>(test.param)));
                         });

// Products of few rows are not activated where they are made, and have the same bits. Where an
// activation is as wide as what its gates are made from, it lies in the same place.
TEST(SliceExecutorTest, GatesAndTheirActivationInOneCallHaveTheBitsOfTwo) {
  for (const uint32_t ffn_width : {128u, 256u}) {
    test_support::RandomModelSpec spec = Spec("llama");
    spec.kv_heads = 4;  // Nothing else has rows as long.
    spec.width = 128;
    spec.ffn_width = ffn_width;
    Program program(spec, DType::kBF16, UINT32_MAX, [](ThreadPool& pool) {
      return kernels::MakeCpuComputeDevice(
          *kernels::MakeCpuDense({.compute_type = DType::kBF16,
                                  .pool = &pool,
                                  .loop = kernels::DenseLoop::kEmulatedTiles}),
          kernels::CpuAttention(), pool);
    });
    const model::Graph& graph = program.model().graph;
    ValueBuffers buffers = *program.executor().MakeBuffers(4);
    size_t gated = 0;
    for (const model::Op& op : graph.ops) {
      const auto* const activation = std::get_if<model::ActivationOp>(&op.body);
      if (activation != nullptr && activation->gated && buffers.data(op.output) != nullptr) {
        const model::Op& linear = graph.ops[graph.values[op.inputs[0]].producer];
        EXPECT_EQ(buffers.data(linear.inputs[0]) == buffers.data(op.output), ffn_width == 128);
        ++gated;
      }
    }
    EXPECT_EQ(gated, spec.layers - 1);  // The last layer's are in the tail.
    std::vector<TokenId> tokens(40);
    std::iota(tokens.begin(), tokens.end(), TokenId{17});
    const std::vector<std::vector<float>> all = WholeRun(program, tokens).Logits();
    tokens.resize(8);
    const std::vector<std::vector<float>> few = WholeRun(program, tokens).Logits();
    for (size_t row = 0; row < few.size(); ++row) {
      EXPECT_EQ(all[row], few[row]) << "row " << row << ", " << ffn_width << " gates";
    }
  }
}

// In tiles of as many rows as other models' an expert's weights would be read for a few rows each.
TEST(SliceExecutorTest, TilesAreLongerWhereExpertsSeeSomeOfTheirRows) {
  test_support::RandomModelSpec spec = Spec("llama");
  spec.model_type = "mixtral";
  spec.experts = 4;
  spec.experts_per_token = 2;
  const Program::DeviceMaker make_device = [](ThreadPool& pool) {
    return kernels::MakeCpuComputeDevice(
        *kernels::MakeCpuDense({.compute_type = DType::kBF16, .pool = &pool}),
        kernels::CpuAttention(), pool);
  };
  Program whole(spec, DType::kBF16, UINT32_MAX, make_device);
  Program tiles(spec, DType::kBF16, UINT32_MAX, make_device, /*tile_rows=*/8);
  std::vector<TokenId> tokens(41);
  std::iota(tokens.begin(), tokens.end(), TokenId{17});

  EXPECT_EQ(whole.executor().RowsAtOnce(tokens.size()), tokens.size());
  EXPECT_EQ(tiles.executor().RowsAtOnce(tokens.size()), 16u);

  EXPECT_EQ(WholeRun(tiles, tokens).Logits(), WholeRun(whole, tokens).Logits());
}

TEST(SliceExecutorTest, HasOneSliceMoreThanAttentions) {
  Program program(Spec("llama"), DType::kF32);

  EXPECT_EQ(program.executor().slice_count(), 4u);
  for (uint32_t slice = 0; slice < 3; ++slice) {
    EXPECT_EQ(program.executor().attention(slice).layer, slice);
  }
}

// While an attention is away its input may still be sent, and prompt chunks have put their output.
TEST(SliceExecutorTest, NothingThatOverlapsAnAttentionSharesItsBuffers) {
  Program program(Spec("gpt_neox_parallel"), DType::kBF16);
  SliceExecutor& executor = program.executor();
  const model::Graph& graph = program.model().graph;
  ValueBuffers buffers = *executor.MakeBuffers(4);
  size_t overlapped = 0;
  for (uint32_t s = 0; s + 1 < executor.slice_count(); ++s) {
    const model::Slice& slice = executor.program().split().slices[s];
    const model::Op& attention = graph.ops[slice.attention];
    for (size_t i = slice.ops_before_send; i < slice.ops.size(); ++i) {
      ++overlapped;
      const std::byte* made = buffers.data(graph.ops[slice.ops[i]].output);
      EXPECT_NE(made, buffers.data(attention.output)) << graph.ops[slice.ops[i]].name;
      EXPECT_NE(made, buffers.data(attention.inputs[0])) << graph.ops[slice.ops[i]].name;
    }
  }
  EXPECT_GT(overlapped, 0u);  // The MLP of a parallel residual.
}

// Nor do dense layers take more, once they are prepared, than they have said.
TEST(SliceExecutorTest, TakesNoMoreThanItHasSaid) {
  for (const size_t tile_rows : {SliceExecutor::kTileRows, size_t{8}}) {
    Program program(Spec("llama"), DType::kBF16, UINT32_MAX, nullptr, tile_rows);
    SliceExecutor& executor = program.executor();
    const std::vector<TokenId> tokens(40, 7);
    ASSERT_TRUE(executor.Prepare(tokens.size()).ok());
    const uint64_t said = ScratchBytes(executor, tokens.size());
    EXPECT_EQ(said, executor.device().dense().scratch_bytes());  // There are no experts.

    WholeRun(program, tokens).Logits();

    EXPECT_EQ(ScratchBytes(executor, tokens.size()), said);
  }
}

// Rows behind those of a tile take memory for what crosses an attention, or may be sent with it.
TEST(SliceExecutorTest, ValuesBetweenOpsTakeTheMemoryOfATile) {
  Program plain(Spec("llama"), DType::kBF16);
  Program tiles(Spec("llama"), DType::kBF16, UINT32_MAX, nullptr, /*tile_rows=*/8);
  SliceExecutor& executor = tiles.executor();
  const SliceProgram& program = executor.program();
  const auto bytes = [&executor](size_t rows) { return executor.MakeBuffers(rows)->bytes(); };
  if (!executor.device().is_host()) {
    EXPECT_EQ(bytes(100), plain.executor().MakeBuffers(100)->bytes());
    return;
  }
  size_t row_bytes = program.ContextRowBytesMax() + program.RowBytes(program.Qkv(1));
  row_bytes += program.RowBytes(program.AttentionOutput(1));
  row_bytes += program.RowBytes(KvInputOf(program, 1));
  EXPECT_EQ(bytes(100) - bytes(60), 40 * row_bytes);
  EXPECT_EQ(bytes(8), plain.executor().MakeBuffers(8)->bytes());
  EXPECT_LT(bytes(100), plain.executor().MakeBuffers(100)->bytes() / 2);
  const ValueBuffers buffers = *executor.MakeBuffers(100);
  uint64_t allocated = 0;
  for (const absl::Span<std::byte> memory : buffers.DeviceAllocations()) {
    allocated += memory.size();
  }
  EXPECT_EQ(buffers.bytes(), allocated);
}

// A handful, not one for each value.
TEST(SliceExecutorTest, ReusesBuffersOverLayers) {
  test_support::RandomModelSpec deep = Spec("llama");
  deep.layers = 12;
  Program shallow(Spec("llama"), DType::kBF16);
  Program deeper(deep, DType::kBF16);

  EXPECT_EQ(shallow.executor().MakeBuffers(4)->DeviceAllocations().size(),
            deeper.executor().MakeBuffers(4)->DeviceAllocations().size());
}

}  // namespace
}  // namespace lamina::compute_node
