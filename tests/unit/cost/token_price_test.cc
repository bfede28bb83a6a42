// SPDX-License-Identifier: Apache-2.0
#include "cost/token_price.h"

#include <vector>

#include "gtest/gtest.h"

namespace lamina::cost {
namespace {

// Dense layers whose time is fixed + slope * rows: each side pays for its own rows, and half of
// what is fixed.
TEST(ShapleySharesTest, OfALineAreItsRowsAndHalfOfWhatIsFixed) {
  const double fixed = 3;
  const double slope = 0.5;
  const auto t = [&](double rows) { return rows > 0 ? fixed + slope * rows : 0; };

  const StepShares shares = ShapleyShares(t(8 + 100), t(100), t(8));

  EXPECT_DOUBLE_EQ(shares.input, fixed / 2 + slope * 100);
  EXPECT_DOUBLE_EQ(shares.output, fixed / 2 + slope * 8);
}

TEST(ShapleySharesTest, ChargeOneSideAloneWithEverything) {
  EXPECT_DOUBLE_EQ(ShapleyShares(2, 2, 0).input, 2);
  EXPECT_DOUBLE_EQ(ShapleyShares(2, 0, 2).output, 2);
}

TEST(ShapleySharesTest, LieWithinTheStepWhereTimesContradictEachOther) {
  EXPECT_DOUBLE_EQ(ShapleyShares(1, 0, 4).input, 0);
  EXPECT_DOUBLE_EQ(ShapleyShares(1, 4, 0).input, 1);
}

TEST(ShareBillTest, AddsUpToTheBillAndSharesIdleTimeAsBusyTime) {
  const std::vector<MachineWork> machines = {
      {.price_per_hour = 3, .input = 1, .output = 3},
      {.price_per_hour = 2, .output = 0.01},  // A memory node, hardly busy.
      {.price_per_hour = 1, .input = 4, .output = 4, .cached = 2}};

  const TokenBill bill = ShareBill(machines, 2, {.input = 5e6, .output = 1e6, .cached = 4e5});

  EXPECT_DOUBLE_EQ(bill.input, 2 * (3 * 0.25 + 1 * 0.4));
  EXPECT_DOUBLE_EQ(bill.output, 2 * (3 * 0.75 + 2 + 1 * 0.4));
  EXPECT_DOUBLE_EQ(bill.cached, 2 * 1 * 0.2);
  EXPECT_NEAR(bill.total(), 2 * 6, 1e-9);
  EXPECT_DOUBLE_EQ(bill.per_million_input, bill.input / 5);
  EXPECT_DOUBLE_EQ(bill.per_million_output, bill.output);
  EXPECT_DOUBLE_EQ(bill.per_million_cached, bill.cached / 0.4);
}

TEST(ShareBillTest, SharesAMachineThatDidNothingAsTheOthers) {
  const std::vector<MachineWork> machines = {{.price_per_hour = 1, .input = 1, .output = 3},
                                             {.price_per_hour = 10}};

  const TokenBill bill = ShareBill(machines, 1, {.input = 1, .output = 1});

  EXPECT_DOUBLE_EQ(bill.input, 11 * 0.25);
  EXPECT_DOUBLE_EQ(bill.output, 11 * 0.75);
}

TEST(ShareBillTest, WithoutTokensIsStillTheWholeBill) {
  const TokenBill bill = ShareBill({{{.price_per_hour = 2}}}, 3, {});

  EXPECT_DOUBLE_EQ(bill.total(), 6);
  EXPECT_EQ(bill.per_million_output, 0);
}

TEST(BillOfPoolsTest, GivesEachPoolToWhoUsesIt) {
  const TokenBill bill = BillOfPools(
      {.compute = 4, .prompts = 2, .memory = 1},
      {.compute = {.input = 1, .output = 3}, .memory = {.input = 1, .output = 5, .cached = 2}}, 1,
      {.input = 1e6, .output = 5e5, .cached = 1e5});

  EXPECT_DOUBLE_EQ(bill.per_million_input, 1 + 2 + 0.125);
  EXPECT_DOUBLE_EQ(bill.per_million_output, 2 * (3 + 0.625));
  EXPECT_DOUBLE_EQ(bill.per_million_cached, 10 * 0.25);
  EXPECT_DOUBLE_EQ(bill.total(), 7);
}

}  // namespace
}  // namespace lamina::cost
