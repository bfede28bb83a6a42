// SPDX-License-Identifier: Apache-2.0
//
// main() of the tests that need a CUDA device. Without one they are left out, by name: exit status
// 77, which CTest counts as skipped; with LAMINA_REQUIRE_GPU=1 in the environment, or with one that
// does not work, 1.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/device.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) {
    return RUN_ALL_TESTS();  // Runs none.
  }
  // As the daemons do (daemon/daemon.h): several nodes are in this process, with kernels that
  // poll.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const auto device = lamina::kernels::cuda::OpenDevice(0);
  if (device.ok()) {
    std::printf("on %s, compute capability %d.%d\n", device->name.c_str(), device->capability_major,
                device->capability_minor);
    return RUN_ALL_TESTS();
  }
  const char* required = std::getenv("LAMINA_REQUIRE_GPU");
  const bool fail = (required != nullptr && std::strcmp(required, "1") == 0) ||
                    !absl::IsUnavailable(device.status());
  std::printf("%s: %s: no CUDA device that can be used: %s\n", fail ? "failed" : "left out",
              argv[0], device.status().ToString().c_str());
  return fail ? 1 : 77;
}
