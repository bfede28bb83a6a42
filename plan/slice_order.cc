// SPDX-License-Identifier: Apache-2.0
#include "plan/slice_order.h"

#include <algorithm>

#include "common/check.h"

namespace lamina::plan {

void SliceOrder::Begin(uint32_t lane) {
  if (lanes_[lane].taking_part) {
    return;
  }
  uint64_t least = UINT64_MAX;
  for (const LaneProgress& other : lanes_) {
    if (other.taking_part) {
      least = std::min(least, other.units);
    }
  }
  LaneProgress& own = lanes_[lane];
  own.taking_part = true;
  own.units = least == UINT64_MAX ? own.units : std::max(own.units, least);
}

void SliceOrder::SetReady(uint32_t lane) {
  LAMINA_CHECK(lanes_[lane].taking_part);
  lanes_[lane].ready_since = ++now_;
}

bool SliceOrder::IsBefore(const LaneProgress& a, const LaneProgress& b) const {
  const uint64_t rank_a = RankOf(a);
  const uint64_t rank_b = RankOf(b);
  return rank_a != rank_b ? rank_a < rank_b : a.ready_since < b.ready_since;
}

std::optional<uint32_t> SliceOrder::Next() {
  std::optional<uint32_t> next;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    const LaneProgress& lane = lanes_[i];
    if (lane.ready_since != 0 && (!next || IsBefore(lane, lanes_[*next]))) {
      next = i;
    }
  }
  if (next) {
    lanes_[*next].ready_since = 0;
    ++lanes_[*next].units;
  }
  return next;
}

void SliceOrder::End(uint32_t lane) {
  lanes_[lane].taking_part = false;
  lanes_[lane].ready_since = 0;
}

}  // namespace lamina::plan
