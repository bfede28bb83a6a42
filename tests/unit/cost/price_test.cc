// SPDX-License-Identifier: Apache-2.0
#include "cost/price.h"

#include "gtest/gtest.h"
#include "tests/unit/cost/catalogue_text.h"

namespace lamina::cost {
namespace {

TEST(PriceTest, BoughtMachinesAreWrittenOffAndTakePower) {
  const Catalogue catalogue = *ParseCatalogue(kSmallCatalogue, "small.yaml");
  const Machine& box = *catalogue.FindMachine("box");
  // 5000 + 2 x 2000 + 500 + 500 over two years; half way from 250 W to 700 W, times 1.5.
  const double parts = 10000.0 / (2 * 8766);
  const double busy = 1.5 * 0.475 * 0.2;
  const Estimate price = HourlyPrice(catalogue, box, MeanLoad(catalogue.economics));
  EXPECT_NEAR(price.value, parts + busy, 1e-12);
  EXPECT_EQ(price.provenance, Provenance::kAssumed);
  // The spare is idle.
  const double idle = 1.5 * 0.25 * 0.2;
  EXPECT_NEAR(PriceOfMachines(catalogue, box, 3).value, 3 * (parts + busy) + parts + idle, 1e-12);
  EXPECT_EQ(PriceOfMachines(catalogue, box, 0).value, 0);
}

TEST(PriceTest, RentedMachinesCostTheirHour) {
  const Catalogue catalogue = *ParseCatalogue(kSmallCatalogue, "small.yaml");
  EXPECT_EQ(PriceOfMachines(catalogue, *catalogue.FindMachine("rented"), 2).value, 4.5);
}

TEST(PriceTest, HoursOfTheDayCountByTheirMean) {
  Economics economics;
  economics.load.assign(24, 0.25);
  economics.load[12] = 1;
  EXPECT_DOUBLE_EQ(MeanLoad(economics).value, (23 * 0.25 + 1) / 24);
}

}  // namespace
}  // namespace lamina::cost
