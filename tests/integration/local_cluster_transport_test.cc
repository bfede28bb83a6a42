// SPDX-License-Identifier: Apache-2.0
//
// A list of transports: the first that works carries the data, and what was passed over is said.
#include <chrono>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/local_cluster.h"

namespace lamina::test_support {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// On no host is there such a device.
constexpr char kNoDevice[] = "verbs://nosuchdevice";

std::unique_ptr<LocalCluster> Make(const std::vector<std::string>& transports) {
  auto cluster =
      LocalCluster::Create({.compute_nodes = 2, .memory_nodes = 2, .transports = transports});
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return *std::move(cluster);
}

// Status once all links have been measured.
coordinator::EngineStatus MeasuredStatus(LocalCluster& cluster, size_t links) {
  const Nanos deadline = RealClock().Now() + LocalCluster::kTimeout;
  coordinator::EngineStatus status = cluster.engine().GetStatus();
  while (status.links.size() < links && RealClock().Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    status = cluster.engine().GetStatus();
  }
  return status;
}

TEST(TransportListTest, EveryPairThatExchangesDataIsMeasured) {
  const auto cluster = Make({"shm://"});

  const coordinator::EngineStatus status = MeasuredStatus(*cluster, 5);

  std::vector<std::string> pairs;
  for (const coordinator::PairLink& link : status.links) {
    pairs.push_back(link.from + " " + link.report.peer);
    EXPECT_EQ(link.report.path, "shm");
    EXPECT_GT(link.report.latency_seconds, 0);
    EXPECT_GT(link.report.bytes_per_second, 0);
  }
  EXPECT_THAT(pairs, testing::UnorderedElementsAre("c0 m0", "c0 m1", "c0 c1", "c1 m0", "c1 m1"));
  EXPECT_THAT(status.warnings, testing::IsEmpty());
}

TEST(TransportListTest, GoesOnWithTheNextAndSaysSo) {
  const GenerateResult wanted =
      Make({"shm://"})
          ->Generate({.prompt = {1, 2, 3}, .sampling = {.temperature = 0}, .max_tokens = 9});
  const auto cluster = Make({kNoDevice, "shm://"});

  const coordinator::EngineStatus status = MeasuredStatus(*cluster, 5);
  const GenerateResult result =
      cluster->Generate({.prompt = {1, 2, 3}, .sampling = {.temperature = 0}, .max_tokens = 9});

  EXPECT_EQ(status.transport, "shm");
  EXPECT_EQ(status.links.size(), 5u);
  ASSERT_EQ(status.warnings.size(), 1u);
  EXPECT_THAT(status.warnings[0], HasSubstr("data goes by shm, not by verbs"));
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.choices[0].tokens, wanted.choices[0].tokens);
}

TEST(TransportListTest, TriesTheFirstAgainWhenANodeJoins) {
  const auto cluster = Make({kNoDevice, "shm://"});
  const uint64_t before = cluster->engine().GetStatus().epoch;
  cluster->Detach("m1");
  ASSERT_TRUE(cluster->WaitForState("serving; without m1").ok());
  const coordinator::EngineStatus without = cluster->engine().GetStatus();
  EXPECT_EQ(without.epoch, before + 1);  // No other try while nothing has come.
  EXPECT_EQ(without.warnings.size(), 1u);

  cluster->Attach("m1");

  ASSERT_TRUE(cluster->WaitForEpoch(before + 3).ok());  // One with the first, one with the next.
  EXPECT_EQ(cluster->engine().GetStatus().warnings.size(), 1u);
}

TEST(TransportListTest, NoneThatWorksIsTheNodesProblem) {
  auto cluster = LocalCluster::Create(
      {.memory_nodes = 1, .transports = {kNoDevice, "verbs://nosuchone"}, .attach = false});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  (*cluster)->Attach("c0");
  (*cluster)->Attach("m0");

  const Nanos deadline = RealClock().Now() + LocalCluster::kTimeout;
  std::string state;
  do {
    state = (*cluster)->engine().GetStatus().state;
  } while (state.find("failed") == std::string::npos && RealClock().Now() < deadline);

  EXPECT_THAT(state, AllOf(HasSubstr("failed"), HasSubstr("verbs")));
}

}  // namespace
}  // namespace lamina::test_support
