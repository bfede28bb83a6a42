// SPDX-License-Identifier: Apache-2.0
//
// The passes of sampling on every instruction set of this processor against plain loops, bit for
// bit, over sizes that fill no vector, group or block; and what Sample() draws with them.

#include "kernels/cpu/logit_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/philox.h"
#include "kernels/cpu/logit_cut.h"
#include "kernels/sampling.h"
#include "tests/unit/kernels/instruction_sets.h"

namespace lamina::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLog2E = 1.44269504f;

// With ties, zeros of both signs, NaN and -inf among them.
std::vector<float> Logits(size_t size, uint64_t seed, double deviation = 3) {
  Prng prng(seed);
  std::vector<float> logits(size);
  for (size_t i = 0; i < size; ++i) {
    logits[i] = static_cast<float>(prng.Normal() * deviation);
    if (i % 11 == 7) {
      logits[i] = logits[i / 2];
    }
  }
  for (size_t i = 3; i + 40 < size; i += 37) {
    logits[i] = i % 3 == 0 ? kNan : i % 3 == 1 ? -kInf : -0.0f;
    logits[i + 1] = 0.0f;
  }
  return logits;
}

// Runs the test's body with one instruction set after the other, the plainest first.
class EveryTargetTest : public testing::Test {
 protected:
  template <class Body>
  static void OnEach(const Body& body) {
    int targets = 0;
    OnEachTarget(kAllTargets, [&](int64_t) {
      body();
      ++targets;
    });
    EXPECT_GE(targets, 1);
  }
};

constexpr size_t kSizes[] = {1, 2, 15, 16, 17, 31, 255, 256, 257, 300, 1023, 4099};

// WeighLogits() in plain loops.
float PlainWeight(float logit, float largest, float scale) {
  if (logit == largest) {
    return 1;
  }
  const float t = (logit - largest) * scale;
  if (!(t >= -125.0f)) {
    return 0;
  }
  const float shifted = t + 0x1.8p23f;
  const float n = shifted - 0x1.8p23f;
  const float f = t - n;
  float p = 0x1.44138ap-13f;
  for (const float c :
       {0x1.5f089p-10f, 0x1.3b2a54p-7f, 0x1.c6af6cp-5f, 0x1.ebfbep-3f, 0x1.62e43p-1f, 1.0f}) {
    p = p * f + c;
  }
  return p * std::ldexp(1.0f, static_cast<int>(n));
}

double PlainSum(const float* weights, size_t count) {
  float partials[16] = {};
  for (size_t i = 0; i < count; ++i) {
    partials[i % 16] += weights[i];
  }
  double sums[16];
  std::copy_n(partials, 16, sums);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) {
      sums[i] += sums[i + half];
    }
  }
  return sums[0];
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_F(EveryTargetTest, WeightsAndTheirSumsAreThoseOfPlainLoops) {
  OnEach([] {
    for (const size_t size : kSizes) {
      for (const float scale : {kLog2E, kLog2E / 0.05f, 1e-20f, 3e38f}) {
        const std::vector<float> logits = Logits(size, size);
        const float largest = cpu::LargestLogit(logits);
        std::vector<float> expected;
        for (const float logit : logits) {
          expected.push_back(PlainWeight(logit, largest, scale));
        }
        std::vector<float> weights(size, kNan);
        std::vector<double> sums(cpu::WeightBlocks(size), 0);
        std::vector<double> sums_alone = sums;

        cpu::WeighLogits({logits, largest, scale, weights.data(), sums.data()});
        cpu::WeighLogits({logits, largest, scale, nullptr, sums_alone.data()});

        ASSERT_TRUE(SameBits(weights, expected)) << size << " " << scale;
        ASSERT_EQ(sums, sums_alone);
        for (size_t b = 0; b < sums.size(); ++b) {
          const size_t first = b * cpu::kWeightBlock;
          ASSERT_EQ(sums[b],
                    PlainSum(expected.data() + first, std::min(cpu::kWeightBlock, size - first)));
        }
      }
    }
  });
}

TEST_F(EveryTargetTest, WeightsAreWithinAFewUnitsOfThePower) {
  OnEach([] {
    std::vector<float> logits;
    for (int i = 0; i <= 200000; ++i) {
      logits.push_back(static_cast<float>(-i) * 0.0006f);
    }
    std::vector<float> weights(logits.size());
    std::vector<double> sums(cpu::WeightBlocks(logits.size()));
    cpu::WeighLogits({logits, 0.0f, 1.0f, weights.data(), sums.data()});
    for (size_t i = 0; i < logits.size(); ++i) {
      const double exact = std::exp2(double{logits[i]});
      ASSERT_NEAR(weights[i], exact, exact * 1.2e-7) << logits[i];
    }
  });
}

TEST_F(EveryTargetTest, ScansAreThoseOfPlainLoops) {
  OnEach([] {
    for (const size_t size : kSizes) {
      std::vector<float> logits = Logits(size, 7 * size + 1);
      float largest = -kInf;
      for (const float logit : logits) {
        largest = logit > largest ? logit : largest;
      }
      EXPECT_EQ(cpu::LargestLogit(logits), largest);
      for (const float bound : {-kInf, -1.0f, 0.0f, logits[size / 2], logits[size - 1], kInf}) {
        for (size_t first = 0; first < size; first += size / 3 + 1) {
          size_t next = first;
          size_t ties_end = 0;
          size_t ties = 0;
          while (next < size && !(logits[next] > bound)) {
            ++next;
          }
          EXPECT_EQ(cpu::NextAbove(logits, first, bound), next);
          while (ties_end < size && ties < first) {
            ties += logits[ties_end++] == bound ? 1 : 0;
          }
          EXPECT_EQ(cpu::EndOfTies(logits, bound, first), ties_end);
          size_t count = 0;
          std::vector<uint32_t> kept;
          for (size_t i = 0; i < size; ++i) {
            if (logits[i] > bound || (logits[i] == bound && i < first)) {
              ++count;
              kept.push_back(static_cast<uint32_t>(i));
            }
          }
          EXPECT_EQ(cpu::CountAtLeast(logits, bound, first), count);
          std::vector<uint32_t> ids(size + 16);
          ids.resize(cpu::ListKept(logits, {bound, first}, ids.data()));
          EXPECT_EQ(ids, kept) << size << " above " << bound << " and ties before " << first;
        }
      }
    }
  });
}

// The cut, by a sort of everything.
std::vector<bool> SortedCut(const std::vector<float>& logits, const std::vector<float>& weights,
                            double wanted) {
  std::vector<size_t> ids;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -kInf && weights[i] > 0) {
      ids.push_back(i);
    }
  }
  std::stable_sort(ids.begin(), ids.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<bool> kept(logits.size(), false);
  double weight = 0;
  for (const size_t id : ids) {
    if (weight > 0 && weight >= wanted) {
      break;
    }
    kept[id] = true;
    weight += double{weights[id]};
  }
  return kept;
}

std::vector<bool> Kept(const std::vector<float>& logits, const cpu::LogitCut& cut) {
  std::vector<bool> kept;
  for (size_t i = 0; i < logits.size(); ++i) {
    kept.push_back(logits[i] > cut.bound || (logits[i] == cut.bound && i < cut.ties_end));
  }
  return kept;
}

// Values that crowd together on every scale, so that halving the range of values does not end.
std::vector<float> CrowdedLogits(size_t size) {
  std::vector<float> logits(size);
  for (size_t i = 0; i < size; ++i) {
    logits[i] = std::ldexp(1.0f, -static_cast<int>((i * 7919) % 149));
  }
  return logits;
}

TEST_F(EveryTargetTest, CutsAreThoseOfASort) {
  OnEach([] {
    cpu::CutScratch scratch;
    for (const size_t size : {1, 17, 63, 64, 65, 300, 5003}) {
      const std::vector<std::vector<float>> rows = {Logits(size, 3), Logits(size, 4, 0.01),
                                                    std::vector<float>(size, 2.5f),
                                                    CrowdedLogits(size)};
      for (const std::vector<float>& logits : rows) {
        for (const size_t count : {size_t{1}, size_t{2}, size / 7 + 1, size / 2 + 1, size}) {
          const std::vector<float> ones(size, 1.0f);
          EXPECT_EQ(Kept(logits, cpu::CutByCount(logits, count, scratch)),
                    SortedCut(logits, ones, static_cast<double>(count)))
              << count << " of " << size;
        }
        std::vector<float> weights(size);
        std::vector<double> sums(cpu::WeightBlocks(size));
        cpu::WeighLogits({logits, cpu::LargestLogit(logits), kLog2E, weights.data(), sums.data()});
        double total = 0;
        for (const double sum : sums) {
          total += sum;
        }
        // Shares that no sum of these weights meets within its rounding.
        for (const double share : {1e-9, 0.1003, 0.50007, 0.9001, 0.99903}) {
          EXPECT_EQ(Kept(logits, cpu::CutByWeight(logits, weights, total, share, scratch)),
                    SortedCut(logits, weights, share * total))
              << share << " of " << size;
        }
      }
    }
  });
}

TEST_F(EveryTargetTest, SumsOfACutAreThoseOfPlainLoops) {
  OnEach([] {
    for (const size_t size : kSizes) {
      const std::vector<float> logits = Logits(size, 5);
      std::vector<float> weights(size);
      std::vector<double> sums(cpu::WeightBlocks(size));
      cpu::WeighLogits({logits, cpu::LargestLogit(logits), kLog2E, weights.data(), sums.data()});
      const cpu::LogitCut cut = {.bound = logits[size / 2], .ties_end = size / 2 + 1};
      std::vector<float> expected = weights;
      for (size_t i = 0; i < size; ++i) {
        const bool kept = logits[i] > cut.bound || (logits[i] == cut.bound && i < cut.ties_end);
        expected[i] = kept && weights[i] >= 1e-3f ? weights[i] : 0;
      }

      cpu::SumKept({logits, cut, 1e-3f, weights.data(), sums.data()});

      for (size_t b = 0; b < sums.size(); ++b) {
        const size_t first = b * cpu::kWeightBlock;
        ASSERT_EQ(sums[b],
                  PlainSum(expected.data() + first, std::min(cpu::kWeightBlock, size - first)));
      }
    }
  });
}

// What Sample() and its companions answer, in words that compare bit for bit.
std::vector<uint32_t> Answers() {
  const std::vector<SamplingParams> all_params = {
      {},
      {.temperature = 1, .seed = 1},
      {.temperature = 0.2f, .seed = 2},
      {.temperature = 1, .top_p = 0.9f, .seed = 3},
      {.temperature = 1, .top_k = 40, .seed = 4},
      {.temperature = 3, .top_k = 200, .top_p = 0.95f, .min_p = 0.01f, .seed = 5, .logprobs = 5}};
  std::vector<uint32_t> answers;
  SampleScratch scratch;
  const auto take = [&](const std::vector<TokenLogprob>& top) {
    for (const TokenLogprob& one : top) {
      answers.push_back(static_cast<uint32_t>(one.token));
      answers.push_back(std::bit_cast<uint32_t>(one.logprob));
    }
  };
  for (const size_t size : {1, 17, 255, 1009, 49152}) {
    const std::vector<float> logits = Logits(size, 100 + size);
    for (const SamplingParams& params : all_params) {
      for (uint64_t position = 0; position < 40; ++position) {
        const SampleResult result = Sample(logits, params, {}, {}, position, scratch);
        answers.push_back(static_cast<uint32_t>(result.token));
        answers.push_back(std::bit_cast<uint32_t>(result.logprob));
        take(result.top);
      }
    }
    const auto some = static_cast<TokenId>(size / 2);
    answers.push_back(std::bit_cast<uint32_t>(LogProbability(logits, some)));
    const TokenRank ranked = RankOf(logits, some, 4, scratch);
    answers.push_back(ranked.rank);
    take(ranked.top);
  }
  return answers;
}

TEST_F(EveryTargetTest, DrawsAndLogProbabilitiesAreTheSame) {
  const std::vector<uint32_t> best = Answers();
  OnEach([&] { EXPECT_EQ(Answers(), best); });
}

}  // namespace
}  // namespace lamina::kernels
