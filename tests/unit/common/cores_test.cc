// SPDX-License-Identifier: Apache-2.0
#include "common/cores.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lamina {
namespace {

using testing::HasSubstr;

TEST(CoresTest, ThoseThatThisThreadMayNotUseAreMissing) {
  cpu_set_t mine;
  ASSERT_EQ(pthread_getaffinity_np(pthread_self(), sizeof(mine), &mine), 0);
  std::vector<int> here;
  std::vector<int> elsewhere = {-1, CPU_SETSIZE};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    (CPU_ISSET(static_cast<size_t>(core), &mine) ? here : elsewhere).push_back(core);
  }
  EXPECT_EQ(CoresMissing({}), std::vector<int>{});
  EXPECT_EQ(CoresMissing(here), std::vector<int>{});
  std::vector<int> all = here;
  all.insert(all.end(), elsewhere.begin(), elsewhere.end());
  EXPECT_EQ(CoresMissing(all), elsewhere);
}

TEST(CoresTest, ThreadsAreBoundedByTheCoresThatThereAre) {
  cpu_set_t mine;
  ASSERT_EQ(pthread_getaffinity_np(pthread_self(), sizeof(mine), &mine), 0);
  const auto cores = static_cast<size_t>(CPU_COUNT(&mine));
  const size_t most = std::max<size_t>(kThreadsAlways, cores * kThreadsPerCoreMax);

  EXPECT_TRUE(CheckThreads("c0: threads", most).ok());
  const absl::Status refused = CheckThreads("c0: threads", most + 1);

  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("c0: threads: ", most + 1)));
  EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("the ", cores, " core")));
}

}  // namespace
}  // namespace lamina
