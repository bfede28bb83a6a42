// SPDX-License-Identifier: Apache-2.0
//
// Sampling on the device against kernels/sampling.h. Draws agree unless one falls within 1e-6 of a
// border between candidates; none of these fixed seeds does.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cuda/sampling.h"
#include "kernels/sampling.h"
#include "tests/unit/kernels/cuda/device_fixture.h"
#include "tests/unit/kernels/dense_test_util.h"

namespace lamina::kernels::cuda {
namespace {

constexpr uint32_t kVocabulary = 1009;
constexpr uint32_t kRows = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CudaSamplerTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    auto sampler = CudaSampler::Create(
        {.vocabulary = kVocabulary, .rows_max = kRows, .tokens_max = 4096, .biases_max = 128},
        *arena_, *pinned_, stream());
    ASSERT_TRUE(sampler.ok()) << sampler.status();
    sampler_ = std::move(*sampler);
    logits_ = RandomFloats(size_t{kRows} * kVocabulary, 1, 3);
    prompt_ = {5, 5, 9, -1, 100000, 17, 800};
    output_ = {9, 30, 30, 30, 800, 1008, 0};
  }

  // Samples kRows rows with one set of parameters, each with a seed of its own, on both sides.
  void Compare(SamplingParams params) {
    std::vector<SamplingParams> all(kRows, params);
    std::vector<SampleRequest> requests;
    for (uint32_t i = 0; i < kRows; ++i) {
      all[i].seed = 1000 * params.seed + i;
      requests.push_back(
          {.params = &all[i], .prompt = prompt_, .output = output_, .position = uint64_t{i} << 30});
    }
    const absl::Status status =
        sampler_->Sample(DeviceTest::Upload(logits_), kVocabulary, requests);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(stream().Synchronize().ok());
    SampleScratch scratch;
    for (uint32_t i = 0; i < kRows; ++i) {
      const absl::Span<const float> row(logits_.data() + size_t{i} * kVocabulary, kVocabulary);
      const SampleResult expected =
          kernels::Sample(row, all[i], prompt_, output_, requests[i].position, scratch);
      EXPECT_EQ(sampler_->results()[i], expected.token) << "row " << i;
    }
  }

  std::unique_ptr<CudaSampler> sampler_;
  std::vector<float> logits_;
  std::vector<TokenId> prompt_;
  std::vector<TokenId> output_;
};

TEST_F(CudaSamplerTest, GreedyTakesTheSmallestIdOfTheLargest) {
  logits_[7] = logits_[500] = 50.0f;
  logits_[kVocabulary + 3] = kInfinity;
  std::fill_n(logits_.begin() + 2 * kVocabulary, kVocabulary, -kInfinity);
  std::fill_n(logits_.begin() + 3 * kVocabulary, kVocabulary, std::nanf(""));
  logits_[4 * kVocabulary] = std::nanf("");
  Compare({});
}

TEST_F(CudaSamplerTest, PenaltiesAndBiases) {
  for (const float temperature : {0.0f, 0.7f}) {
    Compare({.temperature = temperature, .repetition_penalty = 1.7f});
    Compare({.temperature = temperature, .presence_penalty = 1.5f, .frequency_penalty = 0.8f});
    Compare({.temperature = temperature,
             .repetition_penalty = 0.6f,
             .frequency_penalty = -1.2f,
             .logit_bias = {{30, 5.0f}, {30, 0.3f}, {-4, 9.0f}, {5000, 9.0f}, {12, -kInfinity}}});
  }
  Compare({});  // Counts of earlier calls are gone.
}

TEST_F(CudaSamplerTest, Temperatures) {
  for (const float temperature : {0.01f, 0.5f, 1.0f, 2.0f, 50.0f}) {
    Compare({.temperature = temperature, .seed = 1});
  }
}

TEST_F(CudaSamplerTest, TopK) {
  for (const uint32_t top_k : {1u, 2u, 40u, kVocabulary - 1, kVocabulary, 5000u}) {
    Compare({.temperature = 3.0f, .top_k = top_k, .seed = 2});
  }
}

TEST_F(CudaSamplerTest, TopKAmongEqualLogitsKeepsTheSmallestIds) {
  for (size_t i = 0; i < logits_.size(); ++i) {
    logits_[i] = i % 3 == 0 ? 1.0f : i % 3 == 1 ? -0.0f : 0.0f;
  }
  for (const uint32_t top_k : {1u, 5u, 336u, 337u, 400u}) {
    Compare({.temperature = 1.0f, .top_k = top_k, .seed = 3});
  }
}

TEST_F(CudaSamplerTest, TopP) {
  for (const float top_p : {1e-9f, 0.1f, 0.5f, 0.9f, 0.999f}) {
    Compare({.temperature = 1.5f, .top_p = top_p, .seed = 4});
    Compare({.temperature = 1.5f, .top_k = 20, .top_p = top_p, .seed = 5});
  }
}

TEST_F(CudaSamplerTest, MinP) {
  for (const float min_p : {0.01f, 0.3f, 1.0f}) {
    Compare({.temperature = 2.0f, .min_p = min_p, .seed = 6});
    Compare({.temperature = 2.0f, .top_p = 0.8f, .min_p = min_p, .seed = 7});
  }
}

TEST_F(CudaSamplerTest, InfiniteAndBrokenLogits) {
  for (uint32_t row = 0; row < kRows; ++row) {
    logits_[row * kVocabulary + row] = kInfinity;
    logits_[row * kVocabulary + 500] = std::nanf("");
    logits_[row * kVocabulary + 600] = row % 2 == 0 ? kInfinity : -kInfinity;
  }
  Compare({.temperature = 1.0f, .seed = 8});
  Compare({.temperature = 1.0f, .top_k = 700, .top_p = 0.95f, .seed = 9});
}

TEST_F(CudaSamplerTest, RefusesWhatItCannotDo) {
  const SamplingParams with_logprobs = {.logprobs = 3};
  const SamplingParams greedy;
  const SampleRequest logprobs = {.params = &with_logprobs};
  const std::vector<SampleRequest> many(kRows + 1, SampleRequest{.params = &greedy});

  EXPECT_EQ(sampler_->Sample(nullptr, 0, {&logprobs, 1}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sampler_->Sample(nullptr, 0, many).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CudaSampler::Create({.vocabulary = (1u << 19) + 1}, *arena_, *pinned_, stream())
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::kernels::cuda
