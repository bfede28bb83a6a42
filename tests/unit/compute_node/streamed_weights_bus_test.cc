// SPDX-License-Identifier: Apache-2.0
//
// Weights that stream over an emulated bus which others use too.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/shared_bus.h"
#include "compute_node/streamed_weights.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

// K and V and activations that memory nodes have put on the bus before a slice was asked for come
// before it.
TEST(StreamedWeightsBusTest, ASliceComesBehindWhatOthersHandedOverBefore) {
  constexpr Nanos kNanosPerByte = 50;
  constexpr uint64_t kOthers = 1'000'000;  // They take 50 ms.
  test_support::RandomModelSpec spec = Spec("llama");
  spec.layers = 8;
  Program program(spec, DType::kBF16);
  const uint64_t all = program.executor().weight_source().weights().bytes();
  const auto bus = *SharedBus::Open(absl::StrCat("behind-", getpid()), 20'000'000);
  StreamedWeights weights(
      program.executor().device(),
      {.budget = all * 5 / 10, .directory = testing::TempDir(), .ahead = 0, .bus = bus});
  const SliceProgram& slices = program.executor().program();
  ASSERT_TRUE(weights
                  .Load(slices, *program.model().weights, slices.OpsOf(0, slices.slice_count()),
                        [](double) {})
                  .ok());
  uint32_t slice = 0;
  while (weights.Ask(slice)->here) {  // It stays.
    weights.Release(slice++);
  }
  ASSERT_TRUE(AskAndWait(weights, slice).ok());
  const uint64_t before = bus->bytes();
  const Nanos others_through = bus->Take(kOthers, RealClock().Now());
  weights.Release(slice++);  // The next one comes from now on.
  while (weights.Ask(slice)->here) {
    weights.Release(slice++);
  }
  ASSERT_TRUE(AskAndWait(weights, slice).ok());
  const Nanos here = RealClock().Now();
  const uint64_t came = bus->bytes() - before - kOthers;
  EXPECT_GT(came, 0u);
  EXPECT_GE(here, others_through + static_cast<Nanos>(came) * kNanosPerByte);
  weights.Release(slice);
}

}  // namespace
}  // namespace lamina::compute_node
