// SPDX-License-Identifier: Apache-2.0
//
// Dependent launches: a kernel may be launched while the launch before it on its stream still runs,
// and begins with a wait for that one's end (ptx.cuh). So the time that a launch takes to begin is
// not added to that of the kernels (docs/adr/0192-dependent-launches.md).
//
// Devices have them from compute capability 9.0 on, and kernels the wait if they were built for
// that; those that a driver makes from older PTX have none. Elsewhere, and where they are turned
// off, launches are ordinary, with the same bits.
//
// Threading: any thread.

#pragma once

#include <string>

namespace lamina::kernels::cuda {

struct DeviceInfo;

// The first compute capability that has them.
inline constexpr int kDependentCapabilityMajor = 9;

// For the process, before it opens a device. They are allowed if nobody says anything.
void AllowDependentLaunches(bool allowed);

// Whether this thread's device, which it opened last, has them.
bool LaunchesAreDependent();

// For people: "dependent launches", or why they are ordinary, of a device that OpenDevice() has
// described.
std::string DescribeLaunches(const DeviceInfo& device);

// OpenDevice() says so to the thread.
void NoteDevice(const DeviceInfo& device);

}  // namespace lamina::kernels::cuda
