// SPDX-License-Identifier: Apache-2.0
#include "config/cuda_host.h"

#include <dlfcn.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace lamina {
namespace {

constexpr char kDriver[] = "libcuda.so.1";
constexpr int kDevicesMax = 64;

bool HasDriver() {
  void* const driver = dlopen(kDriver, RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) {
    return false;
  }
  dlclose(driver);
  return true;
}

}  // namespace

absl::StatusOr<int> ParseCudaDevice(absl::string_view device) {
  absl::string_view number = device;
  int index = 0;
  if (device == "cuda") {
    return index;
  }
  if (!absl::ConsumePrefix(&number, "cuda:") || !absl::SimpleAtoi(number, &index) || index < 0 ||
      index >= kDevicesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", device, "' is not cuda or cuda:N, N below ", kDevicesMax));
  }
  return index;
}

absl::StatusOr<bool> ParseCudaLaunches(const char* text) {
  const absl::string_view word = text == nullptr ? "dependent" : text;
  if (word != "dependent" && word != "ordinary") {
    return absl::InvalidArgumentError(
        absl::StrCat(kCudaLaunchesVariable, ": '", word, "' is neither dependent nor ordinary"));
  }
  return word == "dependent";
}

std::string DescribeCudaHost(int index) {
  const std::string file = absl::StrCat("/dev/nvidia", index);
  return absl::StrCat("CUDA kernels in this program: ", CudaKernelsInThisBuild(),
                      "; driver library ", kDriver, ": ", HasDriver() ? "found" : "not found",
                      "; device file ", file, ": ",
                      access(file.c_str(), F_OK) == 0 ? "found" : "not found");
}

absl::Status WithCudaHost(const absl::Status& error, absl::string_view device) {
  return absl::Status(error.code(),
                      absl::StrCat("device ", device, ": ", error.message(), ". Looked for: ",
                                   DescribeCudaHost(ParseCudaDevice(device).value_or(0)),
                                   ". Give the node device: cpu, or start it where the device is"));
}

}  // namespace lamina
