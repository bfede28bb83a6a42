// SPDX-License-Identifier: Apache-2.0
//
// The read bandwidth of this host as a node that holds KV sees it: the share that placement
// weighs nodes by.

#pragma once

#include "common/thread_pool.h"

namespace lamina::kernels {

// Reads a buffer larger than the caches a few times on all threads of the pool; best of the passes,
// in bytes per second. Cost: about 0.1 s and 256 MiB for its duration.
double MeasureReadBandwidth(ThreadPool& pool);

}  // namespace lamina::kernels
