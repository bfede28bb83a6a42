// SPDX-License-Identifier: Apache-2.0
//
// Conformance between processes: a peer is killed at the worst moments, and comes back.
//
// Method: the peer is a forked child that talks to the test by two pipes and dies by SIGKILL.
// Children are forked before the test makes a Transport, since a library's threads do not survive
// fork(). Backends that cross processes are listed at the end.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>

#include "tests/conformance/transport_test.h"
#include "transport/registry.h"

namespace lamina::transport {
namespace {

// One end of a pair of pipes. Descriptors go over it, as they go over the control plane.
class Pipe {
 public:
  Pipe(int in, int out) : in_(in), out_(out) {}

  void Send(const std::string& bytes) const {
    const uint32_t size = static_cast<uint32_t>(bytes.size());
    const std::string frame = std::string(reinterpret_cast<const char*>(&size), 4) + bytes;
    EXPECT_EQ(write(out_, frame.data(), frame.size()), static_cast<ssize_t>(frame.size()));
  }

  // Empty when the other end is gone.
  std::string Receive() const {
    uint32_t size = 0;
    if (!ReadAll(reinterpret_cast<char*>(&size), 4)) {
      return "";
    }
    std::string bytes(size, '\0');
    return ReadAll(bytes.data(), size) ? bytes : "";
  }

 private:
  bool ReadAll(char* data, size_t size) const {
    for (size_t have = 0; have < size;) {
      const ssize_t count = read(in_, data + have, size - have);
      if (count <= 0) {
        return false;
      }
      have += static_cast<size_t>(count);
    }
    return true;
  }

  const int in_;
  const int out_;
};

// A forked process that runs `body` and exits with 0 if nothing in it failed.
class Child {
 public:
  using Body = std::function<void(const Pipe& pipe)>;

  explicit Child(const Body& body) {
    EXPECT_EQ(pipe(to_child_.data()), 0);
    EXPECT_EQ(pipe(to_parent_.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      // A test that ends early must leave no child behind.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(to_child_[1]);
      close(to_parent_[0]);
      body(Pipe(to_child_[0], to_parent_[1]));
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    close(to_child_[0]);
    close(to_parent_[1]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    Kill();
    close(to_child_[1]);
    close(to_parent_[0]);
  }

  Pipe pipe_to() const { return {to_parent_[0], to_child_[1]}; }

  // Returns when it is dead and its memory is gone.
  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(std::exchange(pid_, -1), nullptr, 0);
    }
  }

  bool ExitedWell() {
    int status = -1;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  std::array<int, 2> to_child_ = {-1, -1};
  std::array<int, 2> to_parent_ = {-1, -1};
  pid_t pid_ = -1;
};

constexpr std::array kFirst = {SignalCondition{.word = 0, .at_least = 1}};

// A URI, and whether regions lie in a device's memory.
struct ProcessBackend {
  std::string name;
  std::string uri;
  bool on_device = false;
};

void PrintTo(const ProcessBackend& backend, std::ostream* out) { *out << backend.name; }

class TransportProcessTest : public testing::TestWithParam<ProcessBackend> {
 protected:
  static std::unique_ptr<Transport> Make() {
    static auto* const device = new test_support::EmulatedDeviceMemory;  // Of each process.
    auto transport = MakeTransport(GetParam().uri, GetParam().on_device ? device : nullptr);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return std::move(transport).value();
  }

  static std::unique_ptr<Region> MakeRegion(Transport& transport, size_t bytes, uint32_t words) {
    auto region = transport.CreateRegion(
        {.name = "process",
         .bytes = bytes,
         .signal_words = words,
         .kind = GetParam().on_device ? MemoryKind::kDevice : MemoryKind::kHost,
         .epoch = 3});
    EXPECT_TRUE(region.ok()) << region.status();
    return std::move(region).value();
  }

  static std::unique_ptr<RemoteRegion> Open(Transport& transport, const std::string& descriptor) {
    auto remote = transport.OpenRegion(descriptor, 3);
    EXPECT_TRUE(remote.ok()) << remote.status();
    return std::move(remote).value();
  }
};

// What most children do first: open the region that the parent describes.
struct SenderInChild {
  SenderInChild(std::unique_ptr<Transport> made, const Pipe& pipe) : transport(std::move(made)) {
    EXPECT_TRUE(transport->RegisterSource(source, MemoryKind::kHost).ok());
    auto opened = transport->OpenRegion(pipe.Receive(), 3);
    EXPECT_TRUE(opened.ok()) << opened.status();
    remote = std::move(opened).value();
  }
  std::vector<std::byte> source = Pattern(1 << 16, 1);
  std::unique_ptr<Transport> transport;
  std::unique_ptr<RemoteRegion> remote;
};

// Until the sources are read; some backends move nothing otherwise.
void Drain(const SenderInChild& sender) {
  for (const Nanos deadline = Soon();
       sender.transport->Pending(*sender.remote) > 0 && RealClock().Now() < deadline;) {
    sender.transport->Progress();
  }
}

TEST_P(TransportProcessTest, MessagesCrossProcessesBothWays) {
  const uint64_t rounds = Repeats(2000);
  constexpr size_t kBytes = 10'000;
  Child child([rounds](const Pipe& pipe) {
    SenderInChild sender(Make(), pipe);
    const auto own = MakeRegion(*sender.transport, kBytes, 1);
    pipe.Send(own->Descriptor());
    for (uint64_t round = 1; round <= rounds; ++round) {
      const std::array come = {SignalCondition{.word = 0, .at_least = round}};
      ASSERT_TRUE(sender.transport->Wait(*own, come, {.deadline = Soon()}).ok());
      const SignalUpdate signal = Weak(0, round);
      // Sent back from where it arrived.
      ASSERT_TRUE(own->Land(0, kBytes).ok());
      ASSERT_TRUE(PutAll(*sender.transport, *sender.remote, 0, own->bytes(), &signal).ok());
    }
    Drain(sender);
    pipe.Receive();
  });
  const auto transport = Make();
  const auto region = MakeRegion(*transport, kBytes, 1);
  child.pipe_to().Send(region->Descriptor());
  const auto remote = Open(*transport, child.pipe_to().Receive());
  std::vector<std::byte> source(kBytes);
  ASSERT_TRUE(transport->RegisterSource(source, MemoryKind::kHost).ok());

  for (uint64_t round = 1; round <= rounds; ++round) {
    std::fill(source.begin(), source.end(), static_cast<std::byte>(round * 41));
    const SignalUpdate signal = Weak(0, round);
    ASSERT_TRUE(PutAll(*transport, *remote, 0, source, &signal).ok());
    const std::array come = {SignalCondition{.word = 0, .at_least = round}};
    ASSERT_TRUE(transport->Wait(*region, come, {.deadline = Soon()}).ok());
    ASSERT_TRUE(std::equal(source.begin(), source.end(), Arrived(*region).begin()));
  }

  child.pipe_to().Send("done");
  EXPECT_TRUE(child.ExitedWell());
}

TEST_P(TransportProcessTest, PeerKilledBetweenPutAndSignalEndsInTheDeadlineOrUnavailable) {
  Child child([](const Pipe& pipe) {
    const SenderInChild sender(Make(), pipe);
    EXPECT_TRUE(PutAll(*sender.transport, *sender.remote, 0, sender.source, nullptr).ok());
    pipe.Send("put");
    pause();
  });
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 1 << 16, 1);
  child.pipe_to().Send(region->Descriptor());
  ASSERT_EQ(child.pipe_to().Receive(), "put");

  child.Kill();

  const auto result =
      transport->Wait(*region, kFirst, {.deadline = RealClock().Now() + Millis(20)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status()) || absl::IsUnavailable(result.status()))
      << result.status();
  EXPECT_EQ(region->LoadSignal(0), 0u);
}

TEST_P(TransportProcessTest, AnotherPeerUsesTheRegionAfterTheFirstWasKilled) {
  Child first([](const Pipe& pipe) {
    const SenderInChild sender(Make(), pipe);
    pipe.Send("ready");
    for (uint64_t value = 1;; ++value) {
      const SignalUpdate signal = Weak(0, value);
      if (!PutAll(*sender.transport, *sender.remote, 0, sender.source, &signal).ok()) {
        pause();
      }
    }
  });
  Child second([](const Pipe& pipe) {
    const SenderInChild sender(Make(), pipe);
    const SignalUpdate signal = Strong(1, 1);
    EXPECT_TRUE(PutAll(*sender.transport, *sender.remote, 0, sender.source, &signal).ok());
    Drain(sender);
    pipe.Receive();
  });
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 1 << 16, 2);
  first.pipe_to().Send(region->Descriptor());
  ASSERT_EQ(first.pipe_to().Receive(), "ready");
  ASSERT_TRUE(transport->Wait(*region, kFirst, {.deadline = Soon()}).ok());
  first.Kill();

  second.pipe_to().Send(region->Descriptor());
  const std::array come = {SignalCondition{.word = 1, .at_least = 1}};

  ASSERT_TRUE(transport->Wait(*region, come, {.deadline = Soon()}).ok());
  const std::vector<std::byte> expected = Pattern(1 << 16, 1);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), Arrived(*region).begin()));
  second.pipe_to().Send("done");
  EXPECT_TRUE(second.ExitedWell());
}

// It is killed while it puts, waits asleep, or does both, and nothing here may crash or hang.
TEST_P(TransportProcessTest, PeerKilledAtRandomMomentsHarmsNobody) {
  Prng prng(15);
  for (uint64_t round = Repeats(30); round > 0; --round) {
    Child child([](const Pipe& pipe) {
      const SenderInChild sender(Make(), pipe);
      const auto own = MakeRegion(*sender.transport, 1 << 16, 1);
      pipe.Send(own->Descriptor());
      for (uint64_t value = 1;; ++value) {
        const SignalUpdate signal = Weak(0, value);
        if (!PutAll(*sender.transport, *sender.remote, 0, sender.source, &signal).ok()) {
          pause();
        }
        const std::array come = {SignalCondition{.word = 0, .at_least = value}};
        static_cast<void>(
            sender.transport->Wait(*own, come, {.deadline = RealClock().Now() + Millis(2)}));
      }
    });
    const auto transport = Make();
    const auto region = MakeRegion(*transport, 1 << 16, 1);
    child.pipe_to().Send(region->Descriptor());
    const std::string descriptor = child.pipe_to().Receive();
    const auto remote = Open(*transport, descriptor);
    const std::vector<std::byte> source = Pattern(1 << 16, 2);
    ASSERT_TRUE(transport->RegisterSource(source, MemoryKind::kHost).ok());
    ASSERT_TRUE(transport->Wait(*region, kFirst, {.deadline = Soon()}).ok());

    const uint64_t killed_after = prng.Below(200);
    for (uint64_t value = 1; value <= killed_after + 200; ++value) {
      if (value == killed_after) {
        child.Kill();
      }
      const SignalUpdate signal = Weak(0, value);
      const absl::Status status = transport->Put(*remote, 0, source, &signal);
      ASSERT_TRUE(status.ok() || absl::IsUnavailable(status) || absl::IsResourceExhausted(status))
          << status;
      transport->Progress();
    }
    child.Kill();
    const uint64_t last = region->LoadSignal(0);
    const std::array come = {SignalCondition{.word = 0, .at_least = last + 1}};
    const auto result = transport->Wait(*region, come, {.deadline = RealClock().Now() + Millis(2)});
    EXPECT_FALSE(result.ok());
    EXPECT_TRUE(absl::IsUnavailable(transport->OpenRegion(descriptor, 3).status()));
  }
}

TEST_P(TransportProcessTest, PeerRestartedUnderTheSameNameNeedsANewDescriptor) {
  const Child::Body receive = [](const Pipe& pipe) {
    ASSERT_EQ(pipe.Receive(), "start");
    const auto own_transport = Make();
    const auto own = MakeRegion(*own_transport, 64, 1);
    pipe.Send(own->Descriptor());
    ASSERT_TRUE(own_transport->Wait(*own, kFirst, {.deadline = Soon()}).ok());
    pipe.Send("come");
    pipe.Receive();
  };
  Child first(receive);
  Child second(receive);
  const auto transport = Make();
  const std::vector<std::byte> source = Pattern(64, 3);
  ASSERT_TRUE(transport->RegisterSource(source, MemoryKind::kHost).ok());
  first.pipe_to().Send("start");
  const std::string old_descriptor = first.pipe_to().Receive();
  const auto old_remote = Open(*transport, old_descriptor);
  first.Kill();

  second.pipe_to().Send("start");
  const std::string descriptor = second.pipe_to().Receive();

  EXPECT_TRUE(absl::IsUnavailable(transport->OpenRegion(old_descriptor, 3).status()));
  EXPECT_NE(descriptor, old_descriptor);
  const auto remote = Open(*transport, descriptor);
  const SignalUpdate signal = Strong(0, 1);
  const absl::Status to_the_dead = transport->Put(*old_remote, 0, source, &signal);
  EXPECT_TRUE(to_the_dead.ok() || absl::IsUnavailable(to_the_dead)) << to_the_dead;
  EXPECT_TRUE(PutAll(*transport, *remote, 0, source, &signal).ok());
  for (const Nanos deadline = Soon();
       transport->Pending(*remote) > 0 && RealClock().Now() < deadline;) {
    transport->Progress();
  }
  EXPECT_EQ(second.pipe_to().Receive(), "come");
  second.pipe_to().Send("done");
  EXPECT_TRUE(second.ExitedWell());
}

TEST_P(TransportProcessTest, PeerThatDestroyedItsRegionIsUnavailable) {
  Child child([](const Pipe& pipe) {
    const auto own_transport = Make();
    auto own = MakeRegion(*own_transport, 64, 1);
    pipe.Send(own->Descriptor());
    EXPECT_EQ(pipe.Receive(), "opened");
    own.reset();
    pipe.Send("destroyed");
    pipe.Receive();
  });
  const auto transport = Make();
  const auto remote = Open(*transport, child.pipe_to().Receive());
  child.pipe_to().Send("opened");
  ASSERT_EQ(child.pipe_to().Receive(), "destroyed");

  absl::Status status;
  uint64_t value = 0;
  for (const Nanos deadline = Soon(); status.ok() && RealClock().Now() < deadline;) {
    const SignalUpdate signal = Strong(0, ++value);
    status = PutAll(*transport, *remote, 0, {}, &signal);
  }

  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  child.pipe_to().Send("done");
  EXPECT_TRUE(child.ExitedWell());
}

INSTANTIATE_TEST_SUITE_P(
    Backends, TransportProcessTest,
    testing::Values(ProcessBackend{"shm", "shm://"}, ProcessBackend{"ucx", "ucx://"},
                    ProcessBackend{"ucx_sm", "ucx://sm"}, ProcessBackend{"ucx_tcp", "ucx://tcp"}),
    [](const testing::TestParamInfo<ProcessBackend>& tested) { return tested.param.name; });

INSTANTIATE_TEST_SUITE_P(OnDevices, TransportProcessTest,
                         testing::Values(ProcessBackend{"shm_staged", "shm://", true},
                                         ProcessBackend{"ucx_sm_staged", "ucx://sm", true},
                                         ProcessBackend{"ucx_tcp_staged", "ucx://tcp", true}),
                         [](const testing::TestParamInfo<ProcessBackend>& tested) {
                           return tested.param.name;
                         });

std::vector<ProcessBackend> RdmaBackends(bool on_device) {
  std::vector<ProcessBackend> backends;
  for (const std::string& uri : VerbsUris()) {
    backends.push_back({on_device ? "verbs_staged" : "verbs", uri, on_device});
  }
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Rdma, TransportProcessTest, testing::ValuesIn(RdmaBackends(false)),
                         [](const testing::TestParamInfo<ProcessBackend>& tested) {
                           return tested.param.name;
                         });

INSTANTIATE_TEST_SUITE_P(RdmaOnDevices, TransportProcessTest, testing::ValuesIn(RdmaBackends(true)),
                         [](const testing::TestParamInfo<ProcessBackend>& tested) {
                           return tested.param.name;
                         });

}  // namespace
}  // namespace lamina::transport
