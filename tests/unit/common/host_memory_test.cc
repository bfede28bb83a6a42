// SPDX-License-Identifier: Apache-2.0
#include "common/host_memory.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lamina {
namespace {

using testing::HasSubstr;

// A tree that stands for "/".
class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:  2000 kB\nMemAvailable:   1000 kB\nSwapFree: 0 kB\n");
  }
  ~HostMemoryTest() override { std::filesystem::remove_all(root_); }
  HostMemoryTest(const HostMemoryTest&) = delete;
  HostMemoryTest& operator=(const HostMemoryTest&) = delete;

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_ = testing::TempDir() + "host_memory_test";
};

TEST_F(HostMemoryTest, HostAloneGivesItsAvailableMemory) {
  const HostMemory memory = QueryHostMemory(root_);

  EXPECT_EQ(memory.available_bytes, 1000u << 10);
  EXPECT_THAT(memory.limit, HasSubstr("host"));
}

TEST_F(HostMemoryTest, NothingReadableMeansNoKnownLimit) {
  EXPECT_GE(QueryHostMemory(root_ + "/absent").available_bytes, uint64_t{1} << 62);
}

TEST_F(HostMemoryTest, GroupLimitCountsFilePagesAsFree) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "100000\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "80000\n");
  Write("/sys/fs/cgroup/a/b/memory.stat", "anon 1\nactive_file 10000\ninactive_file 20000\n");

  const HostMemory memory = QueryHostMemory(root_);

  EXPECT_EQ(memory.available_bytes, 50000u);
  EXPECT_THAT(memory.limit, HasSubstr("/a/b"));
}

TEST_F(HostMemoryTest, LimitOfAnAncestorBinds) {
  Write("/proc/self/cgroup", "1:name=old:/x\n0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/memory.max", "7000\n");
  Write("/sys/fs/cgroup/a/memory.current", "8000\n");

  const HostMemory memory = QueryHostMemory(root_);

  EXPECT_EQ(memory.available_bytes, 0u);
  EXPECT_THAT(memory.limit, HasSubstr("control group /a"));
}

TEST_F(HostMemoryTest, Version1CountsFilePagesOfAllBelowAsFree) {
  Write("/proc/self/cgroup", "5:cpu,memory:/a/b\n1:name=old:/x\n0::/\n");
  Write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "100000\n");
  Write("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "80000\n");
  Write("/sys/fs/cgroup/memory/a/b/memory.stat",
        "active_file 1\nhierarchical_memory_limit 9223372036854771712\n"
        "total_inactive_file 20000\ntotal_active_file 10000\n");

  const HostMemory memory = QueryHostMemory(root_);

  EXPECT_EQ(memory.available_bytes, 50000u);
  EXPECT_THAT(memory.limit, HasSubstr("memory.limit_in_bytes of control group /a/b"));
}

TEST_F(HostMemoryTest, Version1WithoutLimitsIsNoLimit) {
  Write("/proc/self/cgroup", "5:memory:/a\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "80000\n");

  EXPECT_EQ(QueryHostMemory(root_).available_bytes, 1000u << 10);
}

// A container sees the root of its own tree alone, where the path that the kernel names is not.
TEST_F(HostMemoryTest, Version1SeesLimitsAboveAContainer) {
  Write("/proc/self/cgroup", "5:memory:/docker/0123\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "2000\n");
  Write("/sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 9000\n");

  const HostMemory memory = QueryHostMemory(root_);

  EXPECT_EQ(memory.available_bytes, 7000u);
  EXPECT_THAT(memory.limit, HasSubstr("control group /"));
}

TEST_F(HostMemoryTest, ThisHostAnswers) { EXPECT_GT(QueryHostMemory().available_bytes, 0u); }

}  // namespace
}  // namespace lamina
