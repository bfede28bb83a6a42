// SPDX-License-Identifier: Apache-2.0
#include "common/last_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/cores.h"

namespace lamina {
namespace {

class LastCacheTest : public testing::Test {
 protected:
  void SetUp() override { folder_ = testing::TempDir() + "last_cache_" + std::to_string(getpid()); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void AddCache(int core, int index, const std::string& size, const std::string& sharing) const {
    const std::string cache =
        folder_ + "/cpu" + std::to_string(core) + "/cache/index" + std::to_string(index);
    std::filesystem::create_directories(cache);
    std::ofstream(cache + "/size") << size << "\n";
    std::ofstream(cache + "/shared_cpu_list") << sharing << "\n";
  }

  std::string folder_;
};

TEST_F(LastCacheTest, CachesThatCoresShareCountOnce) {
  for (int core = 0; core < 6; ++core) {
    AddCache(core, 0, "48K", std::to_string(core));
    AddCache(core, 1, "2048K", std::to_string(core));
    AddCache(core, 2, "32768K", core < 4 ? "0-3" : "4-5");
  }
  EXPECT_EQ(LastCacheBytes({0, 1, 3}, folder_), 32u << 20);
  EXPECT_EQ(LastCacheBytes({0, 1, 5}, folder_), 64u << 20);
}

TEST_F(LastCacheTest, CoresMayEndAtDifferentLevels) {
  AddCache(0, 0, "48K", "0");
  AddCache(0, 1, "1024K", "0-1");
  AddCache(2, 0, "64K", "2");
  EXPECT_EQ(LastCacheBytes({0, 2}, folder_), (1024u + 64u) << 10);
}

TEST_F(LastCacheTest, WhatTheKernelDoesNotSayIsZero) {
  AddCache(0, 0, "large", "0");
  EXPECT_EQ(LastCacheBytes({0, 7}, folder_), 0u);
  EXPECT_EQ(LastCacheBytes({}, folder_), 0u);
}

TEST(CoresOfThreadTest, AreNotMissing) {
  const std::vector<int> cores = CoresOfThread();
  EXPECT_FALSE(cores.empty());
  EXPECT_TRUE(CoresMissing(cores).empty());
}

TEST(CoresOfThreadTest, OthersAreWithoutThoseThatAreNamed) {
  const std::vector<int> cores = CoresOfThread();
  ASSERT_FALSE(cores.empty());
  EXPECT_EQ(CoresBut({}), cores);
  EXPECT_EQ(CoresBut({-1, cores.front()}), std::vector<int>(cores.begin() + 1, cores.end()));
  EXPECT_TRUE(CoresBut(cores).empty());
}

}  // namespace
}  // namespace lamina
