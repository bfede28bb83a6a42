// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/window_checks.h"
#include "kernels/cuda/window_memory.h"

namespace lamina::doctor {

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenDoctorDevice() {
  return kernels::cuda::OpenWindowMemory(0);
}

}  // namespace lamina::doctor
