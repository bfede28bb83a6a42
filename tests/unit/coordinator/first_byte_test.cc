// SPDX-License-Identifier: Apache-2.0
#include "coordinator/first_byte.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

namespace lamina::coordinator {
namespace {

constexpr char kClear = 'P';  // "PRI * HTTP/2.0" begins with it.
constexpr char kTls = 22;

// Two ends of a connection.
std::pair<OwnedFd, OwnedFd> Pair() {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  return {OwnedFd(ends[0]), OwnedFd(ends[1])};
}

// Whether a port that speaks TLS or not takes who says `first`. It reads nothing itself.
bool Takes(bool tls, char first) {
  FirstByte gate(tls);
  std::promise<char> taken;
  gate.Start([&taken](OwnedFd connection) {
    char byte = 0;
    EXPECT_EQ(read(connection.get(), &byte, 1), 1);
    taken.set_value(byte);
  });
  auto [near, far] = Pair();
  gate.Add(std::move(far));
  EXPECT_EQ(write(near.get(), &first, 1), 1);
  char none = 0;
  EXPECT_LE(read(near.get(), &none, 1), 0) << "closed, by the handler or by the gate";
  std::future<char> byte = taken.get_future();
  const bool took = byte.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return took && byte.get() == first;
}

TEST(FirstByteTest, LetsThoseOnThatSpeakAsThePortDoes) {
  EXPECT_TRUE(Takes(/*tls=*/true, kTls));
  EXPECT_TRUE(Takes(/*tls=*/false, kClear));
}

TEST(FirstByteTest, TurnsTheOthersAway) {
  EXPECT_FALSE(Takes(/*tls=*/true, kClear));
  EXPECT_FALSE(Takes(/*tls=*/false, kTls));
}

TEST(FirstByteTest, WhoLeavesWithoutAWordIsClosed) {
  FirstByte gate(/*tls=*/true);
  gate.Start([](const OwnedFd&) { ADD_FAILURE(); });
  auto [near, far] = Pair();
  gate.Add(std::move(far));
  shutdown(near.get(), SHUT_WR);
  char none = 0;
  EXPECT_EQ(read(near.get(), &none, 1), 0);
}

TEST(FirstByteTest, StopClosesWhatHasNotSpoken) {
  FirstByte gate(/*tls=*/false);
  gate.Start([](const OwnedFd&) { ADD_FAILURE(); });
  auto [near, far] = Pair();
  gate.Add(std::move(far));
  gate.Stop();
  char none = 0;
  EXPECT_EQ(read(near.get(), &none, 1), 0);
}

// It fails for more descriptors than a process may open, which may be fewer than it has.
TEST(FirstByteTest, EndsAlsoWherePollFails) {
  FirstByte gate(/*tls=*/false);
  gate.Start([](const OwnedFd&) { ADD_FAILURE(); });
  auto [near, far] = Pair();
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  gate.Add(std::move(far));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // It has taken it, and looks again.

  gate.Stop();

  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  char none_left = 0;
  EXPECT_EQ(read(near.get(), &none_left, 1), 0);
}

}  // namespace
}  // namespace lamina::coordinator
