// SPDX-License-Identifier: Apache-2.0
//
// Sources of weights behind one executor: all of them resident, and one slice's at a time.

#include "compute_node/weight_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/compute_node/slice_program.h"
#include "tests/unit/compute_node/step_run.h"

namespace lamina::compute_node {
namespace {

// Loads a slice's weights when it is asked for them, in the place of those of the slice before, and
// says that they are here when it is asked again.
class OneSliceAtATime final : public WeightSource {
 public:
  OneSliceAtATime(const model::Model& model, kernels::ComputeDevice& device)
      : model_(model),
        device_(device),
        split_(*model::SplitAtAttention(model.graph)),
        weights_(*ModelWeights::Load(model, device, {}, [](double) {})) {}

  const ModelWeights& weights() const override { return weights_; }

  absl::StatusOr<WeightWait> Ask(uint32_t slice) override {
    if (ordered_ != slice) {
      EXPECT_EQ(in_use_, 0) << "slice " << ordered_ << " still needs its weights";
      LAMINA_ASSIGN_OR_RETURN(
          weights_, ModelWeights::Load(model_, device_, split_.slices[slice].ops, [](double) {}));
      ordered_ = slice;
      ++loads_;
      return WeightWait{.here = false, .look_again = RealClock().Now()};
    }
    ++in_use_;
    return WeightWait{};
  }

  // What the device has been given may not have run.
  void Release(uint32_t slice) override {
    EXPECT_EQ(slice, ordered_);
    EXPECT_TRUE(device_.Synchronize().ok());
    --in_use_;
  }

  int loads() const { return loads_; }

 private:
  const model::Model& model_;
  kernels::ComputeDevice& device_;
  const model::SplitModel split_;
  ModelWeights weights_;
  uint32_t ordered_ = UINT32_MAX;
  int in_use_ = 0;
  int loads_ = 0;
};

TEST(WeightSourceTest, ResidentWeightsAreHereWheneverTheyAreAskedFor) {
  Program program(Spec("llama"), DType::kBF16);
  WeightSource& source = program.executor().weight_source();

  for (const uint32_t slice : {2u, 0u, 0u, 3u}) {
    const auto found = source.Ask(slice);
    ASSERT_TRUE(found.ok());
    EXPECT_TRUE(found->here);
  }
}

TEST(ModelWeightsTest, LoadingTellsTheShareOfTheElementsThatAreHere) {
  Program program(Spec("llama"), DType::kBF16);
  const auto split = model::SplitAtAttention(program.model().graph);
  std::vector<model::OpId> ops;
  for (const model::Slice& slice : split->slices) {
    ops.insert(ops.end(), slice.ops.begin(), slice.ops.end());
  }

  std::vector<double> shares;
  ASSERT_TRUE(ModelWeights::Load(program.model(), program.executor().device(), ops,
                                 [&shares](double share) { shares.push_back(share); })
                  .ok());

  ASSERT_EQ(shares.size(), ops.size() + 1);
  EXPECT_EQ(shares.front(), 0);
  EXPECT_EQ(shares.back(), 1);
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  // The table, 96 rows of 64, is the first op; a layer has six times its elements, the head as
  // many.
  EXPECT_NEAR(shares[1], 1.0 / (1 + 3 * 6 + 1), 0.002) << "by elements, not by ops";
}

TEST(WeightSourceTest, AStepRunsWithTheWeightsOfOneSliceAtATime) {
  for (const char* type : {"llama", "opt", "gpt_neox_parallel"}) {
    SCOPED_TRACE(type);
    Program program(Spec(type), DType::kBF16);
    const std::vector<float> expected = RunStep(program.executor());
    OneSliceAtATime source(program.model(), program.executor().device());
    const auto executor = SliceExecutor::Create(program.model().graph, source,
                                                program.executor().device(), /*head_columns=*/64);
    ASSERT_TRUE(executor.ok()) << executor.status();

    EXPECT_EQ(RunStep(**executor), expected);

    EXPECT_EQ(source.loads(), 4);
    EXPECT_NE(expected.front(), expected.back());
  }
}

}  // namespace
}  // namespace lamina::compute_node
