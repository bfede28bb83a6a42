// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/grammar_budget.h"

#include <gtest/gtest.h>

namespace lamina::model {
namespace {

TEST(GrammarBudgetTest, OneCallMayNotTakeTooLong) {
  GrammarBudget budget;
  budget.Spend(GrammarBudget::kCallMax);
  EXPECT_FALSE(budget.exhausted());
  budget.Spend(GrammarBudget::kCallMax + 1);
  EXPECT_TRUE(budget.exhausted());
  budget.AddToken();
  EXPECT_TRUE(budget.exhausted()) << "it stays so";
}

TEST(GrammarBudgetTest, AllCallsMayTakeMoreWithEachToken) {
  GrammarBudget budget;
  for (int call = 0; call < 50; ++call) {
    budget.Spend(Millis(100));
  }
  EXPECT_FALSE(budget.exhausted()) << "five seconds";
  for (int token = 0; token < 10'000; ++token) {
    budget.AddToken();
    budget.Spend(GrammarBudget::kPerToken);
  }
  EXPECT_FALSE(budget.exhausted());
  budget.Spend(1);
  EXPECT_TRUE(budget.exhausted());
}

TEST(GrammarBudgetTest, ItIsTheProcessorTimeOfTheThread) {
  const Nanos began = ThreadTime();
  Nanos now = began;
  while (now == began) {
    now = ThreadTime();
  }
  EXPECT_GT(now, began);
}

}  // namespace
}  // namespace lamina::model
