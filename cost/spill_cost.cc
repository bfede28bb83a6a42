// SPDX-License-Identifier: Apache-2.0

#include "cost/spill_cost.h"

namespace lamina::cost {
namespace {

double BytesOf(const SpillRates& rates, uint32_t tokens) {
  return rates.bytes_per_token * (tokens + tokens % rates.block_tokens);
}

}  // namespace

double SpillSeconds(const SpillRates& rates, uint32_t tokens) {
  const double bytes = BytesOf(rates, tokens);
  return bytes / rates.write_bytes_per_second + bytes / rates.read_bytes_per_second;
}

double RecomputeSeconds(const SpillRates& rates, uint32_t tokens) {
  return tokens / rates.prompt_tokens_per_second;
}

bool SpillPays(const SpillRates& rates, uint32_t tokens) {
  if (rates.write_bytes_per_second <= 0 || rates.read_bytes_per_second <= 0) {
    return false;
  }
  return rates.prompt_tokens_per_second <= 0 ||
         SpillSeconds(rates, tokens) < RecomputeSeconds(rates, tokens);
}

bool ReadPays(const SpillRates& rates, uint32_t tokens) {
  if (rates.read_bytes_per_second <= 0) {
    return false;
  }
  const double seconds = BytesOf(rates, tokens) / rates.read_bytes_per_second;
  return rates.prompt_tokens_per_second <= 0 || seconds < RecomputeSeconds(rates, tokens);
}

}  // namespace lamina::cost
