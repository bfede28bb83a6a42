// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/scheduler_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/core/scratch_space.h"

namespace lamina::core {
namespace {

absl::Status AtLeastOne(absl::string_view field, uint32_t value) {
  return value >= 1 ? absl::OkStatus()
                    : absl::InvalidArgumentError(absl::StrCat(field, " is 0; at least 1"));
}

}  // namespace

bool HasSpillTier(absl::Span<const MemoryNodeShare> nodes) {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const MemoryNodeShare& node) { return node.spill.blocks > 0; });
}

// FNV-1a over words: names are drawn at random, so all that it has to keep is their order.
uint64_t JoinArenas(absl::Span<const uint64_t> arenas) {
  if (std::find(arenas.begin(), arenas.end(), 0) != arenas.end() || arenas.empty()) {
    return 0;
  }
  uint64_t joined = arenas.front();
  for (const uint64_t arena : arenas.subspan(1)) {
    joined = (joined ^ arena) * 0x100000001b3u + 1;
  }
  return std::max<uint64_t>(joined, 1);
}

absl::Status SchedulerOptions::Validate() const {
  LAMINA_RETURN_IF_ERROR(AtLeastOne("lanes", lanes));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("plan_ahead", plan_ahead));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("rows_max", rows_max));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("step_tokens_max", step_tokens_max));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("chunk_tokens", chunk_tokens));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("sequence_tokens_max", sequence_tokens_max));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("running_max", running_max));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("scratch_tokens", scratch_tokens));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("release_tokens", release_tokens));
  if (prefill_lanes.count() > 0 && sequence_tokens_max > scratch_tokens) {
    // A prompt lies there as a whole: with less, the longest one could never be prefilled.
    return absl::InvalidArgumentError(absl::StrCat("sequence_tokens_max is ", sequence_tokens_max,
                                                   ", more than scratch_tokens ", scratch_tokens));
  }
  return absl::OkStatus();
}

// A window begins in one block and ends in another. Cut, what it reaches may begin and end within
// spans, and the next span needs a place before the first one has none.
uint32_t SchedulerOptions::SlotsAtOnce(uint32_t tokens) const {
  if (windows.longest() == 0) {
    return tokens;
  }
  uint64_t reach = uint64_t{windows.longest()} + release_tokens;
  if (span_tokens > 0) {
    reach = ((reach + span_tokens - 1) / span_tokens + 2) * span_tokens;
  }
  return static_cast<uint32_t>(std::min<uint64_t>(tokens, reach));
}

uint32_t SchedulerOptions::ResidentOfEach() const {
  return resident_tokens / running_max / ScratchSpace::kAlignment * ScratchSpace::kAlignment;
}

uint32_t SchedulerOptions::SlotsOfLongest(plan::AttentionPath path) const {
  uint64_t most = 0;
  for (const MemoryNodeShare& node : memory_nodes) {
    if (!MayHold(node, path)) {
      continue;
    }
    if (span_tokens == 0) {
      most = std::max<uint64_t>(most, node.slots);
    } else {
      most += node.slots / span_tokens * span_tokens;
    }
  }
  return static_cast<uint32_t>(std::min<uint64_t>(most, UINT32_MAX));
}

}  // namespace lamina::core
