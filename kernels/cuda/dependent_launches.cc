// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/dependent_launches.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device.h"

namespace lamina::kernels::cuda {
namespace {

std::atomic<bool> allowed_here{true};
thread_local bool device_has_them = false;

}  // namespace

void AllowDependentLaunches(bool allowed) {
  allowed_here.store(allowed, std::memory_order_relaxed);
}

bool LaunchesAreDependent() {
  return device_has_them && allowed_here.load(std::memory_order_relaxed);
}

std::string DescribeLaunches(const DeviceInfo& device) {
  if (device.capability_major < kDependentCapabilityMajor) {
    return absl::StrCat("ordinary launches (compute capability ", device.capability_major, ".",
                        device.capability_minor, ")");
  }
  if (!device.dependent_launches) {
    return absl::StrCat("ordinary launches (kernels built for less than ",
                        kDependentCapabilityMajor, ".0)");
  }
  return allowed_here.load(std::memory_order_relaxed) ? "dependent launches"
                                                      : "ordinary launches (turned off)";
}

void NoteDevice(const DeviceInfo& device) { device_has_them = device.dependent_launches; }

}  // namespace lamina::kernels::cuda
