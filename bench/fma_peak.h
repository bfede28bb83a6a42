// SPDX-License-Identifier: Apache-2.0
//
// The most fused multiply-adds in fp32 that one core can do: the compute bound of a kernel.

#pragma once

namespace lamina::bench {

// Runs independent multiply-adds for about `seconds`; returns flop/s of the calling core.
double MeasureFmaPeak(double seconds);

}  // namespace lamina::bench
