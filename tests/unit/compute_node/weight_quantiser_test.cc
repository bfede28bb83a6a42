// SPDX-License-Identifier: Apache-2.0
//
// Weights of 8 bits: what the node computes is to the bit what it computes with bf16 weights of a
// model whose matrices have the values of the definition.

#include "compute_node/weight_quantiser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "compute_node/weight_source.h"
#include "kernels/int8_weights.h"
#include "model/shard.h"
#include "tests/support/random_model.h"
#include "tests/unit/compute_node/slice_program.h"
#include "tests/unit/compute_node/step_run.h"

namespace lamina::compute_node {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;

// Another source, of whose named matrices all rows are quantised as a whole.
class RoundedSource final : public model::WeightSource {
 public:
  RoundedSource(const model::WeightSource& source, std::set<std::string> names)
      : source_(source), names_(std::move(names)) {}

  const std::vector<model::TensorInfo>& tensors() const override { return source_.tensors(); }
  const model::TensorInfo* Find(absl::string_view name) const override {
    return source_.Find(name);
  }
  absl::Status Read(absl::string_view name, uint64_t first, absl::Span<float> out) const override {
    if (!names_.contains(std::string(name))) {
      return source_.Read(name, first, out);
    }
    const model::TensorInfo& tensor = *source_.Find(name);
    std::vector<float> all(tensor.elements);
    const absl::Status read = source_.Read(name, 0, absl::MakeSpan(all));
    const size_t width = tensor.shape.back();
    std::vector<uint8_t> blocks(kernels::Int8RowBytes(width));
    for (size_t row = 0; row < all.size(); row += width) {
      const auto values = absl::MakeSpan(all).subspan(row, width);
      EXPECT_TRUE(kernels::QuantiseInt8(values, blocks.data()));
      kernels::Int8Values(blocks.data(), values);
    }
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
    return read;
  }

 private:
  const model::WeightSource& source_;
  const std::set<std::string> names_;
};

std::unique_ptr<kernels::ComputeDevice> Processor(ThreadPool& pool) {
  auto dense = kernels::MakeCpuDense({.compute_type = DType::kBF16, .pool = &pool});
  EXPECT_TRUE(dense.ok()) << dense.status();
  return kernels::MakeCpuComputeDevice(*std::move(dense), kernels::CpuAttention(), pool);
}

// All matrices but the embedding, and routers.
std::set<std::string> MatricesOf(const model::Model& model) {
  std::set<std::string> names;
  for (const model::TensorInfo& tensor : model.weights->tensors()) {
    if (tensor.shape.size() >= 2 && tensor.name.find("embed") == std::string::npos &&
        !tensor.name.ends_with("moe.gate.weight")) {
      names.insert(tensor.name);
    }
  }
  return names;
}

class WeightQuantiserTest : public testing::Test {
 protected:
  // Widths are no multiples of a group.
  static test_support::RandomModelSpec Llama() {
    test_support::RandomModelSpec spec = Spec("llama");
    spec.width = 144;
    spec.ffn_width = 200;
    spec.query_heads = 9;
    spec.kv_heads = 3;
    return spec;
  }

  void Make(const test_support::RandomModelSpec& spec) {
    program_.emplace(spec, DType::kBF16, UINT32_MAX, Processor);
    rounded_.emplace(*program_->model().weights, MatricesOf(program_->model()));
  }

  kernels::ComputeDevice& device() { return program_->executor().device(); }
  bool KeepsBlocks() { return device().dense().description().find("onednn") == std::string::npos; }

  // The logits of a step.
  std::vector<float> Logits(ResidentWeights& weights, const model::WeightSource& source) {
    const SliceProgram& slices = program_->executor().program();
    const absl::Status loaded =
        weights.Load(slices, source, slices.OpsOf(0, slices.slice_count()), [](double) {});
    EXPECT_TRUE(loaded.ok()) << loaded;
    const auto executor =
        SliceExecutor::Create(program_->model().graph, weights, device(), /*head_columns=*/64);
    EXPECT_TRUE(executor.ok()) << executor.status();
    return RunStep(**executor);
  }

  void ExpectSameProduct(const kernels::PackedLinear& a, const kernels::PackedLinear& b) {
    constexpr size_t kRows = 3;
    const std::vector<BFloat16> in(kRows * a.in_features(), ToBFloat16(0.75f));
    const std::vector<float> of_a = Product(a, in, kRows);
    EXPECT_EQ(of_a, Product(b, in, kRows));
  }

  std::vector<float> Product(const kernels::PackedLinear& weights, std::vector<BFloat16> in,
                             size_t rows) {
    std::vector<float> out(rows * weights.out_features());
    const size_t inputs = weights.in_features();
    device().dense().Linear(weights, {in.data(), rows, inputs, inputs, DType::kBF16}, 0,
                            kernels::Packed(out.data(), rows, weights.out_features()));
    return out;
  }

  void ExpectLogitsOfTheRounded() {
    ResidentWeights int8(device(), WeightForm::kInt8);
    ResidentWeights rounded(device(), WeightForm::kBF16);
    ResidentWeights plain(device(), WeightForm::kBF16);
    const std::vector<float> found = Logits(int8, *program_->model().weights);
    EXPECT_EQ(found, Logits(rounded, *rounded_));
    EXPECT_NE(found, Logits(plain, *program_->model().weights));
    const std::string form = KeepsBlocks() ? "int8" : "int8 as bf16";
    EXPECT_THAT(int8.weights().bytes_by_form(), testing::Contains(Key(form)));
    EXPECT_THAT(int8.Describe(), HasSubstr(form));
  }

  std::optional<Program> program_;
  std::optional<RoundedSource> rounded_;
};

TEST_F(WeightQuantiserTest, GivesTheLogitsOfTheRoundedModel) {
  Make(Llama());
  ExpectLogitsOfTheRounded();
}

TEST_F(WeightQuantiserTest, QuantisesExpertsAndNotTheirRouter) {
  test_support::RandomModelSpec spec = Spec("llama");
  spec.model_type = "mixtral";
  spec.experts = 4;
  spec.experts_per_token = 2;
  Make(spec);
  ExpectLogitsOfTheRounded();
}

// The head is of 8 bits; rows that are looked up are those of the file.
TEST_F(WeightQuantiserTest, ATiedEmbeddingStaysBF16) {
  test_support::RandomModelSpec spec = Llama();
  spec.tied = true;
  Make(spec);
  ResidentWeights int8(device(), WeightForm::kInt8);
  Logits(int8, *program_->model().weights);
  for (model::WeightId id = 0; id < program_->model().graph.weights.size(); ++id) {
    if (program_->model().graph.weights[id].name.find("embed_tokens") != std::string::npos) {
      const ModelWeights::Table table = int8.weights().table(id);
      ASSERT_NE(table.rows, nullptr);
      std::vector<float> row(spec.width);
      ASSERT_TRUE(
          program_->model()
              .weights->Read(program_->model().graph.weights[id].name, 0, absl::MakeSpan(row))
              .ok());
      for (size_t i = 0; i < row.size(); ++i) {
        EXPECT_EQ(ToFloat(static_cast<const BFloat16*>(table.rows)[i]), row[i]);
      }
      return;
    }
  }
  FAIL() << "no embedding";
}

// A shard's columns begin and end inside groups: of the MLP at 70, of attention at 48. Those that
// begin and end with a block stay in blocks.
TEST_F(WeightQuantiserTest, ShardsHaveTheValuesOfTheWhole) {
  Make(Llama());
  for (const auto& [first_head, heads, first_column, columns] :
       {std::tuple(0u, 1u, 0u, 70u), {1u, 2u, 70u, 130u}, {0u, 3u, 32u, 96u}}) {
    const auto graph = model::ShardGraph(program_->model().graph, {.index = first_head,
                                                                   .count = 2,
                                                                   .first_head = first_head,
                                                                   .heads = heads,
                                                                   .first_column = first_column,
                                                                   .columns = columns});
    ASSERT_TRUE(graph.ok()) << graph.status();
    std::vector<model::OpId> ops(graph->ops.size());
    std::iota(ops.begin(), ops.end(), 0u);
    WeightForms forms(WeightForm::kInt8, device().dense());
    const auto int8 = ModelWeights::Load(
        *graph, *program_->model().weights, device(), ops, [](double) {}, {}, &forms);
    const auto rounded = ModelWeights::Load(*graph, *rounded_, device(), ops, [](double) {});
    ASSERT_TRUE(int8.ok() && rounded.ok()) << int8.status() << rounded.status();
    EXPECT_EQ(int8->bytes_by_form().contains("int8 as bf16"), !KeepsBlocks() || columns != 96);
    for (const model::OpId op : ops) {
      if (rounded->linear(op) != nullptr) {
        ExpectSameProduct(*int8->linear(op), *rounded->linear(op));
      }
    }
  }
}

TEST_F(WeightQuantiserTest, AWeightThatIsNotFiniteIsNamed) {
  Make(Llama());
  class Infinite final : public model::WeightSource {
   public:
    explicit Infinite(const model::WeightSource& source) : source_(source) {}
    const std::vector<model::TensorInfo>& tensors() const override { return source_.tensors(); }
    const model::TensorInfo* Find(absl::string_view name) const override {
      return source_.Find(name);
    }
    absl::Status Read(absl::string_view name, uint64_t first,
                      absl::Span<float> out) const override {
      const absl::Status read = source_.Read(name, first, out);
      out[0] = std::numeric_limits<float>::infinity();
      return read;
    }

   private:
    const model::WeightSource& source_;
  };
  const Infinite source(*program_->model().weights);
  const model::Graph& graph = program_->model().graph;
  for (const model::Op& op : graph.ops) {
    if (const auto* linear = std::get_if<model::LinearOp>(&op.body)) {
      const absl::Status status = QuantiseWeight(graph, source, linear->parts[0].weight).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(status.ToString(), HasSubstr(graph.weights[linear->parts[0].weight].name));
      EXPECT_THAT(status.ToString(), HasSubstr("row 0: a value is not finite"));
      return;
    }
  }
}

TEST(CheckQuantisesTest, RefusesAFileThatIsQuantisedAlready) {
  const std::string path = absl::StrCat(testing::TempDir(), "/quantised_", getpid(), ".gguf");
  test_support::RandomModelSpec spec = Spec("llama");
  for (const auto& [type, ok] : {std::pair("F32", true), {"Q8_0", false}}) {
    ASSERT_TRUE(test_support::WriteRandomGguf(spec, path, type).ok());
    const auto model = model::OpenModel(path);
    ASSERT_TRUE(model.ok()) << model.status();
    const absl::Status status = CheckQuantises(model->graph, *model->weights);
    EXPECT_EQ(status.ok(), ok) << status;
    if (!ok) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(status.ToString(), HasSubstr("quantised already: Q8_0; say auto"));
    }
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lamina::compute_node
