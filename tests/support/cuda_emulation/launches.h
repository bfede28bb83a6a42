// SPDX-License-Identifier: Apache-2.0
//
// What a launch is refused for, as a device refuses it; and, more strictly, any kernel that was not
// loaded beforehand: CUDA would load it then, waiting for the kernels that run (launch.cuh). And
// how many launches and copies streams were given.
//
// Threading: any thread.

#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/support/cuda_emulation/cuda_error.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lamina::cuda_emulation {

// What the emulated device says of itself, and is held to.
struct Card {
  int capability_major = 9;
  int capability_minor = 0;
  size_t shared_bytes_max = size_t{227} * 1024;  // A thread block's limit, after opting in.
};

// The device is another card while this lives. One at a time, and no kernel runs when it changes.
class OtherCard {
 public:
  explicit OtherCard(const Card& card);
  ~OtherCard();
  OtherCard(const OtherCard&) = delete;
  OtherCard& operator=(const OtherCard&) = delete;
};

Card CurrentCard();

void NoteLoaded(const void* kernel);

// Errors: cudaErrorInvalidDeviceFunction  the kernel was not loaded.
//         cudaErrorInvalidConfiguration   a grid or a block that is empty or too large.
//         cudaErrorInvalidValue           more dynamic shared memory than loading asked for.
cudaError_t CheckLaunch(const void* kernel, const Dim3& grid, const Dim3& block,
                        size_t shared_bytes);

// What all streams of the process were given since it began, captures included: launches that were
// not refused, and asynchronous copies.
struct Given {
  uint64_t launches = 0;
  uint64_t copies = 0;
  friend bool operator==(const Given&, const Given&) = default;
  friend Given operator-(const Given& a, const Given& b) {
    return {.launches = a.launches - b.launches, .copies = a.copies - b.copies};
  }
};
Given AllGiven();
void NoteCopy();

// How many of the launches were dependent (kernels/cuda/dependent_launches.h).
uint64_t DependentLaunches();
void NoteDependent();

// Whether loading fails, with cudaErrorNoKernelImageForDevice, as on a device of another kind.
void FailLoads(bool fail);
bool LoadsFail();

}  // namespace lamina::cuda_emulation
