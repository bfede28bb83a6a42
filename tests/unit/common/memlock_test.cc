// SPDX-License-Identifier: Apache-2.0
#include "common/memlock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

namespace lamina {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kLimit = uint64_t{128} << 20;
constexpr uint64_t kWindows = uint64_t{1} << 30;

TEST(MemlockTest, WindowsThatVerbsCannotPinAreRefusedWithTheNumbers) {
  for (const char* const uri :
       {"verbs://", "verbs://mlx5_0?gid=3", "throttle(delay=1ms)+verbs://"}) {
    const absl::Status checked = CheckMemlock(uri, "fetch.window: 1.0 GiB", kWindows, kLimit);
    EXPECT_EQ(checked.code(), absl::StatusCode::kResourceExhausted) << uri;
    EXPECT_THAT(std::string(checked.message()),
                AllOf(HasSubstr("fetch.window: 1.0 GiB"), HasSubstr("limit is 128.0 MiB"),
                      HasSubstr("ulimit -l unlimited")));
    EXPECT_TRUE(CheckMemlock(uri, "fetch.window", kLimit, kLimit).ok());
    EXPECT_TRUE(CheckMemlock(uri, "fetch.window", kWindows, UINT64_MAX).ok());
  }
}

TEST(MemlockTest, OtherTransportsPinNothingOrMayDoWithout) {
  for (const char* const uri : {"shm://", "ucx://", "fake://unnamed"}) {
    EXPECT_TRUE(CheckMemlock(uri, "fetch.window", kWindows, kLimit).ok()) << uri;
  }
}

TEST(MemlockTest, TheLimitIsTheProcesssOrNone) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit small = {.rlim_cur = std::min<rlim_t>(65536, before.rlim_max),
                        .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);

  const uint64_t limit = MemlockLimit();

  setrlimit(RLIMIT_MEMLOCK, &before);
  EXPECT_TRUE(limit == small.rlim_cur || limit == UINT64_MAX) << limit << ": CAP_IPC_LOCK has none";
}

}  // namespace
}  // namespace lamina
