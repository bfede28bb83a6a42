// SPDX-License-Identifier: Apache-2.0
//
// What this program and this host have for CUDA devices, in words, for error messages. It asks
// without the CUDA runtime, so that programs built without it can say it too.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina {

// "cuda" is device 0, "cuda:3" device 3.
// Errors: kInvalidArgument  anything else.
absl::StatusOr<int> ParseCudaDevice(absl::string_view device);

// The environment variable that says how a node launches its kernels on a GPU, and what it says:
// false for "ordinary", true for "dependent" and where it is not there. Errors: kInvalidArgument
// anything else.
inline constexpr char kCudaLaunchesVariable[] = "LAMINA_CUDA_LAUNCHES";
absl::StatusOr<bool> ParseCudaLaunches(const char* text);

// What was looked for to run on device `index`, each with what was found: the kernels in this
// program, the driver's library, the device file.
std::string DescribeCudaHost(int index);

// The error of a node that could not open `device`, with what was looked for and what to do.
absl::Status WithCudaHost(const absl::Status& error, absl::string_view device);

// "built with them" or how to build with them: cuda_build_with.cc or cuda_build_without.cc, as
// CMake chose.
absl::string_view CudaKernelsInThisBuild();

}  // namespace lamina
