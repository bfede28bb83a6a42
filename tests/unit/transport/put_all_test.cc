// SPDX-License-Identifier: Apache-2.0
#include "transport/put_all.h"

#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/registry.h"

namespace lamina::transport {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(OpenRegionsTest, WindowsTooSmallForTheBatchAreAFailedPreconditionThatSaysWhatToLower) {
  const auto transport = MakeTransport("fake://windows").value();
  const auto region =
      transport->CreateRegion({.name = "m0", .bytes = 4096, .signal_words = 2, .epoch = 3}).value();
  const std::vector<std::string> descriptors = {region->Descriptor()};

  EXPECT_TRUE(
      OpenRegions(*transport, descriptors, 3, {.bytes = 4096, .signal_words = 2}).status().ok());
  for (const RegionSize least : {RegionSize{8192, 2}, RegionSize{4096, 3}}) {
    const absl::Status status = OpenRegions(*transport, descriptors, 3, least).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("4.0 KiB"), HasSubstr("limits.running_max")));
  }
}

TEST(OpenRegionsTest, ErrorsOfTheTransportPass) {
  const auto transport = MakeTransport("fake://windows").value();
  const auto region =
      transport->CreateRegion({.name = "m0", .bytes = 64, .signal_words = 1, .epoch = 3}).value();

  EXPECT_TRUE(
      absl::IsAborted(OpenRegions(*transport, {region->Descriptor()}, 4, RegionSize{}).status()));
}

TEST(OpenRegionsTest, SaysWhichOneCannotBeOpened) {
  const auto transport = MakeTransport("fake://windows").value();
  const auto region =
      transport->CreateRegion({.name = "m0", .bytes = 64, .signal_words = 1, .epoch = 3}).value();
  const std::string good = region->Descriptor();
  for (size_t bad = 0; bad < 3; ++bad) {
    std::vector<std::string> descriptors(3, good);
    descriptors[bad] = "nonsense";
    size_t failed = 9;
    ThreadBeat beat;
    EXPECT_FALSE(OpenRegions(*transport, descriptors, 3, RegionSize{}, &failed, &beat).ok());
    EXPECT_EQ(failed, bad);
    EXPECT_EQ(beat.beats(), bad + 1) << "once for each that was tried";
  }
}

// A wait that is longer than a nap beats more than once; one that is over, or has what it waits
// for, once.
TEST(WaitInNapsTest, BeatsAtEveryNapUntilTheDeadline) {
  const auto transport = MakeTransport("fake://windows").value();
  const auto region =
      transport->CreateRegion({.name = "m0", .bytes = 64, .signal_words = 1, .epoch = 3}).value();
  const std::array conditions = {SignalCondition{.word = 0, .at_least = 1}};
  const auto wait_for = [&](Nanos length, ThreadBeat& beat) {
    return WaitInNaps(*transport, *region, conditions,
                      {.deadline = RealClock().Now() + length, .beat = &beat})
        .status();
  };
  ThreadBeat beat;
  EXPECT_TRUE(absl::IsDeadlineExceeded(wait_for(ThreadBeat::kNapMost + Millis(1), beat)));
  EXPECT_GE(beat.beats(), 2u);

  ThreadBeat over;
  EXPECT_TRUE(absl::IsDeadlineExceeded(wait_for(-1, over)));
  EXPECT_EQ(over.beats(), 1u);

  const auto peer = transport->OpenRegion(region->Descriptor(), 3).value();
  const SignalUpdate signal{.word = 0, .value = 1};
  ThreadBeat here;
  ASSERT_TRUE(PutAll(*transport, *peer, 0, {}, &signal,
                     {.deadline = RealClock().Now() + Seconds(60), .beat = &here})
                  .ok());
  EXPECT_TRUE(wait_for(Seconds(60), here).ok());
}

}  // namespace
}  // namespace lamina::transport
