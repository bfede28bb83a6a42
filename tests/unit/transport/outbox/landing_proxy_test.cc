// SPDX-License-Identifier: Apache-2.0
//
// Regions in a device's memory that the device polls, over fake://, whose puts come late and in
// pieces: what the device sees when a word shows, with words of its own and with those that a
// landing proxy raises.
#include "transport/outbox/landing_proxy.h"

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/emulated_device_memory.h"
#include "transport/fake/fake_network.h"

namespace lamina::transport {
namespace {

using test_support::EmulatedDeviceMemory;

constexpr size_t kBytes = 6000;
constexpr uint32_t kWords = 3;

class PolledRegionTest : public testing::TestWithParam<bool> {  // Whether the device orders.
 protected:
  PolledRegionTest() { EXPECT_TRUE(sender_->RegisterSource(source_, MemoryKind::kHost).ok()); }

  // What the device sees of the word.
  uint64_t Shown(uint32_t word) {
    const DirectMemory direct = region_->direct();
    const absl::Span<const std::byte> place(direct.words + word * direct.word_stride,
                                            sizeof(uint64_t));
    const std::byte* const seen = direct.pages.empty() ? device_.Seen(place).data() : place.data();
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(seen), __ATOMIC_ACQUIRE);
  }
  bool AwaitShown(uint32_t word, uint64_t value) {
    for (const Nanos end = RealClock().Now() + Seconds(30); RealClock().Now() < end;) {
      if (Shown(word) >= value) {
        return true;
      }
      sender_->Progress();
      std::this_thread::yield();
    }
    return false;
  }
  void Put(uint32_t word, uint64_t value) {
    std::fill(source_.begin(), source_.end(), static_cast<std::byte>(value));
    const SignalUpdate signal{.word = word, .value = value};
    ASSERT_TRUE(sender_->Put(*remote_, 0, source_, &signal).ok());
  }

  EmulatedDeviceMemory device_{{.ordered = GetParam()}};
  FakeNetwork network_{{.seed = 5, .delay_steps_max = 6, .reaches_devices = true}};
  const std::unique_ptr<Transport> sender_ = network_.MakeTransport();
  const std::unique_ptr<Transport> receiver_ = network_.MakeTransport(&device_);
  std::unique_ptr<Region> region_ = receiver_
                                        ->CreateRegion({.name = "queries",
                                                        .bytes = kBytes,
                                                        .signal_words = kWords,
                                                        .kind = MemoryKind::kDevice,
                                                        .may_stage = false,
                                                        .polled_by_device = true})
                                        .value();
  const std::unique_ptr<RemoteRegion> remote_ =
      sender_->OpenRegion(region_->Descriptor(), 0).value();
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes);
};

TEST_P(PolledRegionTest, TheDeviceSeesTheDataOfEveryWordThatItSees) {
  ASSERT_EQ(region_->direct().bytes.data(), region_->bytes().data());
  EXPECT_EQ(region_->direct().pages.empty(), GetParam()) << "words of its own, or the host's";
  EXPECT_EQ(region_->direct().landings == nullptr, GetParam()) << "a thread lands, or nobody";
  for (uint64_t value = 1; value <= 30; ++value) {
    const auto word = static_cast<uint32_t>(value % kWords);
    Put(word, value);

    ASSERT_TRUE(AwaitShown(word, value));
    EXPECT_THAT(device_.Seen(region_->bytes()), testing::Each(static_cast<std::byte>(value)));
    EXPECT_EQ(region_->LoadSignal(word), value) << "the processor sees it too";
  }
}

class FlushedRegionTest : public PolledRegionTest {};

TEST_P(FlushedRegionTest, ADeviceThatFailsSeesNothingMore) {
  Put(0, 1);
  ASSERT_TRUE(AwaitShown(0, 1));

  device_.Break();
  Put(1, 2);

  while (region_->LoadSignal(1) < 2) {
    sender_->Progress();
  }
  for (int look = 0; look < 1000; ++look) {
    sender_->Progress();
    std::this_thread::yield();
  }
  EXPECT_EQ(Shown(1), 0u);
}

// The first landing that is noted is of a look behind one that began when times were wanted.
TEST_P(FlushedRegionTest, TellsWhenThingsHaveLandedIfItIsWanted) {
  Landings& landings = *region_->direct().landings;
  uint64_t value = 1;
  Put(2, value);
  ASSERT_TRUE(AwaitShown(2, value));
  EXPECT_FALSE(landings.TakeTimes().has_value());
  const Nanos began = RealClock().Now();
  landings.NoteTimes(true);

  std::optional<LandingTimes> times;
  while (!times.has_value() && RealClock().Now() < began + Seconds(30)) {
    Put(2, ++value);
    ASSERT_TRUE(AwaitShown(2, value));
    times = landings.TakeTimes();
  }

  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->word, 2u);
  EXPECT_GT(times->value, 1u);
  EXPECT_LE(times->value, value);
  EXPECT_GE(times->unraised, began);
  EXPECT_LE(times->unraised, times->landed);
  EXPECT_LE(times->landed, RealClock().Now());
}

// Nobody takes them: those that find no room are lost, and the device sees all.
TEST_P(FlushedRegionTest, KeepsSomeHundredTimes) {
  Landings& landings = *region_->direct().landings;
  landings.NoteTimes(true);
  constexpr uint64_t kLandings = 400;
  for (uint64_t value = 1; value <= kLandings; ++value) {
    Put(0, value);
    ASSERT_TRUE(AwaitShown(0, value));
  }

  uint64_t taken = 0;
  uint64_t last = 0;
  while (const std::optional<LandingTimes> times = landings.TakeTimes()) {
    EXPECT_GT(times->value, last);
    last = times->value;
    ++taken;
  }
  EXPECT_GE(taken, 200u);
  EXPECT_LT(taken, kLandings);
  EXPECT_LT(last, kLandings);
}

INSTANTIATE_TEST_SUITE_P(Devices, PolledRegionTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Ordered" : "Flushed"; });
INSTANTIATE_TEST_SUITE_P(Devices, FlushedRegionTest, testing::Values(false));

}  // namespace
}  // namespace lamina::transport
