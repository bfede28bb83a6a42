// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite between processes, with windows in the memory of a CUDA device: mapped by
// CUDA's IPC, and staged. Compiled twice: for a device (cuda_ipc_gpu_test), and with the runtime
// emulated (cuda_ipc_emulated_test), whose device memory processes share as well.
//
// CUDA does not survive fork(): children are executed.
#include <utility>

#include "kernels/cuda/window_memory.h"
#include "tests/conformance/transport_process_test.h"
#include "transport/shm/shm_transport.h"
#include "transport/staging/device_transport.h"

namespace lamina::transport {
namespace {

DeviceMemory* Device() {
  static DeviceMemory* const device = kernels::cuda::OpenWindowMemory(0).value().release();
  return device;
}

ProcessBackend OnDevice(const std::string& name, MemoryPath memory) {
  return {.name = name,
          .make =
              [memory](DeviceMemory* device) {
                return OverDevice(MakeShmTransport(memory == MemoryPath::kIpc ? device : nullptr),
                                  *device);
              },
          .device = &Device,
          .memory = memory,
          .start = test_support::ChildStart::kExecute};
}

INSTANTIATE_TEST_SUITE_P(Cuda, TransportProcessTest,
                         testing::Values(OnDevice("ipc", MemoryPath::kIpc),
                                         OnDevice("staged", MemoryPath::kStaging)),
                         [](const testing::TestParamInfo<ProcessBackend>& tested) {
                           return tested.param.name;
                         });

}  // namespace
}  // namespace lamina::transport
