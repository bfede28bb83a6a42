// SPDX-License-Identifier: Apache-2.0
#include "telemetry/refusals.h"

namespace lamina::telemetry {
namespace {

constexpr const char* kNames[kRefusals] = {"damaged", "stale", "epoch",  "lane",     "step",
                                           "layer",   "rows",  "sender", "schedule", "unplanned"};

}  // namespace

Refusal RefusalOf(const plan::WindowHeader& header, const plan::WindowHeader& expected) {
  if (header.magic != plan::WindowHeader::kMagic) {
    return Refusal::kDamaged;
  }
  if (absl::IsAborted(plan::CheckHeader(header, expected))) {
    return Refusal::kStale;
  }
  if (header.epoch != expected.epoch) {
    return Refusal::kEpoch;
  }
  if (header.lane != expected.lane) {
    return Refusal::kLane;
  }
  if (header.step != expected.step) {
    return Refusal::kStep;
  }
  if (header.layer != expected.layer) {
    return Refusal::kLayer;
  }
  return header.sender != expected.sender ? Refusal::kSender : Refusal::kRows;
}

void Refusals::Count(Refusal reason) {
  counts_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

uint64_t Refusals::total() const {
  uint64_t sum = 0;
  for (const std::atomic<uint64_t>& count : counts_) {
    sum += count.load(std::memory_order_relaxed);
  }
  return sum;
}

std::vector<std::pair<std::string, uint64_t>> Refusals::ByReason() const {
  std::vector<std::pair<std::string, uint64_t>> result;
  for (size_t i = 0; i < kRefusals; ++i) {
    result.emplace_back(kNames[i], counts_[i].load(std::memory_order_relaxed));
  }
  return result;
}

}  // namespace lamina::telemetry
