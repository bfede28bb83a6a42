// SPDX-License-Identifier: Apache-2.0
//
// The backends that run the conformance suite between processes.
#include "tests/conformance/transport_process_test.h"

#include <utility>

#include "tests/conformance/transport_test.h"
#include "transport/registry.h"

namespace lamina::transport {
namespace {

using test_support::EmulatedDeviceMemory;

// Slow enough to queue, as in transport_test.cc.
constexpr char kThrottled[] = "throttle(bandwidth=4GiB,latency=2us,jitter=2us)+shm://";

ProcessBackend ByUri(const std::string& name, const std::string& uri) {
  return {.name = name, .make = [uri](DeviceMemory* device) {
            auto transport = MakeTransport(uri, device);
            EXPECT_TRUE(transport.ok()) << transport.status();
            return std::move(transport).value();
          }};
}

// Each process has one of its own.
DeviceMemory* Device() {
  static auto* const device = new EmulatedDeviceMemory;
  return device;
}
DeviceMemory* DeviceThatSharesNothing() {
  static auto* const device = new EmulatedDeviceMemory({.exports = false});
  return device;
}
DeviceMemory* DeviceThatOpensNothing() {
  static auto* const device = new EmulatedDeviceMemory({.opens = false});
  return device;
}

ProcessBackend OnDevice(ProcessBackend backend, MemoryPath memory,
                        DeviceMemory* (*device)() = &Device) {
  backend.device = device;
  backend.memory = memory;
  return backend;
}

ProcessBackend Executed(ProcessBackend backend) {
  backend.start = test_support::ChildStart::kExecute;
  return backend;
}

const auto kName = [](const testing::TestParamInfo<ProcessBackend>& tested) {
  return tested.param.name;
};

INSTANTIATE_TEST_SUITE_P(Backends, TransportProcessTest,
                         testing::Values(ByUri("shm", "shm://"), ByUri("throttle", kThrottled),
                                         ByUri("ucx", "ucx://"), ByUri("ucx_sm", "ucx://sm"),
                                         ByUri("ucx_tcp", "ucx://tcp")),
                         kName);

INSTANTIATE_TEST_SUITE_P(
    OnDevices, TransportProcessTest,
    testing::Values(
        OnDevice(ByUri("shm_ipc", "shm://"), MemoryPath::kIpc),
        OnDevice(Executed(ByUri("shm_ipc_executed", "shm://")), MemoryPath::kIpc),
        OnDevice(ByUri("shm_staged", "shm://"), MemoryPath::kStaging, &DeviceThatSharesNothing),
        OnDevice(ByUri("shm_unopened", "shm://"), MemoryPath::kStaging, &DeviceThatOpensNothing),
        OnDevice(ByUri("ucx_sm_staged", "ucx://sm"), MemoryPath::kStaging),
        OnDevice(ByUri("ucx_tcp_staged", "ucx://tcp"), MemoryPath::kStaging)),
    kName);

std::vector<ProcessBackend> RdmaBackends(bool on_device) {
  std::vector<ProcessBackend> backends;
  for (const std::string& uri : VerbsUris()) {
    backends.push_back(on_device ? OnDevice(ByUri("verbs_staged", uri), MemoryPath::kStaging)
                                 : ByUri("verbs", uri));
  }
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Rdma, TransportProcessTest, testing::ValuesIn(RdmaBackends(false)), kName);
INSTANTIATE_TEST_SUITE_P(RdmaOnDevices, TransportProcessTest, testing::ValuesIn(RdmaBackends(true)),
                         kName);

}  // namespace
}  // namespace lamina::transport
