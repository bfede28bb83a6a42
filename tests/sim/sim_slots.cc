// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_slots.h"

#include "tests/sim/fake_model.h"

namespace lamina::sim {

SimArena MakeArena(const core::SchedulerOptions& options, const core::MemoryNodeShare& share) {
  const bool int8 = share.form.value_or(options.kv) == KvForm::kInt8;
  const uint32_t tails = int8 ? options.int8_tails : 0;
  return {.slots = std::vector<SimSlot>(share.slots),
          .tails = {.owners = plan::Tails(tails),
                    .blocks = {tails, std::vector<SimSlot>(options.int8_block_tokens)}}};
}

uint64_t HistoryOf(const std::vector<TokenId>& tokens, size_t count) {
  uint64_t history = 0;
  for (size_t i = 0; i < count; ++i) {
    history = Mix(history ^ (static_cast<uint64_t>(tokens[i]) + 0x9e3779b97f4a7c15ULL));
  }
  return history;
}

bool IsSecondShare(const core::MemoryNodeShare& share) {
  return share.form == KvForm::kInt8 || share.paths.Has(plan::AttentionPath::kHybrid);
}

// The slots of each share are memory of their own, which a node keeps, or loses, as one.
uint64_t MemoryOf(const core::MemoryNodeShare& share) {
  constexpr uint64_t kSecond = uint64_t{1} << 63;
  return share.arena == 0 || !IsSecondShare(share) ? share.arena : share.arena | kSecond;
}

}  // namespace lamina::sim
