// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_sparse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "common/philox.h"

namespace lamina::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<uint32_t> Choose(const SparsePattern& pattern, uint32_t tokens,
                             const std::vector<uint64_t>& sums = {}) {
  std::vector<uint64_t> set(TokenSetWords(tokens) + 1, ~uint64_t{0});
  std::vector<uint32_t> order;
  ChooseTokens(pattern, tokens, sums, order, absl::MakeSpan(set));
  std::vector<uint32_t> chosen;
  for (uint32_t token = 0; token < set.size() * 64; ++token) {
    if ((set[token / 64] >> token % 64 & 1) != 0) {
      chosen.push_back(token);
    }
  }
  return chosen;
}

TEST(KeptHalfTest, RoundsHalvesUpAndNeverReachesBackAsTokensGrow) {
  EXPECT_EQ(KeptHalf(0, 1), 0u);
  EXPECT_EQ(KeptHalf(5, 1), 3u);
  EXPECT_EQ(KeptHalf(10, 0.5), 3u);
  EXPECT_EQ(KeptHalf(9, 0.5), 2u);
  EXPECT_EQ(KeptHalf(1000, 0.2), 100u);
  for (const double ratio : {0.01, 0.2, 1.0 / 3, 0.5, 0.8, 1.0}) {
    for (uint32_t tokens = 1; tokens < 3000; ++tokens) {
      ASSERT_LE(FirstSummedRow(tokens - 1, ratio), FirstSummedRow(tokens, ratio));
      ASSERT_LE(KeptHalf(tokens, ratio), tokens);
    }
  }
}

TEST(ChooseTokensTest, ARatioOfOneChoosesAll) {
  for (const SparseTokens tokens :
       {SparseTokens::kWindowSums, SparseTokens::kLocal, SparseTokens::kStrided}) {
    for (uint32_t n = 0; n < 140; ++n) {
      std::vector<uint32_t> all(n);
      std::iota(all.begin(), all.end(), 0);
      ASSERT_EQ(Choose({.tokens = tokens, .ratio = 1}, n), all);
    }
  }
}

TEST(ChooseTokensTest, FixedPatternsHaveAsManyTokens) {
  EXPECT_THAT(Choose({.tokens = SparseTokens::kLocal, .ratio = 0.5}, 10),
              ElementsAre(4, 5, 6, 7, 8, 9));
  EXPECT_THAT(Choose({.tokens = SparseTokens::kStrided, .ratio = 0.5}, 16),
              ElementsAre(1, 3, 5, 7, 9, 11, 13, 15));
  EXPECT_THAT(Choose({.tokens = SparseTokens::kStrided, .ratio = 0.8}, 10),
              ElementsAre(1, 2, 3, 4, 6, 7, 8, 9));
  EXPECT_THAT(Choose({.tokens = SparseTokens::kLocal, .ratio = 0.1}, 4), IsEmpty());
}

TEST(ChooseTokensTest, AStrideIsTheSameForAllRows) {
  for (const double ratio : {0.1, 0.2, 0.35, 0.5, 0.8, 0.97}) {
    std::vector<uint32_t> before;
    for (uint32_t n = 1; n < 2000; ++n) {
      const std::vector<uint32_t> chosen =
          Choose({.tokens = SparseTokens::kStrided, .ratio = ratio}, n);
      ASSERT_EQ(chosen.size(), static_cast<size_t>(std::floor(n * ratio)));
      ASSERT_LE(chosen.size(), 2 * KeptHalf(n, ratio));
      ASSERT_TRUE(std::equal(before.begin(), before.end(), chosen.begin()));
      before = chosen;
    }
  }
}

TEST(ChooseTokensTest, OfEqualSumsTheEarlierTokensAreTaken) {
  EXPECT_THAT(Choose({.ratio = 0.5}, 12), ElementsAre(0, 1, 2, 9, 10, 11));
  EXPECT_THAT(Choose({.ratio = 0.5}, 12, {0, 7, 0, 0, 9, 7, 7, 0, 0, 100}),
              ElementsAre(1, 4, 5, 9, 10, 11));
}

// Rows of a sequence, some of whose weights are 0, as Algorithm 1 has them, over the whole matrix.
class WholeMatrix {
 public:
  explicit WholeMatrix(double ratio) : ratio_(ratio) {}

  void Add(const std::vector<uint32_t>& tokens, const std::vector<float>& weights) {
    std::map<uint32_t, uint64_t>& row = rows_.emplace_back();
    for (size_t i = 0; i < tokens.size(); ++i) {
      row[tokens[i]] = static_cast<uint64_t>(std::floor(weights[i] * 65535.0f / 8 + 0.5f));
    }
  }
  uint64_t Sum(uint32_t token) const {
    const auto n = static_cast<uint32_t>(rows_.size());
    uint64_t sum = 0;
    for (uint32_t row = FirstSummedRow(n, ratio_); row < n; ++row) {
      const auto found = rows_[row].find(token);
      sum += found == rows_[row].end() ? 0 : found->second;
    }
    return sum;
  }
  std::vector<uint32_t> Choose() const {
    const auto n = static_cast<uint32_t>(rows_.size());
    const uint32_t k = KeptHalf(n, ratio_);
    std::vector<uint32_t> tokens(n - k);
    std::iota(tokens.begin(), tokens.end(), 0);
    std::stable_sort(tokens.begin(), tokens.end(),
                     [&](uint32_t a, uint32_t b) { return Sum(a) > Sum(b); });
    tokens.resize(std::min<size_t>(k, tokens.size()));
    for (uint32_t token = n - k; token < n; ++token) {
      tokens.push_back(token);
    }
    std::sort(tokens.begin(), tokens.end());
    return tokens;
  }

 private:
  const double ratio_;
  std::vector<std::map<uint32_t, uint64_t>> rows_;
};

TEST(WindowSumsTest, ChooseAsTheWholeMatrixDoes) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Prng random(seed);
    const double ratio = static_cast<double>(1 + random.Below(10)) / 10;
    WholeMatrix matrix(ratio);
    WindowSums sums(8);
    for (uint32_t n = 0; n < 150; ++n) {
      sums.DropBefore(FirstSummedRow(n, ratio));
      const std::vector<uint32_t> chosen =
          Choose({.ratio = ratio}, n, {sums.sums().begin(), sums.sums().end()});
      ASSERT_EQ(chosen, matrix.Choose()) << "seed " << seed << " row " << n;
      ASSERT_LE(sums.bytes(), WindowSumsBytesMax(150, ratio));
      std::vector<uint32_t> tokens = chosen;
      tokens.push_back(n);
      std::vector<float> weights(tokens.size());
      for (float& weight : weights) {
        // Few values, so that sums are equal at times.
        weight = random.Below(3) == 0 ? 0 : static_cast<float>(random.Below(4)) / 4;
      }
      sums.Add(n, tokens, weights);
      matrix.Add(tokens, weights);
    }
    EXPECT_EQ(sums.rows(), 150 - FirstSummedRow(149, ratio));
  }
}

// Forks of a long prompt would take as much each as it does.
TEST(WindowSumsTest, WhoTakesOverSharesRowsAndGoesOnByItself) {
  WindowSums parent(2);
  std::vector<uint32_t> tokens(1000);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<float> weights(tokens.size(), 1.0f);
  for (uint32_t row = 0; row < 200; ++row) {
    parent.Add(1000 + row, tokens, weights);
  }
  const size_t alone = parent.bytes();
  std::vector<WindowSums> forks(16, WindowSums(2));
  for (WindowSums& fork : forks) {
    fork.TakeOver(parent);
    EXPECT_EQ(std::vector(fork.sums().begin(), fork.sums().end()),
              std::vector(parent.sums().begin(), parent.sums().end()));
  }
  size_t all = parent.bytes();
  for (const WindowSums& fork : forks) {
    all += fork.bytes();
  }
  EXPECT_LT(all, alone + forks.size() * 1100 * sizeof(uint64_t));

  forks[0].DropFrom(1100);
  forks[0].Add(1100, tokens, weights);
  EXPECT_EQ(forks[0].rows(), 101u);
  EXPECT_EQ(forks[1].rows(), 200u);
  parent.DropBefore(1200);
  EXPECT_EQ(parent.rows(), 0u);
  EXPECT_EQ(forks[1].sums()[999], 200u * 32768u);
}

TEST(WindowSumsTest, RowsThatLeaveLeaveNothing) {
  WindowSums sums(2);
  const uint32_t tokens[] = {0, 3, 70};
  sums.Add(70, tokens, {0.5f, 0.0f, 1.5f});
  sums.Add(71, tokens, {2.0f, 1e-6f, 0.0f});
  EXPECT_EQ(sums.sums()[0], 16384u + 65535u);
  EXPECT_EQ(sums.sums()[3], 0u);
  EXPECT_EQ(sums.rows(), 2u);
  sums.DropFrom(71);
  EXPECT_EQ(sums.end(), 71u);
  EXPECT_EQ(sums.sums()[0], 16384u);
  sums.DropBefore(71);
  EXPECT_THAT(sums.sums(), ::testing::Each(0));
  EXPECT_EQ(sums.rows(), 0u);
}

TEST(WindowSumsTest, ARowThatDoesNotFollowBeginsAnew) {
  WindowSums sums(1);
  const uint32_t tokens[] = {0, 1};
  sums.Add(1, tokens, {0.5f, 0.5f});
  sums.Add(9, tokens, {1.0f, 0.0f});
  EXPECT_EQ(sums.rows(), 1u);
  EXPECT_EQ(sums.end(), 10u);
  EXPECT_THAT(sums.sums(), ElementsAre(65535, 0));
}

}  // namespace
}  // namespace lamina::policy
