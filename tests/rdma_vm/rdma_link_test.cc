// SPDX-License-Identifier: Apache-2.0
//
// verbs:// over a cable between two devices, rxeA and rxeB, that loses packets and is pulled. Runs
// as root in the guest of this folder (guest_transport.sh made the cable) and nowhere else.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/registry.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_descriptor.h"

namespace lamina::transport {
namespace {

Nanos Soon() { return RealClock().Now() + Seconds(60); }

void Shell(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; }

uint64_t Counter(const std::string& device, const std::string& name) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/hw_counters/" + name);
  uint64_t value = 0;
  file >> value;
  EXPECT_TRUE(file) << device << " " << name;
  return value;
}

// Whether the counter exceeds `value`, soon: the kernel reads a device's counters anew only every
// few milliseconds.
bool ComesToExceed(const std::string& device, const std::string& name, uint64_t value) {
  const Nanos deadline = Soon();
  while (Counter(device, name) <= value) {
    if (RealClock().Now() > deadline) {
      return false;
    }
  }
  return true;
}

uint64_t Repairs() {
  uint64_t sum = 0;
  for (const std::string device : {"rxeA", "rxeB"}) {
    for (const std::string name :
         {"out_of_seq_request", "completer_retry_err", "duplicate_request", "rcvd_seq_err"}) {
      sum += Counter(device, name);
    }
  }
  return sum;
}

// Sends from rxeA to rxeB. Short time-outs, since a lost last packet is found by them alone.
class RdmaLinkTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 64 << 10;

  RdmaLinkTest()
      : sender_(Make("verbs://rxeA?gid=0&timeout=12&retries=6")),
        receiver_(Make("verbs://rxeB?gid=0")),
        source_(kBytes) {
    EXPECT_TRUE(sender_->RegisterSource(source_, MemoryKind::kHost).ok());
    region_ =
        receiver_->CreateRegion({.name = "cable", .bytes = kBytes, .signal_words = 1, .epoch = 1})
            .value();
  }
  ~RdmaLinkTest() override {
    // Whatever a test left behind.
    static_cast<void>(std::system("tc qdisc del dev veth0 root 2>/dev/null"));
    static_cast<void>(std::system("tc qdisc del dev veth1 root 2>/dev/null"));
    static_cast<void>(std::system("ip link set veth0 up"));
  }
  RdmaLinkTest(const RdmaLinkTest&) = delete;
  RdmaLinkTest& operator=(const RdmaLinkTest&) = delete;

  static std::unique_ptr<Transport> Make(const std::string& uri) {
    auto transport = MakeTransport(uri);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return std::move(transport).value();
  }

  absl::StatusOr<std::unique_ptr<RemoteRegion>> Open() {
    return sender_->OpenRegion(region_->Descriptor(), 1);
  }

  // One message, awaited and compared.
  void Exchange(RemoteRegion& remote, uint64_t value) {
    std::fill(source_.begin(), source_.end(), static_cast<std::byte>(value * 37));
    const SignalUpdate signal = {.word = 0, .value = value};
    ASSERT_TRUE(sender_->Put(remote, 0, source_, &signal).ok());
    const std::vector<SignalCondition> come = {{.word = 0, .at_least = value}};
    const auto result = receiver_->Wait(*region_, come, {.deadline = Soon()});
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_TRUE(std::equal(source_.begin(), source_.end(), region_->bytes().begin()));
    for (const Nanos deadline = Soon(); sender_->Pending(remote) > 0;) {
      ASSERT_LT(RealClock().Now(), deadline);
      sender_->Progress();
    }
  }

  // Puts until one is refused for good.
  absl::Status PutUntilRefused(RemoteRegion& remote, uint64_t value) {
    absl::Status status;
    for (const Nanos deadline = Soon(); RealClock().Now() < deadline;) {
      const SignalUpdate signal = {.word = 0, .value = value};
      status = sender_->Put(remote, 0, source_, &signal);
      value += status.ok() ? 1 : 0;
      sender_->Progress();
      if (!status.ok() && !absl::IsResourceExhausted(status)) {
        break;
      }
    }
    return status;
  }

  const std::unique_ptr<Transport> sender_;
  const std::unique_ptr<Transport> receiver_;
  std::vector<std::byte> source_;
  std::unique_ptr<Region> region_;
};

TEST_F(RdmaLinkTest, DataCrossesTheCable) {
  const auto remote = Open();
  ASSERT_TRUE(remote.ok()) << remote.status();
  const uint64_t before = Counter("rxeA", "sent_pkts");

  ASSERT_NO_FATAL_FAILURE(Exchange(**remote, 1));

  EXPECT_TRUE(ComesToExceed("rxeA", "sent_pkts", before + kBytes / 4096));
}

TEST_F(RdmaLinkTest, LostAndLatePacketsChangeNothing) {
  const auto remote = Open();
  ASSERT_TRUE(remote.ok()) << remote.status();
  for (const std::string end : {"veth0", "veth1"}) {
    Shell("tc qdisc add dev " + end + " root netem loss 1% delay 1ms");
  }
  const uint64_t before = Repairs();
  for (uint64_t value = 1; value <= 100; ++value) {
    ASSERT_NO_FATAL_FAILURE(Exchange(**remote, value));
  }
  EXPECT_GT(Repairs(), before) << "nothing was lost: the test proves nothing";
}

TEST_F(RdmaLinkTest, PulledCableIsUnavailableAndAFreshViewWorksOnceItIsBack) {
  auto remote = Open();
  ASSERT_TRUE(remote.ok()) << remote.status();
  ASSERT_NO_FATAL_FAILURE(Exchange(**remote, 1));
  Shell("ip link set veth0 down");

  const absl::Status status = PutUntilRefused(**remote, 2);

  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(sender_->Pending(**remote), 0u);
  remote->reset();
  Shell("ip link set veth0 up");
  // Its GID comes back with its link-local address.
  absl::Status opened = absl::UnknownError("not tried");
  for (const Nanos deadline = Soon(); !opened.ok() && RealClock().Now() < deadline;) {
    remote = Open();
    opened = remote.status();
  }
  ASSERT_TRUE(opened.ok()) << opened;
  ASSERT_NO_FATAL_FAILURE(Exchange(**remote, 1000));
}

TEST_F(RdmaLinkTest, ForgedRemoteKeyIsUnavailableAndWritesNothing) {
  VerbsDescriptor forged = DecodeVerbsDescriptor(region_->Descriptor()).value();
  forged.rkey ^= 0x5a;
  forged.data_rkey ^= 0x5a;
  const auto remote = sender_->OpenRegion(EncodeVerbsDescriptor(forged), 1);
  ASSERT_TRUE(remote.ok()) << remote.status();
  std::fill(source_.begin(), source_.end(), std::byte{1});

  EXPECT_TRUE(absl::IsUnavailable(PutUntilRefused(**remote, 1)));

  EXPECT_EQ(region_->bytes()[0], std::byte{0});
  EXPECT_EQ(region_->LoadSignal(0), 0u);
}

}  // namespace
}  // namespace lamina::transport
