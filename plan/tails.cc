// SPDX-License-Identifier: Apache-2.0
#include "plan/tails.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/check.h"

namespace lamina::plan {

Tails::Tails(uint32_t count) : count_(count), free_(count) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

void Tails::BeginEpoch() {
  while (!moving_.empty()) {
    EndMove(moving_.begin()->first);
  }
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
  const uint32_t tail = joined->second;
  joined_.erase(joined);
  const auto moves = std::find_if(moving_.begin(), moving_.end(),
                                  [tail](const auto& move) { return move.second.tail == tail; });
  if (moves == moving_.end()) {
    free_.push_back(tail);
  } else {
    moves->second.left = true;
  }
}

void Tails::BeginMove(SequenceId id, uint64_t move) {
  const auto joined = joined_.find(id);
  LAMINA_CHECK(joined != joined_.end());
  moving_.insert_or_assign(move, Moving{.tail = joined->second});
}

void Tails::EndMove(uint64_t move) {
  const auto ended = moving_.extract(move);
  if (!ended.empty() && ended.mapped().left) {
    free_.push_back(ended.mapped().tail);
  }
}

}  // namespace lamina::plan
