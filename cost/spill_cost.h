// SPDX-License-Identifier: Apache-2.0
//
// Whether K and V of a sequence that gives up its slots had better go to a file of its memory node
// and come back, or be recomputed: both from what was measured.
//
// Determinism: pure functions of their arguments.

#pragma once

#include <cstdint>

namespace lamina::cost {

// One memory node's tier, or with heads spread that of all of them, which work at the same time.
struct SpillRates {
  double write_bytes_per_second = 0;  // Measured when the node started.
  double read_bytes_per_second = 0;
  double bytes_per_token = 0;  // K and V of all layers.
  // Those behind the last whole block of so many tokens take twice as many: bf16, where the others
  // are INT8. 1: none do.
  uint32_t block_tokens = 1;
  double prompt_tokens_per_second = 0;  // What prompts were computed at of late; 0: not known.
};

// Seconds to write K and V of so many tokens and to read them back.
// Requires: both rates are positive.
double SpillSeconds(const SpillRates& rates, uint32_t tokens);

// Seconds to compute them again. Requires: the rate is positive.
double RecomputeSeconds(const SpillRates& rates, uint32_t tokens);

// Whether the first is less than the second. As long as prompts have not been measured it is taken
// to be: recomputing takes from what others compute, and the file from nobody.
bool SpillPays(const SpillRates& rates, uint32_t tokens);

// Whether reading them back takes less time than computing them, where they have been written
// anyway.
bool ReadPays(const SpillRates& rates, uint32_t tokens);

}  // namespace lamina::cost
