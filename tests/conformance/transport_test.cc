// SPDX-License-Identifier: Apache-2.0
//
// The backends that run the transport conformance suite, and its helpers.
#include "tests/conformance/transport_test.h"

#include <algorithm>
#include <utility>

#include "transport/fake/fake_network.h"
#include "transport/registry.h"
#include "transport/staging/device_transport.h"

namespace lamina::transport {
namespace {

Backend OverFake(const std::string& name, const FakeNetworkOptions& options) {
  return {name, [options](DeviceMemory* device) -> MakeTransportFn {
            auto network = std::make_shared<FakeNetwork>(options);
            return [network, device] {
              auto transport = network->MakeTransport(device);
              return device == nullptr ? std::move(transport)
                                       : OverDevice(std::move(transport), *device);
            };
          }};
}

Backend OnDevice(Backend backend, const test_support::EmulatedDeviceOptions& options = {}) {
  backend.device = options;
  return backend;
}

const FakeNetworkOptions kLate = {.seed = 1, .delay_steps_max = 8, .in_flight_max = 24};
const FakeNetworkOptions kLazy = {
    .seed = 2, .delay_steps_max = 3, .target_must_progress = true, .in_flight_max = 24};

const FakeNetworkOptions kShown = {
    .seed = 6, .delay_steps_max = 8, .shows_memory = true, .in_flight_max = 24};

const FakeNetworkOptions kReached = {
    .seed = 4, .delay_steps_max = 8, .reaches_devices = true, .in_flight_max = 24};

// Slow enough to queue, fast enough for a test; and as late and disordered as is allowed.
constexpr char kThrottled[] = "throttle(bandwidth=4GiB,latency=2us,jitter=2us)+shm://";
constexpr char kFaulty[] = "fault(delay=5us,seed=3)+shm://";

// A device whose memory UCX may know by its addresses.
constexpr test_support::EmulatedDeviceOptions kKnown = {.guarded = false,
                                                        .addresses = DeviceAddresses::kHost};

// The owner's device refuses, and so the windows are staged; or the senders' does.
constexpr test_support::EmulatedDeviceOptions kSharesNothing = {.exports = false};
constexpr test_support::EmulatedDeviceOptions kOpensNothing = {.opens = false};

INSTANTIATE_TEST_SUITE_P(Backends, TransportTest,
                         testing::Values(OverFake("fake", {}), OverFake("fake_late", kLate),
                                         OverFake("fake_lazy", kLazy),
                                         OverFake("fake_shown", kShown), OverUri("shm", "shm://"),
                                         OverUri("throttle", kThrottled), OverUri("fault", kFaulty),
                                         OverUri("ucx", "ucx://"), OverUri("ucx_sm", "ucx://sm"),
                                         OverUri("ucx_tcp", "ucx://tcp"),
                                         OverUri("ucx_tcp_local", "ucx://tcp?peers=local")),
                         [](const testing::TestParamInfo<Backend>& tested) {
                           return tested.param.name;
                         });

INSTANTIATE_TEST_SUITE_P(
    OnDevices, TransportTest,
    testing::Values(OnDevice(OverFake("fake_late_staged", kLate)),
                    OnDevice(OverFake("fake_lazy_staged", kLazy)),
                    OnDevice(OverFake("fake_reached", kReached)),
                    OnDevice(OverUri("shm_ipc", "shm://")),
                    OnDevice(OverUri("shm_staged", "shm://"), kSharesNothing),
                    OnDevice(OverUri("shm_unopened", "shm://"), kOpensNothing),
                    OnDevice(OverUri("ucx_sm_staged", "ucx://sm")),
                    OnDevice(OverUri("ucx_tcp_staged", "ucx://tcp")),
                    OnDevice(OverUri("ucx_tcp_registered", "ucx://tcp"), kKnown)),
    [](const testing::TestParamInfo<Backend>& tested) { return tested.param.name; });

}  // namespace

Backend OverUri(const std::string& name, const std::string& uri) {
  return {name, [uri](DeviceMemory* device) -> MakeTransportFn {
            return [uri, device] {
              auto transport = MakeTransport(uri, device);
              EXPECT_TRUE(transport.ok()) << transport.status();
              return std::move(transport).value();
            };
          }};
}

absl::Span<std::byte> Arrived(Region& region, size_t offset, size_t bytes) {
  const absl::Status landed = region.Land(offset, bytes);
  EXPECT_TRUE(landed.ok()) << landed;
  return Seen(region.bytes().subspan(offset, bytes));
}

bool Link::Await(uint32_t word, uint64_t value) const {
  for (const Nanos deadline = Soon(); RealClock().Now() < deadline;) {
    if (region->LoadSignal(word) >= value) {
      return true;
    }
    sender->Progress();
    receiver->Progress();
  }
  return false;
}

std::unique_ptr<Region> TransportTest::MakeRegion(Transport& transport, size_t bytes,
                                                  uint32_t words, uint64_t epoch) {
  auto region = transport.CreateRegion(
      {.name = "test", .bytes = bytes, .signal_words = words, .kind = kind(), .epoch = epoch});
  EXPECT_TRUE(region.ok()) << region.status();
  return std::move(region).value();
}

std::unique_ptr<RemoteRegion> TransportTest::Open(Transport& transport, const Region& region,
                                                  uint64_t epoch) {
  auto remote = transport.OpenRegion(region.Descriptor(), epoch);
  EXPECT_TRUE(remote.ok()) << remote.status();
  return std::move(remote).value();
}

Link TransportTest::MakeLink(size_t bytes, uint32_t words) {
  Link link;
  link.sender = Make();
  link.receiver = Make();
  link.region = MakeRegion(*link.receiver, bytes, words);
  link.remote = Open(*link.sender, *link.region);
  return link;
}

absl::Span<std::byte> TransportTest::MakeSource(Transport& sender, size_t size, uint64_t seed) {
  if (device_ != nullptr) {
    device_sources_.push_back(DeviceAllocation::Make(*device_, size).value());
    const absl::Span<std::byte> source = device_sources_.back().bytes().first(size);
    const std::vector<std::byte> pattern = Pattern(size, seed);
    std::copy(pattern.begin(), pattern.end(), Seen(source).begin());
    // All of it: whole pages can be a dmabuf.
    EXPECT_TRUE(sender.RegisterSource(device_sources_.back().bytes(), MemoryKind::kDevice).ok());
    return source;
  }
  sources_.push_back(Pattern(size, seed));
  EXPECT_TRUE(sender.RegisterSource(sources_.back(), MemoryKind::kHost).ok());
  return absl::MakeSpan(sources_.back());
}

}  // namespace lamina::transport
