// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_region.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/shm/shm_transport.h"

namespace lamina::transport {
namespace {

using testing::HasSubstr;

std::unique_ptr<ShmRegion> MakeRegion(size_t bytes = 64, uint32_t words = 4) {
  auto region =
      ShmRegion::Create({.name = "unit", .bytes = bytes, .signal_words = words, .epoch = 1});
  EXPECT_TRUE(region.ok()) << region.status();
  return std::move(region).value();
}

ShmDescriptor DescriptorOf(const ShmRegion& region) {
  return DecodeShmDescriptor(region.Descriptor()).value();
}

void BusyPause(Nanos duration) {
  for (const Nanos end = RealClock().Now() + duration; RealClock().Now() < end;) {
  }
}

std::string OpenError(const ShmDescriptor& descriptor) {
  const auto remote = ShmRemoteRegion::Open(descriptor);
  EXPECT_TRUE(absl::IsUnavailable(remote.status())) << remote.status();
  return std::string(remote.status().message());
}

// Method: the waiter goes to sleep at once, and the sender, awake on another core, raises the
// signal within the fraction of a microsecond that this takes. A sleep lasts far longer than the
// test may, so that one lost wake-up fails it. The bytes before the signal, in cache lines that the
// waiter holds, keep the sender's store buffer full: without its fence it would look for a sleeper
// too early.
TEST(ShmRegionTest, NoWakeUpIsEverLost) {
  constexpr uint64_t kRounds = 100'000;
  constexpr size_t kBytes = 1024;
  const auto there = MakeRegion(kBytes);
  const auto back = MakeRegion(kBytes);
  const std::vector<std::byte> source(kBytes, std::byte{1});
  std::atomic<bool> failed = false;
  std::jthread sender([&] {
    const auto remote = ShmRemoteRegion::Open(DescriptorOf(*there)).value();
    Prng prng(1);
    for (uint64_t round = 1; round <= kRounds && !failed; ++round) {
      while (back->LoadSignal(0) < round && !failed) {
        // One core for both: let the waiter go on.
        if (prng.Chance(0.001)) {
          std::this_thread::yield();
        }
      }
      BusyPause(static_cast<Nanos>(prng.Below(400)));
      const SignalUpdate signal = {.word = 0, .value = round};
      EXPECT_TRUE(remote->Put(0, source, &signal).ok());
    }
  });

  const auto remote = ShmRemoteRegion::Open(DescriptorOf(*back)).value();
  for (uint64_t round = 1; round <= kRounds && !failed; ++round) {
    std::fill(there->bytes().begin(), there->bytes().end(), std::byte{0});
    const SignalUpdate signal = {.word = 0, .value = round};
    ASSERT_TRUE(remote->Put(0, {}, &signal).ok());
    const std::array come = {SignalCondition{.word = 0, .at_least = round}};
    const Nanos start = RealClock().Now();
    while (!there->FirstHolding(come)) {
      there->Sleep(come, Seconds(20));
    }
    failed = RealClock().Now() - start >= Seconds(15);
  }
  EXPECT_FALSE(failed) << "a wake-up was lost";
}

// From here on the kernel kills this process at any system call but its end.
void GiveUpSystemCalls() {
  std::array<sock_filter, 4> program = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter = {.len = program.size(), .filter = program.data()};
  EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST(ShmRegionTest, MessagesMakeNoSystemCallWhileNobodySleeps) {
  const auto transport = MakeShmTransport();
  const auto region =
      transport->CreateRegion({.name = "calm", .bytes = 4096, .signal_words = 1}).value();
  const auto remote = transport->OpenRegion(region->Descriptor(), 0).value();
  const std::vector<std::byte> source(4096, std::byte{1});
  const auto run = [&](uint64_t first, uint64_t count) {
    bool ok = true;
    for (uint64_t value = first; value < first + count; ++value) {
      const SignalUpdate signal = {.word = 0, .value = value};
      const std::array come = {SignalCondition{.word = 0, .at_least = value}};
      ok = transport->Put(*remote, 0, source, &signal).ok() &&
           transport->Wait(*region, come, {}).ok() && ok;
    }
    return ok;
  };
  ASSERT_TRUE(run(1, 10));
  const pid_t child = fork();
  if (child == 0) {
    GiveUpSystemCalls();
    const bool ok = run(11, 10'000);
    syscall(SYS_exit_group, ok ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);

  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(region->LoadSignal(0), 10'010u);
}

TEST(ShmRegionTest, EachSignalWordHasItsOwnCacheLine) {
  EXPECT_EQ(sizeof(ShmSignalWord), kCacheLineBytes);
}

TEST(ShmRegionTest, SizeIsSealed) {
  const auto region = MakeRegion();
  const ShmDescriptor descriptor = DescriptorOf(*region);
  const FileDescriptor file =
      OpenSharedFile(descriptor.pid, descriptor.fd,
                     MakeShmLayout(descriptor.data_bytes, descriptor.signal_words).total_bytes)
          .value();

  EXPECT_NE(ftruncate(file.get(), 0), 0);
  EXPECT_NE(ftruncate(file.get(), 1 << 20), 0);
}

TEST(ShmRegionTest, OnlyItsUserMayOpenIt) {
  const auto region = MakeRegion();
  struct stat about = {};

  ASSERT_EQ(fstat(static_cast<int>(DescriptorOf(*region).fd), &about), 0);

  EXPECT_EQ(about.st_mode & 0777, 0600u);
}

TEST(ShmRegionTest, DescriptorOfAnotherHostSaysWhatToUse) {
  const auto region = MakeRegion();
  ShmDescriptor descriptor = DescriptorOf(*region);
  descriptor.host ^= 1;

  EXPECT_THAT(OpenError(descriptor), HasSubstr("use ucx://"));
}

TEST(ShmRegionTest, ProcessThatDoesNotExistIsUnavailable) {
  const auto region = MakeRegion();
  ShmDescriptor descriptor = DescriptorOf(*region);
  descriptor.pid = 1u << 30;

  EXPECT_THAT(OpenError(descriptor), HasSubstr("or its region is gone"));
}

// The number of a closed region may come back as any other file, a pipe that blocks on opening too.
TEST(ShmRegionTest, FileThatIsNoRegionIsNotOpened) {
  const auto region = MakeRegion();
  ShmDescriptor descriptor = DescriptorOf(*region);
  std::array<int, 2> ends = {-1, -1};
  ASSERT_EQ(pipe(ends.data()), 0);
  for (const int fd : ends) {
    descriptor.fd = static_cast<uint32_t>(fd);
    EXPECT_THAT(OpenError(descriptor), HasSubstr("not a region"));
    close(fd);
  }
}

TEST(ShmRegionTest, RegionOfTheSameSizeInItsPlaceIsRefused) {
  const auto region = MakeRegion();
  const auto other = MakeRegion();
  ShmDescriptor descriptor = DescriptorOf(*region);
  descriptor.fd = DescriptorOf(*other).fd;

  EXPECT_THAT(OpenError(descriptor), HasSubstr("another region in its place"));
}

TEST(ShmRegionTest, RegionOfAnotherSizeInItsPlaceIsRefused) {
  const auto region = MakeRegion(64);
  const auto other = MakeRegion(64 << 10);
  ShmDescriptor descriptor = DescriptorOf(*region);
  descriptor.fd = DescriptorOf(*other).fd;

  EXPECT_THAT(OpenError(descriptor), HasSubstr("not the region that was described"));
}

TEST(ShmRegionTest, FileThatIsNotSealedIsRefused) {
  const auto region = MakeRegion();
  ShmDescriptor descriptor = DescriptorOf(*region);
  const FileDescriptor file(memfd_create("lamina", MFD_CLOEXEC));
  const size_t total = MakeShmLayout(descriptor.data_bytes, descriptor.signal_words).total_bytes;
  ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(total)), 0);
  descriptor.fd = static_cast<uint32_t>(file.get());

  EXPECT_THAT(OpenError(descriptor), HasSubstr("not the region that was described"));
}

TEST(ShmRegionTest, SizesThatCannotBeAreInvalid) {
  const auto region = MakeRegion();
  ShmDescriptor descriptor = DescriptorOf(*region);
  descriptor.data_bytes = UINT64_MAX;
  EXPECT_TRUE(absl::IsInvalidArgument(ShmRemoteRegion::Open(descriptor).status()));
  descriptor = DescriptorOf(*region);
  descriptor.signal_words = UINT32_MAX;
  EXPECT_TRUE(absl::IsInvalidArgument(ShmRemoteRegion::Open(descriptor).status()));
}

// Past the checksum: what a peer with a bug, not a line with noise, could send.
TEST(ShmRegionTest, NoFieldCanBeChangedUnnoticed) {
  const auto region = MakeRegion();
  Prng prng(3);
  for (int i = 0; i < 5000; ++i) {
    ShmDescriptor descriptor = DescriptorOf(*region);
    const uint64_t change = uint64_t{1} << prng.Below(64);
    switch (prng.Below(7)) {
      case 0:
        descriptor.host ^= change;
        break;
      case 1:
        // Above every number in use: those of this process's threads lead to the same file.
        descriptor.pid ^= 1u << (23 + prng.Below(9));
        break;
      case 2:
        descriptor.fd ^= static_cast<uint32_t>(change >> 16 | 1);
        break;
      case 3:
        descriptor.epoch ^= change;
        break;
      case 4:
        descriptor.key[change & 1] ^= change;
        break;
      case 5:
        descriptor.data_bytes ^= change;
        break;
      case 6:
        descriptor.signal_words ^= static_cast<uint32_t>(change >> 16 | 1);
        break;
    }
    ASSERT_FALSE(ShmRemoteRegion::Open(descriptor).ok()) << i;
  }
}

TEST(ShmRegionTest, NoFreeFileDescriptorIsResourceExhausted) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Leaves room to read /proc, which comes first, and none after the files held here.
  const rlimit tight = {.rlim_cur = 16, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::vector<std::unique_ptr<ShmRegion>> regions;
  absl::Status status;
  while (status.ok() && regions.size() < 100) {
    auto region = ShmRegion::Create({.name = "many", .bytes = 64});
    status = region.status();
    if (region.ok()) {
      regions.push_back(std::move(region).value());
    }
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);

  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -n"));
}

TEST(ShmRegionTest, DestroyedRegionGivesItsFileBack) {
  const auto count = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto before = count();
  for (int i = 0; i < 100; ++i) {
    const auto region = MakeRegion();
    const auto remote = ShmRemoteRegion::Open(DescriptorOf(*region)).value();
  }

  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace lamina::transport
