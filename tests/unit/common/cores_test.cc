// SPDX-License-Identifier: Apache-2.0
#include "common/cores.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <cstddef>
#include <vector>

namespace lamina {
namespace {

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

}  // namespace
}  // namespace lamina
