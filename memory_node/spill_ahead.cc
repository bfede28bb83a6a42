// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_ahead.h"

#include "common/check.h"

namespace lamina::memory_node {

void SpillAhead::Want(std::vector<uint32_t> blocks, std::vector<int>& free) {
  if (blocks != blocks_) {
    Forget(free);
    blocks_ = std::move(blocks);
  }
}

void SpillAhead::Forget(std::vector<int>& free) {
  for (const Read& read : read_) {
    free.push_back(read.buffer);
  }
  read_.clear();
  blocks_.clear();
  dropped_ = reading_;
}

uint32_t SpillAhead::Begin() {
  LAMINA_CHECK(HasNext());
  reading_ = true;
  return blocks_[read_.size()];
}

bool SpillAhead::End(const Read& read) {
  LAMINA_CHECK(reading_);
  reading_ = false;
  if (std::exchange(dropped_, false)) {
    return false;
  }
  read_.push_back(read);
  return true;
}

SpillAhead::Claimed SpillAhead::Claim(absl::Span<const uint32_t> blocks, std::vector<int>& free) {
  const auto is_alike = [&](size_t index) {
    return index < blocks.size() && index < blocks_.size() && blocks[index] == blocks_[index];
  };
  Claimed claimed;
  while (claimed.read.size() < read_.size() && is_alike(claimed.read.size())) {
    claimed.read.push_back(read_[claimed.read.size()]);
  }
  const size_t count = claimed.read.size();
  claimed.next_comes = count == read_.size() && reading_ && !dropped_ && is_alike(count);
  if (is_alike(0)) {
    read_.erase(read_.begin(), read_.begin() + static_cast<std::ptrdiff_t>(count));
    Forget(free);
  }
  return claimed;
}

int SpillAhead::GiveUpLast() {
  LAMINA_CHECK(holds_any());
  const int buffer = read_.back().buffer;
  read_.pop_back();
  dropped_ = reading_;  // It is not the next one any more.
  return buffer;
}

}  // namespace lamina::memory_node
