// SPDX-License-Identifier: Apache-2.0
//
// What SIGTERM does while a daemon serves, and while it ends; and what does not end it.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "daemon/daemon.h"

namespace lamina::daemon {
namespace {

using namespace std::chrono_literals;

constexpr int kFirst = 3;
constexpr int kSecond = 4;
constexpr int kNothing = 5;  // No signal ended the process.
constexpr int kHandlerRuns = 6;
constexpr int kHandlerEnded = 7;
constexpr int kTooLarge = 8;

class TerminationDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // This is how daemons begin.
  static void Begin() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    EndOnTermination();
  }

  static void EndWhileAHandlerRuns() {
    Begin();
    std::atomic<bool> runs = false;
    std::atomic<bool> ended = false;
    {
      const TerminationHandlers handlers(
          [&] {
            runs = true;
            runs.notify_all();
            std::this_thread::sleep_for(50ms);
            ended = true;
          },
          [] { _exit(kSecond); });
      kill(getpid(), SIGTERM);
      runs.wait(false);
    }
    _exit(ended ? kHandlerEnded : kHandlerRuns);
  }

  static void TellWhileItEnds() {
    Begin();
    {
      const TerminationHandlers handlers([] { _exit(kFirst); }, [] { _exit(kSecond); });
    }
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(30s);
    _exit(kNothing);
  }

  static void TellTwice() {
    Begin();
    std::atomic<bool> told = false;
    const TerminationHandlers handlers(
        [&] {
          told = true;
          told.notify_all();
        },
        [] { _exit(kSecond); });
    kill(getpid(), SIGTERM);
    told.wait(false);
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(30s);
    _exit(kNothing);
  }

  static void WriteBehindTheLimit() {
    Begin();
    std::string path = ::testing::TempDir() + "/termination-XXXXXX";
    const int file = mkstemp(path.data());
    unlink(path.c_str());
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_FSIZE, &limit);
    const char byte = 'a';
    const bool refused = write(file, &byte, 1) < 0 && errno == EFBIG;
    _exit(refused ? kTooLarge : kNothing);
  }
};

TEST_F(TerminationDeathTest, HandlersAreCalledInTurn) {
  EXPECT_EXIT(TellTwice(), ::testing::ExitedWithCode(kSecond), "");
}

TEST_F(TerminationDeathTest, HandlersThatAreGoneAreNotCalled) {
  EXPECT_EXIT(TellWhileItEnds(), ::testing::ExitedWithCode(0), "");
}

TEST_F(TerminationDeathTest, AHandlerThatRunsIsWaitedFor) {
  EXPECT_EXIT(EndWhileAHandlerRuns(), ::testing::ExitedWithCode(kHandlerEnded), "");
}

// Else a daemon ended with its log, its journal or its spill tier (`ulimit -f`, LimitFSIZE).
TEST_F(TerminationDeathTest, AFileThatMayNotGrowIsAnError) {
  EXPECT_EXIT(WriteBehindTheLimit(), ::testing::ExitedWithCode(kTooLarge), "");
}

}  // namespace
}  // namespace lamina::daemon
