// SPDX-License-Identifier: Apache-2.0
#include "plan/tails.h"

#include <numeric>
#include <utility>

#include "common/check.h"

namespace lamina::plan {

Tails::Tails(uint32_t count) : count_(count), free_(count) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

void Tails::BeginEpoch() {
  kept_.merge(joined_);
  joined_.clear();
}

std::optional<uint32_t> Tails::Join(SequenceId id) {
  if (auto kept = kept_.extract(id); !kept.empty()) {
    return joined_.insert(std::move(kept)).position->second;
  }
  if (free_.empty()) {
    if (kept_.empty()) {
      return std::nullopt;
    }
    free_.push_back(kept_.begin()->second);
    kept_.erase(kept_.begin());
  }
  const uint32_t tail = free_.back();
  free_.pop_back();
  LAMINA_CHECK(joined_.emplace(id, tail).second);
  return tail;
}

void Tails::Leave(SequenceId id) {
  const auto joined = joined_.find(id);
  LAMINA_CHECK(joined != joined_.end());
  free_.push_back(joined->second);
  joined_.erase(joined);
}

}  // namespace lamina::plan
