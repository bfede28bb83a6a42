// SPDX-License-Identifier: Apache-2.0
//
// The polling kernel is one thread: it occupies little of the device while it waits. Kernels behind
// it on the stream start when it ends; other streams go on. So it is never dependent, nor is what
// is launched right behind it: thread blocks that hold their places while it polls could keep from
// running what it polls for.

#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/timeout.cuh"
#include "kernels/cuda/wait_kernels.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr uint32_t kPauseNanos = 100;
constexpr int kPutThreads = 256;
constexpr uint32_t kPutBlocksMax = 64;

struct StampedHeader {
  WindowStamp stamp;
  uint64_t zeros[3];
};
static_assert(sizeof(StampedHeader) == kWindowHeaderBytes);

// Requires: the signal was seen with acquire ordering, so that the header is there.
__device__ inline WaitOutcome CheckStamp(const WindowStamp& got, const WindowStamp& expected) {
  if (got.magic != expected.magic) {
    return WaitOutcome::kMismatch;
  }
  if (got.epoch < expected.epoch) {
    return WaitOutcome::kStale;
  }
  if (got.epoch == expected.epoch &&
      (got.step < expected.step || (got.step == expected.step && got.layer < expected.layer))) {
    return WaitOutcome::kStale;
  }
  const bool same = got.epoch == expected.epoch && got.step == expected.step &&
                    got.layer == expected.layer && got.lane == expected.lane &&
                    got.rows == expected.rows && got.kv_rows == expected.kv_rows &&
                    got.sender == expected.sender;
  return same ? WaitOutcome::kOk : WaitOutcome::kMismatch;
}

__device__ inline uint64_t BeatOf(const WaitRequest& a) {
  return a.heartbeat != nullptr ? LoadAcquire(a.heartbeat) : 0;
}

// Polls until the word shows enough, the time is up, or somebody aborts. A signal that is there
// counts, whatever the clock and the abort word say.
__device__ inline WaitOutcome Poll(const WaitRequest& a, uint64_t* seen, uint64_t* polls) {
  Timeout timeout(a.timeout_nanos, GlobalNanos(), BeatOf(a));
  for (*polls = 1;; ++*polls) {
    // Both loads are on their way across the bus at a time.
    const uint32_t aborted = LoadRelaxed(a.abort);
    *seen = LoadAcquire(a.signal);
    if (*seen >= a.at_least) {
      return WaitOutcome::kOk;
    }
    if (aborted != 0) {
      return WaitOutcome::kAborted;
    }
    if (timeout.IsOver(GlobalNanos(), BeatOf(a))) {
      return WaitOutcome::kTimeout;
    }
    Pause(kPauseNanos);
  }
}

__device__ inline uint32_t FailureOf(const WaitRecord* record, const LaneState* state) {
  if (state != nullptr) {
    return state->failed;  // By a kernel before this one.
  }
  return record != nullptr ? LoadRelaxed(&record->failed) : 0;
}

__global__ void WaitKernel(const WaitRequest a) {
  uint64_t seen = 0;
  uint64_t polls = 0;
  uint32_t outcome = FailureOf(a.record, a.state);
  if (outcome == 0) {
    const uint64_t began = GlobalNanos();
    WaitOutcome polled = Poll(a, &seen, &polls);
    WindowStamp found;
    if (polled == WaitOutcome::kOk && a.window != nullptr) {
      found = *a.window;
      polled = CheckStamp(found, a.expected);
    }
    outcome = static_cast<uint32_t>(polled);
    if (polled != WaitOutcome::kOk) {
      a.record->failed_sequence = a.sequence;
      a.record->refused = found;
      __threadfence_system();
      a.record->failed = outcome;
      if (a.state != nullptr) {
        a.state->failed = outcome;
      }
    }
    const uint64_t ended = GlobalNanos();
    if (a.times != nullptr) {
      a.times[0] = began;
      a.times[1] = ended;
    }
    if (a.state != nullptr) {
      a.state->waited = ended - began;
    }
  }
  a.record->outcome = outcome;
  a.record->signal = seen;
  a.record->polls = polls;
  const uint64_t ended = GlobalNanos();
  a.record->ended = ended;
  if (a.state != nullptr) {
    a.state->ended = ended;
  }
  StoreRelease(&a.record->sequence, a.sequence);
}

__global__ void RaiseKernel(const RaiseRequest a) {
  WaitForLaunchBefore();
  if (FailureOf(a.record, a.state) != 0) {
    return;
  }
  __threadfence_system();
  StoreRelease(a.signal, a.value);
  if (a.unit != nullptr) {
    const uint64_t ended = a.state != nullptr ? a.state->ended : a.record->ended;
    a.unit->nanos = GlobalNanos() - ended;
    a.unit->waited = a.state != nullptr ? a.state->waited : 0;
    StoreRelease(&a.unit->sequence, a.sequence);
  }
}

// Whether a wait has failed. The whole thread block looks once.
__device__ inline bool HasFailed(const WaitRecord* record, const LaneState* state) {
  __shared__ uint32_t failed;
  if (threadIdx.x == 0) {
    failed = FailureOf(record, state);
  }
  __syncthreads();
  return failed != 0;
}

__global__ void PutKernel(const PutRequest a) {
  WaitForLaunchBefore();
  if (HasFailed(a.record, a.state)) {
    return;
  }
  const auto* from = static_cast<const uint4*>(a.from);
  auto* to = static_cast<uint4*>(a.to);
  if (a.stamped) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      auto* const window = static_cast<StampedHeader*>(a.to);
      *window = StampedHeader{a.stamp, {0, 0, 0}};
    }
    to += kWindowHeaderBytes / sizeof(uint4);
  }
  const size_t count = a.bytes / sizeof(uint4);
  for (size_t i = size_t{blockIdx.x} * kPutThreads + threadIdx.x; i < count;
       i += size_t{gridDim.x} * kPutThreads) {
    to[i] = from[i];
  }
  // Each thread's stores are visible everywhere before the next kernel raises the signal.
  __threadfence_system();
}

}  // namespace

cudaError_t LoadWaits(KernelLimits& limits) {
  return LoadEach(limits, WaitKernel, RaiseKernel, PutKernel);
}

cudaError_t LaunchWait(const WaitRequest& request, cudaStream_t stream) {
  return Launch(WaitKernel,
                {.grid = dim3(1), .block = dim3(1), .shared_bytes = 0, .stream = stream}, request);
}

cudaError_t LaunchRaise(const RaiseRequest& request, cudaStream_t stream) {
  return Launch(RaiseKernel,
                {.grid = dim3(1),
                 .block = dim3(1),
                 .shared_bytes = 0,
                 .stream = stream,
                 .dependent = request.behind_kernel},
                request);
}

cudaError_t LaunchPut(const PutRequest& request, cudaStream_t stream) {
  const size_t wanted = (request.bytes / sizeof(uint4) + kPutThreads - 1) / kPutThreads;
  const uint32_t some = wanted == 0 ? 1 : static_cast<uint32_t>(wanted);  // For the stamp alone.
  const uint32_t blocks = some < kPutBlocksMax ? some : kPutBlocksMax;
  return Launch(PutKernel,
                {.grid = dim3(blocks),
                 .block = dim3(kPutThreads),
                 .shared_bytes = 0,
                 .stream = stream,
                 .dependent = request.behind_kernel},
                request);
}

}  // namespace lamina::kernels::cuda
