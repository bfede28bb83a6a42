// SPDX-License-Identifier: Apache-2.0
//
// The executor with reference kernels against the plain executor of graphs, which keeps every value
// by itself: a buffer that is given to a second value too early shows as a wrong logit. Before
// every slice all that no later slice may read is poisoned with NaN.

#include "compute_node/slice_executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "kernels/attention.h"
#include "tests/support/random_model.h"
#include "tests/support/reference_model.h"

namespace lamina::compute_node {
namespace {

using test_support::RandomModelSpec;

// A model, its weights and its executor.
class Program {
 public:
  Program(const RandomModelSpec& spec, DType compute_type)
      : dense_(kernels::MakeReferenceDense(compute_type)) {
    const std::string directory = absl::StrCat(::testing::TempDir(), "/slices_", getpid());
    std::filesystem::create_directories(directory);
    EXPECT_TRUE(test_support::WriteRandomModel(spec, directory).ok());
    auto opened = model::OpenModel(directory);
    EXPECT_TRUE(opened.ok()) << opened.status();
    model_ = *std::move(opened);
    std::vector<model::OpId> ops(model_.graph.ops.size());
    std::iota(ops.begin(), ops.end(), 0);
    auto weights = ModelWeights::Load(model_, *dense_, ops, [](double) {});
    EXPECT_TRUE(weights.ok()) << weights.status();
    weights_.emplace(*std::move(weights));
    auto executor = SliceExecutor::Create(model_.graph, *weights_, *dense_, /*head_columns=*/64);
    EXPECT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
    std::filesystem::remove_all(directory);
  }

  const model::Model& model() const { return model_; }
  SliceExecutor& executor() { return *executor_; }

 private:
  model::Model model_;
  std::unique_ptr<kernels::Dense> dense_;
  std::optional<ModelWeights> weights_;
  std::unique_ptr<SliceExecutor> executor_;
};

// Whole sequences, one row for each token, attended in place.
class WholeRun {
 public:
  WholeRun(Program& program, const std::vector<TokenId>& tokens)
      : program_(program),
        executor_(program.executor()),
        tokens_(tokens.begin(), tokens.end()),
        buffers_(executor_.MakeBuffers(tokens.size())),
        tail_(executor_.MakeTailBuffers()) {
    for (uint32_t i = 0; i < tokens.size(); ++i) {
      positions_.push_back(i);
    }
  }

  // Logits of every row.
  std::vector<std::vector<float>> Logits() {
    EXPECT_TRUE(executor_.Prepare(tokens_.size()).ok());
    for (const absl::Span<std::byte> bytes : buffers_.Allocations()) {
      std::memset(bytes.data(), 0xff, bytes.size());  // NaN in f32 and in bf16.
    }
    for (uint32_t slice = 0; slice + 1 < executor_.slice_count(); ++slice) {
      Poison(slice);
      executor_.RunBeforeSend(slice, Rows(), buffers_);
      Attend(slice);  // Prompt chunks attend before what is left of the slice runs.
      executor_.RunAfterSend(slice, Rows(), buffers_);
      ExpectQkvStays(slice);
    }
    return Tail();
  }

 private:
  RowInputs Rows() const { return {tokens_, positions_}; }

  // Everything but what the slice is given: the context of the attention before it and its output.
  void Poison(uint32_t slice) {
    if (slice == 0) {
      return;
    }
    const model::Graph& graph = program_.model().graph;
    const model::Slice& before = executor_.split().slices[slice - 1];
    std::vector<model::ValueId> given = before.context;
    given.push_back(graph.ops[before.attention].output);
    std::vector<std::vector<std::byte>> kept;
    for (const model::ValueId value : given) {
      kept.emplace_back(buffers_.data(value), buffers_.data(value) + Bytes(value));
    }
    for (const absl::Span<std::byte> bytes : buffers_.Allocations()) {
      std::memset(bytes.data(), 0xff, bytes.size());
    }
    for (size_t i = 0; i < given.size(); ++i) {
      std::memcpy(buffers_.data(given[i]), kept[i].data(), kept[i].size());
    }
  }

  // What carries a value over an attention is never of the compute type.
  size_t Bytes(model::ValueId id) const {
    const model::Value& value = program_.model().graph.values[id];
    EXPECT_NE(value.type, model::ValueType::kCompute) << value.name;
    return tokens_.size() * value.width * (value.type == model::ValueType::kF32 ? 4 : 2);
  }

  void Attend(uint32_t slice) {
    const AttentionDescriptor& shape = executor_.attention(slice).descriptor;
    const auto rows = static_cast<uint32_t>(tokens_.size());
    const auto qkv = executor_.QkvRows(slice, rows, buffers_);
    const auto out = executor_.AttentionRows(slice, rows, buffers_);
    qkv_.assign(qkv.row(0), qkv.row(0) + rows * qkv.cols);
    std::vector<BFloat16> k(rows * shape.kv_width());
    std::vector<BFloat16> v(k.size());
    const Extent all{.first_slot = 0, .tokens = rows};
    const size_t head_stride = size_t{rows} * shape.head_dim;
    const BFloat16* first = qkv.row(0) + shape.q_width();
    kernels::StoreKv(shape, first, first + shape.kv_width(), qkv.stride, {&all, 1}, k.data(),
                     v.data(), head_stride);
    const auto& kernel = kernels::ReferenceAttention();
    const auto scratch = kernel.MakeScratch(shape, rows, rows, 1);
    ThreadPool pool({});
    const kernels::AttentionItem item{.extents = {&all, 1},
                                      .query_tokens = rows,
                                      .q = qkv.row(0),
                                      .q_stride = qkv.stride,
                                      .out = out.row(0),
                                      .out_stride = out.stride};
    kernel.Attend(shape, {.k = k.data(), .v = v.data(), .head_stride = head_stride}, {&item, 1},
                  *scratch, pool);
  }

  // A transport may still be reading q, k, v while the rest of the slice runs.
  void ExpectQkvStays(uint32_t slice) {
    const auto qkv = executor_.QkvRows(slice, tokens_.size(), buffers_);
    EXPECT_EQ(std::memcmp(qkv_.data(), qkv.row(0), qkv_.size() * sizeof(BFloat16)), 0);
  }

  std::vector<std::vector<float>> Tail() {
    std::vector<std::vector<float>> all;
    for (uint32_t first = 0; first < tokens_.size(); first += 3) {
      for (const absl::Span<std::byte> bytes : tail_.Allocations()) {
        std::memset(bytes.data(), 0xff, bytes.size());
      }
      std::vector<uint32_t> chosen;
      for (uint32_t i = first; i < std::min<size_t>(first + 3, tokens_.size()); ++i) {
        chosen.push_back(i);
      }
      executor_.BeginTail(Rows(), buffers_, chosen, tail_);
      const auto logits = executor_.Logits(chosen.size(), tail_);
      int head_chunks = 0;
      for (size_t column = 0; column < logits.cols; ++head_chunks) {
        column = executor_.RunHead(chosen.size(), column, tail_);
      }
      EXPECT_GT(head_chunks, 1);
      for (size_t i = 0; i < chosen.size(); ++i) {
        all.emplace_back(logits.row(i), logits.row(i) + logits.cols);
      }
    }
    return all;
  }

  Program& program_;
  SliceExecutor& executor_;
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> positions_;
  ValueBuffers buffers_;
  ValueBuffers tail_;
  std::vector<BFloat16> qkv_;
};

RandomModelSpec Spec(const std::string& type) {
  RandomModelSpec spec{.model_type = type, .seed = 5, .layers = 3, .vocabulary = 96};
  if (type == "llama") {
    spec.kv_heads = 2;
  } else if (type == "opt") {
    spec.attention_bias = true;
    spec.activation = "relu";
    spec.tied = true;
  } else if (type != "qwen2") {
    spec.model_type = "gpt_neox";
    spec.attention_bias = true;
    spec.activation = "gelu";
    spec.rotary_share = 0.5f;
    spec.parallel_residual = type == "gpt_neox_parallel";
  }
  return spec;
}

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
  // The same roundings, another order of sums: now and then a value falls to the other side of a
  // bf16 step, 2^-8 of itself. A wrong buffer is off by the logits' own size, or NaN.
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

INSTANTIATE_TEST_SUITE_P(Models, SliceExecutorTest,
                         ::testing::Combine(::testing::Values("llama", "qwen2", "opt",
                                                              "gpt_neox_parallel",
                                                              "gpt_neox_sequential"),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param), "_",
                                               DTypeName(std::get<1>(test.param)));
                         });

TEST(SliceExecutorTest, HasOneSliceMoreThanAttentions) {
  Program program(Spec("llama"), DType::kF32);

  EXPECT_EQ(program.executor().slice_count(), 4u);
  for (uint32_t slice = 0; slice < 3; ++slice) {
    EXPECT_EQ(program.executor().attention(slice).layer, slice);
  }
}

// While an attention is away its input may still be sent, and prompt chunks have put their output.
TEST(SliceExecutorTest, NothingThatRunsBesideAnAttentionSharesItsBuffers) {
  Program program(Spec("gpt_neox_parallel"), DType::kBF16);
  SliceExecutor& executor = program.executor();
  const model::Graph& graph = program.model().graph;
  ValueBuffers buffers = executor.MakeBuffers(4);
  size_t beside = 0;
  for (uint32_t s = 0; s + 1 < executor.slice_count(); ++s) {
    const model::Slice& slice = executor.split().slices[s];
    const model::Op& attention = graph.ops[slice.attention];
    for (size_t i = slice.ops_before_send; i < slice.ops.size(); ++i) {
      ++beside;
      const std::byte* made = buffers.data(graph.ops[slice.ops[i]].output);
      EXPECT_NE(made, buffers.data(attention.output)) << graph.ops[slice.ops[i]].name;
      EXPECT_NE(made, buffers.data(attention.inputs[0])) << graph.ops[slice.ops[i]].name;
    }
  }
  EXPECT_GT(beside, 0u);  // The MLP of a parallel residual.
}

// A handful, not one for each value.
TEST(SliceExecutorTest, ReusesBuffersOverLayers) {
  RandomModelSpec deep = Spec("llama");
  deep.layers = 12;
  Program shallow(Spec("llama"), DType::kBF16);
  Program deeper(deep, DType::kBF16);

  EXPECT_EQ(shallow.executor().MakeBuffers(4).Allocations().size(),
            deeper.executor().MakeBuffers(4).Allocations().size());
}

}  // namespace
}  // namespace lamina::compute_node
