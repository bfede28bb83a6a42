// SPDX-License-Identifier: Apache-2.0
//
// The steps of lamina-gpu-bench. Each measures on device 0 and returns its result as one JSON
// object.

#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "kernels/cuda/device.h"

namespace lamina::bench {

struct GpuBench {
  kernels::cuda::DeviceInfo device;
  const kernels::cuda::Stream& stream;
};

// Both attention kernels: decode rows as a share of the copy bandwidth, for several groups and
// loads; of a small model next to two empty launches; and a chunk of 512 prompt tokens.
absl::StatusOr<std::string> BenchAttention(const GpuBench& bench);

// Products of LLaMA-3-8B's layers as a share of cuBLASLt with a free choice of algorithms.
absl::StatusOr<std::string> BenchLinear(const GpuBench& bench);

// Round trips between a thread of the host and the device: the device polling, and the host; and
// those of BenchExchange().
absl::StatusOr<std::string> BenchPolling(const GpuBench& bench);

// A compute node's exchange of rows with a memory node that answers at once, by the device and by
// the host. A JSON array, for several numbers of rows.
absl::StatusOr<std::string> BenchExchange(const GpuBench& bench);

// A slice of two models, from the attention's output on the host to q, k, v there: by launches and
// as a graph; and what capturing one takes.
absl::StatusOr<std::string> BenchSlice(const GpuBench& bench);

// From q, k and v as a product leaves them to attended rows, under policy local: rope and the store
// in one call and in two, launches dependent and ordinary, next to empty launches.
absl::StatusOr<std::string> BenchStore(const GpuBench& bench);

// Milliseconds of one call of `work`, the least of five means over `repeats`, after one unmeasured.
absl::StatusOr<double> Milliseconds(const GpuBench& bench, int repeats,
                                    const std::function<absl::Status()>& work);

// Fills `count` elements with random values in [-1, 1); the same 2^22 again and again.
absl::Status FillRandom(const GpuBench& bench, BFloat16* to, size_t count);

// GB/s (10^9) of a device-to-device copy, bytes read and written both counted.
absl::StatusOr<double> CopyBandwidth(const GpuBench& bench);

}  // namespace lamina::bench
