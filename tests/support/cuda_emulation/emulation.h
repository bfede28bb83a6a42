// SPDX-License-Identifier: Apache-2.0
//
// Runs CUDA kernels on the CPU, for unit tests on machines without a GPU.
//
// A launch runs its thread blocks one after the other. The threads of a block are contexts of the
// calling thread that switch only at barriers and shuffles, in a fixed order, so a run repeats.
// What a GPU leaves undefined stops the program here: threads that wait at different barriers, a
// shuffle that part of a warp does not reach.
//
// It shows indexing, barriers and arithmetic (IEEE, nothing contracted). It shows nothing of speed,
// of races between threads of a block, or of the memory model: those need a GPU.
//
// The folder stands first on the include path in place of the toolkit's, so the kernels' sources
// are those that nvcc compiles, unchanged.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace lamina::cuda_emulation {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  constexpr Dim3(unsigned x_in = 1, unsigned y_in = 1, unsigned z_in = 1)
      : x(x_in), y(y_in), z(z_in) {}
};

// Where the running CUDA thread stands.
struct Place {
  Dim3 thread;
  Dim3 block;
  Dim3 block_dim;
  Dim3 grid_dim;
};
const Place& Here();

// Runs `body` as every thread of the grid. Block and grid as in CUDA; a block has at most 1024
// threads in x alone.
//
// A `dependent` launch is one that a device may begin while the launch before it still runs. It
// stops the program if a thread ends that has not waited; and until the first one has, device
// memory is closed, so that a kernel which touches it before its wait ends with a segmentation
// fault.
void RunGrid(const Dim3& grid, const Dim3& block, size_t shared_bytes,
             const std::function<void()>& body, bool dependent = false);

// The running thread has waited for the launch before.
void NoteWaited();

// The dynamic shared memory of the running block: filled with 0xff bytes before each block.
unsigned char* Shared();

void SyncThreads();
void SyncWarp();

// Gives `value` to the warp and returns that of lane `source`. The whole warp takes part.
uint64_t Exchange(uint64_t value, unsigned source);

unsigned Lane();

// The next wait for a stream fails with cudaErrorLaunchFailure, once. Any thread.
void FailNextSynchronize();
// Whether this one does.
bool TakeFailure();

}  // namespace lamina::cuda_emulation
