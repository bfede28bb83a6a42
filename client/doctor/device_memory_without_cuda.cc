// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/window_checks.h"

namespace lamina::doctor {

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenDoctorDevice() {
  return absl::UnavailableError(
      "this program was built without CUDA; deploy/build_cuda.sh builds with it");
}

}  // namespace lamina::doctor
