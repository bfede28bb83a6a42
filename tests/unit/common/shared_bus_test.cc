// SPDX-License-Identifier: Apache-2.0
#include "common/shared_bus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/link_options.h"
#include "common/philox.h"

namespace lamina {
namespace {

std::string NameOf(const char* test) { return absl::StrCat(test, "-", getpid()); }
std::string PathOf(const std::string& name) {
  return absl::StrCat("/dev/shm/lamina-bus-", getuid(), "-", name);
}

TEST(SharedBusTest, TransfersTakeTurnsAndIdlenessSavesNothing) {
  const std::string name = NameOf("turns");
  const auto one = *SharedBus::Open(name, 1'000'000'000);
  const auto other = *SharedBus::Open(name, 1'000'000'000);
  EXPECT_EQ(one->Take(100, 1000), 1100);
  EXPECT_EQ(other->Take(50, 1000), 1150);
  EXPECT_EQ(one->Take(0, 1000), 1150);
  EXPECT_EQ(other->Take(10, 5000), 5010);
  EXPECT_EQ(one->bytes(), 100u);
  EXPECT_EQ(other->bytes(), 60u);
}

// What several hand over at once takes as long as all of it.
TEST(SharedBusTest, NothingIsLostBetweenThreads) {
  const std::string name = NameOf("threads");
  const auto bus = *SharedBus::Open(name, 1'000'000'000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&name] {
      const auto own = *SharedBus::Open(name, 1'000'000'000);
      for (int k = 0; k < 1000; ++k) {
        own->Take(7, 100);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(bus->Take(0, 0), 100 + 4 * 1000 * 7);
}

// What transfers carry is counted by who makes them, their time by who hands them over.
TEST(SharedBusTest, BytesOfAllKindsAreBandwidthTimesBusyTime) {
  constexpr uint64_t kBandwidth = 314'159'265;
  const std::string name = NameOf("kinds");
  const auto bus = *SharedBus::Open(name, kBandwidth);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kBusKinds; ++i) {
    threads.emplace_back([&name, i] {
      const auto own = *SharedBus::Open(name, kBandwidth);
      Prng random(i);
      for (Nanos now = 0; now < Millis(1); now += Micros(1)) {
        const uint64_t bytes = 64 + random.Below(100'000);
        own->Take(bytes, now);
        own->Count(static_cast<BusKind>(i), bytes);
      }
      EXPECT_GE(own->Totals().bytes[i], own->bytes());
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }

  const BusTotals totals = bus->Totals();

  EXPECT_EQ(totals.bytes_per_second, kBandwidth);
  const auto bytes =
      static_cast<double>(std::accumulate(totals.bytes.begin(), totals.bytes.end(), uint64_t{0}));
  EXPECT_GT(bytes, 1000 * 64 * kBusKinds);
  EXPECT_NEAR(bytes, static_cast<double>(kBandwidth) * totals.busy_seconds, 1e-4 * bytes);
  EXPECT_THAT(totals.bytes, testing::Each(testing::Gt(0u)));
}

TEST(SharedBusTest, KindsHaveNames) {
  std::vector<std::string> names;
  for (size_t kind = 0; kind < kBusKinds; ++kind) {
    names.emplace_back(NameOf(static_cast<BusKind>(kind)));
  }
  EXPECT_THAT(names, testing::ElementsAre("kv", "activations", "weights", "rows", "probes"));
}

TEST(OpenBusOfTest, FindsTheOneThatAThrottleNames) {
  const std::string name = NameOf("uri");
  const auto named = OpenBusOf(absl::StrCat("throttle(bandwidth=1MB,bus=", name, ")+shm://"));
  ASSERT_TRUE(named.ok()) << named.status();
  ASSERT_NE(*named, nullptr);
  (*named)->Count(BusKind::kRows, 7);
  EXPECT_EQ((*SharedBus::Open(name, 1'000'000))->Totals().bytes[3], 7u);
  EXPECT_EQ((*named)->Totals().bytes_per_second, 1'000'000u);
  for (const char* uri : {"shm://", "throttle(bandwidth=1MB)+shm://", "throttle("}) {
    const auto none = OpenBusOf(uri);
    ASSERT_TRUE(none.ok()) << none.status();
    EXPECT_EQ(*none, nullptr) << uri;
  }
  EXPECT_EQ(OpenBusOf("throttle(bus=a)+shm://").status().code(),
            absl::StatusCode::kInvalidArgument);
  const BusTally nowhere;
  nowhere.Count(BusKind::kRows, 7);  // A node without a bus counts nothing.
}

TEST(SharedBusTest, TheFileGoesWithTheLastOne) {
  const std::string name = NameOf("last");
  auto one = *SharedBus::Open(name, 1000);
  auto other = *SharedBus::Open(name, 1000);
  one.reset();
  EXPECT_TRUE(std::filesystem::exists(PathOf(name)));
  other.reset();
  EXPECT_FALSE(std::filesystem::exists(PathOf(name)));
}

TEST(SharedBusTest, OneThatWasKilledIsInNobodysWay) {
  const std::string name = NameOf("killed");
  const pid_t child = fork();
  if (child == 0) {
    const auto bus = SharedBus::Open(name, 1'000'000'000);
    (*bus)->Take(100, 0);
    _exit(bus.ok() ? 0 : 1);  // As if it were killed: nothing is put away.
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::exists(PathOf(name)));
  EXPECT_EQ((*SharedBus::Open(name, 1'000'000'000))->Take(1, 0), 101);
  EXPECT_FALSE(std::filesystem::exists(PathOf(name)));
}

TEST(SharedBusTest, NamesAreNoPaths) {
  EXPECT_TRUE(IsBusName("pcie0.to"));
  for (const char* name : {"", "a/b", "..%", "a b"}) {
    EXPECT_FALSE(IsBusName(name)) << name;
    EXPECT_EQ(SharedBus::Open(name, 1).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(IsBusName(std::string(65, 'a')));
  EXPECT_TRUE(IsBusName(absl::StrCat(std::string(64, 'a'), ".from")))
      << "as a node calls its direction";
  EXPECT_FALSE(IsBusName(".from"));
}

TEST(WithBusDirectionTest, LengthensTheNameOfTheBus) {
  EXPECT_EQ(WithBusDirection("throttle(bandwidth=1MB,bus=a,latency=1us)+shm://", "to"),
            "throttle(bandwidth=1MB,bus=a.to,latency=1us)+shm://");
  EXPECT_EQ(WithBusDirection("throttle(bandwidth=1MB,bus=a)+shm://", "from"),
            "throttle(bandwidth=1MB,bus=a.from)+shm://");
  EXPECT_EQ(WithBusDirection("throttle(bandwidth=1MB)+shm://", "to"),
            "throttle(bandwidth=1MB)+shm://");
  EXPECT_EQ(WithBusDirection("shm://?bus=a", "to"), "shm://?bus=a");
}

}  // namespace
}  // namespace lamina
