// SPDX-License-Identifier: Apache-2.0
#include "daemon/service_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace lamina::daemon {
namespace {

using ::testing::Contains;
using ::testing::Not;

// The manager's end: a socket of ours.
class Manager {
 public:
  explicit Manager(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    unlink(path.c_str());
    fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Manager() { close(fd_); }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  std::string Next() const {
    char text[256];
    const ssize_t size = recv(fd_, text, sizeof(text), 0);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }
  std::vector<std::string> Take(int count) const {
    std::vector<std::string> taken;
    for (int i = 0; i < count; ++i) {
      taken.push_back(Next());
    }
    return taken;
  }

 private:
  int fd_ = -1;
};

TEST(ServiceManagerTest, TellsItsLife) {
  const std::string path = testing::TempDir() + "/notify";
  const Manager manager(path);
  ServiceManager service(path, /*watchdog=*/0);
  service.Ready();
  service.Stopping();
  EXPECT_EQ(manager.Next(), "READY=1");
  EXPECT_EQ(manager.Next(), "STOPPING=1");
}

TEST(ServiceManagerTest, TellsTheStatusOnceAndThatItLivesAgainAndAgain) {
  const std::string path = testing::TempDir() + "/notify";
  const Manager manager(path);
  ServiceManager service(path, Millis(3));
  service.Watch([] { return std::string("serving; epoch 1"); }, [] { return true; });
  EXPECT_EQ(manager.Take(4), (std::vector<std::string>{"STATUS=serving; epoch 1", "WATCHDOG=1",
                                                       "WATCHDOG=1", "WATCHDOG=1"}));
}

TEST(ServiceManagerTest, SaysNothingOfADaemonThatDoesNotLive) {
  const std::string path = testing::TempDir() + "/notify";
  const Manager manager(path);
  std::atomic<int> looks{0};
  ServiceManager service(path, Millis(3));
  service.Watch([&looks] { return std::to_string(++looks); }, [] { return false; });
  EXPECT_THAT(manager.Take(4), Not(Contains("WATCHDOG=1")));
}

TEST(ServiceManagerTest, NothingWaitsForAManagerThatDoesNotReadAndNothingIsLost) {
  const std::string path = testing::TempDir() + "/notify";
  const Manager manager(path);
  std::atomic<bool> serving{false};
  std::atomic<int> looks{0};
  ServiceManager service(path, Micros(30));
  service.Watch([&serving] { return std::string(serving ? "serving" : "waiting for c0"); },
                [&looks] {
                  ++looks;
                  return true;
                });
  while (looks < 1000) {  // Far more than the kernel keeps.
    std::this_thread::yield();
  }
  serving = true;
  service.Ready();
  service.Stopping();
  const int before = looks;
  while (looks < before + 2) {
    std::this_thread::yield();
  }

  std::vector<std::string> told;
  while (told.empty() || told.back() != "STATUS=serving") {
    told.push_back(manager.Next());
  }
  EXPECT_EQ(told.front(), "STATUS=waiting for c0");
  std::erase(told, "WATCHDOG=1");
  EXPECT_EQ(told, (std::vector<std::string>{"STATUS=waiting for c0", "READY=1", "STOPPING=1",
                                            "STATUS=serving"}));
}

TEST(ServiceManagerTest, NeedsNobodyWhoListens) {
  ServiceManager nobody("", Millis(3));
  nobody.Ready();
  nobody.Watch([] { return std::string("x"); }, [] { return true; });
  ServiceManager gone(testing::TempDir() + "/no-such-socket", 0);
  gone.Ready();
}

TEST(ProgressWatchTest, BeatsOrTheWantOfAnEpochAreLife) {
  ProgressWatch watch;
  const auto at = [](ThreadActivity activity, uint64_t beats) {
    telemetry::NodeCounters counters;
    counters.activity = activity;
    counters.beats = beats;
    return counters;
  };
  EXPECT_TRUE(watch.Alive(at(ThreadActivity::kWorking, 7)));
  EXPECT_FALSE(watch.Alive(at(ThreadActivity::kWorking, 7)));
  EXPECT_TRUE(watch.Alive(at(ThreadActivity::kIdle, 8)));
  EXPECT_FALSE(watch.Alive(at(ThreadActivity::kIdle, 8))) << "it naps, and raises at each nap";
  EXPECT_TRUE(watch.Alive(at(ThreadActivity::kNone, 8)));
  EXPECT_TRUE(watch.Alive(at(ThreadActivity::kPreparing, 8)));
}

}  // namespace
}  // namespace lamina::daemon
