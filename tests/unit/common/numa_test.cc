// SPDX-License-Identifier: Apache-2.0
#include "common/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace lamina {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class NumaNodesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "numa_nodes_" + std::to_string(getpid());
    AddNode("node0", "0-1,8-9");
    AddNode("node1", "2-3,10");
    AddNode("node12", "4");
    AddNode("possible", "0-1");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void AddNode(const std::string& name, const std::string& cores) const {
    std::filesystem::create_directories(folder_ + "/" + name);
    std::ofstream(folder_ + "/" + name + "/cpulist") << cores << "\n";
  }

  std::string folder_;
};

TEST_F(NumaNodesTest, AreThoseThatHaveTheCores) {
  EXPECT_THAT(NumaNodesOf({2}, folder_), ElementsAre(1));
  EXPECT_THAT(NumaNodesOf({9}, folder_), ElementsAre(0));
  EXPECT_THAT(NumaNodesOf({4, 10, 1}, folder_), ElementsAre(0, 1, 12));
}

TEST_F(NumaNodesTest, AreNoneWhereTheKernelNamesNone) {
  EXPECT_THAT(NumaNodesOf({7}, folder_), IsEmpty());
  EXPECT_THAT(NumaNodesOf({}, folder_), IsEmpty());
  EXPECT_THAT(NumaNodesOf({0}, folder_ + "/nothing"), IsEmpty());
}

int PolicyOfThisThread(unsigned long& mask) {
  int mode = -1;
  mask = 0;
  EXPECT_EQ(syscall(SYS_get_mempolicy, &mode, &mask, 8 * sizeof(mask), nullptr, 0), 0);
  return mode;
}

TEST(PreferMemoryTest, ThreadsThatAreStartedLaterPreferTheSame) {
  const absl::Status preferred = PreferMemoryOf({0});
  if (!preferred.ok()) {
    // A container may forbid it, and a kernel may have no NUMA nodes.
    EXPECT_THAT(preferred.message(), testing::HasSubstr("set_mempolicy: "));
    return;
  }
  unsigned long mask = 0;
  std::thread([&mask] {
    EXPECT_NE(PolicyOfThisThread(mask), MPOL_DEFAULT);
    EXPECT_EQ(mask, 1u);
  }).join();
  EXPECT_TRUE(PreferMemoryOf({}).ok());
  EXPECT_EQ(PolicyOfThisThread(mask), MPOL_DEFAULT);
}

TEST(PreferMemoryTest, ANodeThatDoesNotExistIsRefused) { EXPECT_FALSE(PreferMemoryOf({900}).ok()); }

}  // namespace
}  // namespace lamina
