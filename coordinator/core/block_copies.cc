// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/block_copies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "cost/spill_cost.h"

namespace lamina::core {
namespace {

// Blocks are copied while less than this part of a node's slots is free.
constexpr uint32_t kFreePart = 4;

}  // namespace

std::vector<CachedBlock*> BlockCopies::RunOf(CachedBlock& last) const {
  std::vector<CachedBlock*> run(RunBlocks());
  CachedBlock* block = &last;
  for (auto at = run.rbegin(); at != run.rend(); ++at) {
    *at = block;
    block = block->parent;
  }
  return run;
}

void BlockCopies::Copy(uint32_t node, uint32_t free, uint32_t slots, plan::StepPlan& plan) {
  if (uint64_t{free} * kFreePart >= slots) {
    return;
  }
  while (spills_.MayWriteBlocks(node) && cost::SpillPays(spills_.RatesOf(node), run_tokens_)) {
    CachedBlock* const next = tree_.OldestUncopied(node);
    if (next == nullptr) {
      return;
    }
    if (!spills_.HasRoomForBlocks(node)) {
      // The room is there once nodes have been told, for a later plan.
      CachedBlock* const oldest = tree_.OldestCopied(node);
      if (oldest != nullptr && oldest->last_used < next->last_used) {
        Lose(oldest->copies.front());
      }
      return;
    }
    const std::vector<CachedBlock*> run = RunOf(*next);
    std::vector<const OpenSpan*> kept;
    for (const CachedBlock* block : run) {
      kept.push_back(block->slots);
    }
    plan.spills_out.push_back(spills_.OutBlocks(node, kept, block_tokens_));
    const uint64_t copy = plan.spills_out.back().spill;
    for (CachedBlock* block : run) {
      tree_.Unlist(*block);
      block->copies.push_back(copy);
      tree_.List(*block);
    }
    copies_[copy] = {.last = next};
  }
}

void BlockCopies::Written(uint64_t copy) {
  if (const auto found = copies_.find(copy); found != copies_.end()) {
    found->second.readable = true;
  }
}

std::vector<CachedBlock*> BlockCopies::Forget(uint64_t copy) {
  const auto found = copies_.find(copy);
  std::vector<CachedBlock*> run = RunOf(*found->second.last);
  copies_.erase(found);
  for (CachedBlock* block : run) {
    tree_.Unlist(*block);
    block->copies.erase(std::find(block->copies.begin(), block->copies.end(), copy));
    tree_.List(*block);
  }
  spills_.DropBlocks(copy);
  return run;
}

void BlockCopies::Lose(uint64_t copy) {
  if (!copies_.contains(copy)) {
    return;
  }
  const std::vector<CachedBlock*> run = Forget(copy);
  const auto lost = std::find_if(run.begin(), run.end(), [](const CachedBlock* block) {
    return !block->has_slots && block->copies.empty();
  });
  if (lost != run.end()) {
    EraseFrom(**lost);
  }
}

void BlockCopies::SlotsLost(CachedBlock& block) {
  if (block.copies.empty()) {
    return EraseFrom(block);
  }
  for (const uint64_t copy : block.copies) {
    spills_.BlockLeaves(copy, block_tokens_);
  }
}

// Copies of what is below cover blocks below alone, since this one has none. The ends go first,
// without a call for each block of a long way.
void BlockCopies::EraseFrom(CachedBlock& block) {
  CachedBlock* at = &block;
  for (;;) {
    LAMINA_CHECK(!at->has_slots);
    while (!at->copies.empty()) {
      Forget(at->copies.back());
    }
    if (!at->children.empty()) {
      at = at->children.first();
      continue;
    }
    CachedBlock* const above = at->parent;
    const bool is_it = at == &block;
    tree_.Erase(*at);
    if (is_it) {
      return;
    }
    at = above;
  }
}

uint64_t BlockCopies::ReadableFor(const CachedBlock& block) const {
  const auto readable = std::find_if(block.copies.begin(), block.copies.end(),
                                     [&](uint64_t copy) { return copies_.at(copy).readable; });
  return readable == block.copies.end() ? 0 : *readable;
}

absl::Status BlockCopies::Audit() const {
  size_t mentions = 0;
  for (const auto& [id, block] : tree_.blocks()) {
    mentions += block->copies.size();
  }
  for (const auto& [copy, entry] : copies_) {
    if (!tree_.EndsRun(*entry.last) || !spills_.HasBlocks(copy)) {
      return absl::InternalError(absl::StrCat("copy ", copy, " is of no run, or in no tier"));
    }
    for (const CachedBlock* block : RunOf(*entry.last)) {
      if (std::count(block->copies.begin(), block->copies.end(), copy) != 1) {
        return absl::InternalError(absl::StrCat("copy ", copy, " is not of all its blocks"));
      }
    }
  }
  return mentions == copies_.size() * RunBlocks()
             ? absl::OkStatus()
             : absl::InternalError("a block has a copy that is not there");
}

}  // namespace lamina::core
