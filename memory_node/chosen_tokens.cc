// SPDX-License-Identifier: Apache-2.0
#include "memory_node/chosen_tokens.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "memory_node/int8_pieces.h"
#include "plan/slot_tables.h"
#include "plan/token_sets.h"

namespace lamina::memory_node {
namespace {

// The slots of the tokens of `set`, in order; `extents` are those of all tokens.
void SlotsOfTokens(absl::Span<const uint64_t> set, absl::Span<const Extent> extents,
                   std::vector<Extent>& slots) {
  slots.clear();
  uint32_t passed = 0;  // Tokens of the extents before.
  for (uint32_t word = 0; word < set.size(); ++word) {
    for (uint64_t left = set[word]; left != 0; left &= left - 1) {
      const uint32_t token = word * 64 + static_cast<uint32_t>(std::countr_zero(left));
      while (token - passed >= extents.front().tokens) {
        passed += extents.front().tokens;
        extents.remove_prefix(1);
      }
      plan::AppendSlot(extents.front().first_slot + token - passed, slots);
    }
  }
}

class ChosenBF16 final : public ChosenTokens {
 public:
  explicit ChosenBF16(kernels::KvReads& kv) : kv_(kv) {}

  void Begin(absl::Span<const FetchedRun> fetched) override {
    slots_.resize(std::max(slots_.size(), fetched.size()));
  }
  absl::Status KeepTails(uint32_t /*layer*/) override { return absl::OkStatus(); }

  absl::Status Check(const plan::FetchRun& run, absl::Span<const uint64_t> set, uint64_t kept,
                     const std::string& of) const override {
    const uint64_t named = plan::CountTokens(set);
    return kept <= run.before && named + kept <= run.before
               ? absl::OkStatus()
               : absl::InternalError(absl::StrCat(of, " name ", named, " tokens and keep ", kept,
                                                  " of the ", run.before, " before it"));
  }

  void BeginLayer() override { tokens_.clear(); }

  plan::FetchRun AddRun(const FetchedRun& fetched, absl::Span<const uint64_t> set,
                        uint64_t kept) override {
    std::vector<Extent>& slots = slots_[tokens_.size()];
    SlotsOfTokens(set, fetched.slots.kv, slots);
    tokens_.push_back({.slots = slots});
    return plan::ChosenRun(fetched.run, set, kept, /*int8=*/false);
  }

  absl::Status Put(PieceStream& pieces, Lane& lane) override {
    return pieces.PutTiles(lane, kv_, tokens_);
  }

 private:
  kernels::KvReads& kv_;
  std::vector<std::vector<Extent>> slots_;  // By run: where the layer's tokens lie.
  std::vector<RunTokens> tokens_;           // The layer's runs so far.
};

// Chosen tokens of closed blocks are INT8, those of the open one bf16.
class ChosenInt8 final : public ChosenTokens {
 public:
  ChosenInt8(const NodeEpoch& epoch, kernels::KvReads& kv) : epoch_(epoch), kv_(kv) {}

  void Begin(absl::Span<const FetchedRun> fetched) override {
    places_.resize(std::max(places_.size(), fetched.size()));
    copies_.resize(std::max(copies_.size(), fetched.size()));
    passing_.clear();
    for (size_t run = 0; run < fetched.size(); ++run) {
      if (PassesTail(fetched[run].run)) {
        copies_[run].Begin(TailOf(*fetched[run].sequence).first_slot,
                           fetched[run].run.tail_fetched());
        passing_.push_back(run);
      }
    }
  }

  absl::Status KeepTails(uint32_t layer) override {
    for (const size_t run : passing_) {
      LAMINA_RETURN_IF_ERROR(copies_[run].Take(layer, epoch_.layers[layer], kv_));
    }
    return absl::OkStatus();
  }

  // Consecutive rows attend to all tokens, which come: their blocks close at different rows. Where
  // any token is kept the open block is.
  absl::Status Check(const plan::FetchRun& run, absl::Span<const uint64_t> set, uint64_t kept,
                     const std::string& of) const override {
    const plan::Int8Tokens come = plan::Int8Tokens::Of(run, set);
    const plan::Int8Tokens stay = plan::Int8Tokens::FromWord(kept);
    const uint64_t blocks = uint64_t{stay.blocks} + come.blocks;
    if (stay.closed < stay.blocks || stay.closed > uint64_t{stay.blocks} * kInt8BlockTokens ||
        blocks > run.int8_fetched() / kInt8BlockTokens || stay.open > run.tail_fetched() ||
        (kept != 0 && (come.open > 0 || run.tokens > 1))) {
      return absl::InternalError(
          absl::StrCat(of, " name ", come.all(), " tokens and keep ", stay.closed, " of ",
                       stay.blocks, " blocks and ", stay.open, " of the open one, of the ",
                       run.before, " before ", run.tokens, " rows, which with INT8 cannot be"));
    }
    if (run.tokens <= 1 || plan::IsWhole(set, run.before)) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat(of, " name ", plan::CountTokens(set), " of the ",
                                            run.before, " tokens before ", run.tokens,
                                            " rows, which with INT8 attend to all of them"));
  }

  void BeginLayer() override { tokens_.clear(); }

  plan::FetchRun AddRun(const FetchedRun& fetched, absl::Span<const uint64_t> set,
                        uint64_t kept) override {
    const size_t run = tokens_.size();
    Places& places = places_[run];
    const plan::SlotTables::Sequence& sequence = *fetched.sequence;
    const size_t closed = fetched.run.int8_fetched() / kInt8BlockTokens;  // A word is a block.
    SlotsOfTokens(set.first(closed), sequence.extents, places.slots);
    blocks_.assign(set.begin(), set.begin() + static_cast<ptrdiff_t>(closed));
    for (uint64_t& word : blocks_) {
      word = word == 0 ? 0 : ~uint64_t{0};
    }
    SlotsOfTokens(blocks_, sequence.extents, places.blocks);
    places.open.clear();
    for (uint64_t left = closed < set.size() ? set[closed] : 0; left != 0; left &= left - 1) {
      plan::AppendSlot(TailOf(sequence).first_slot + static_cast<uint32_t>(std::countr_zero(left)),
                       places.open);
    }
    tokens_.push_back({.slots = places.slots,
                       .scale_slots = places.blocks,
                       .open = places.open,
                       .copy = PassesTail(fetched.run) ? &copies_[run] : nullptr});
    return plan::ChosenRun(fetched.run, set, kept, /*int8=*/true);
  }

  absl::Status Put(PieceStream& pieces, Lane& lane) override {
    return pieces.PutInt8(lane, kv_, tokens_);
  }

 private:
  // Where the layer's tokens of a run lie: those of closed blocks, whole blocks that have some, and
  // those of the open one.
  struct Places {
    std::vector<Extent> slots;
    std::vector<Extent> blocks;
    std::vector<Extent> open;
  };

  const NodeEpoch& epoch_;
  kernels::KvReads& kv_;
  std::vector<Places> places_;         // By run.
  std::vector<TailCopy> copies_;       // By run, of those that pass a tail:
  std::vector<size_t> passing_;        // these.
  std::vector<Int8RunTokens> tokens_;  // The layer's runs so far.
  std::vector<uint64_t> blocks_;
};

}  // namespace

std::unique_ptr<ChosenTokens> MakeChosenTokens(const NodeEpoch& epoch, kernels::KvReads& kv,
                                               KvForm form) {
  if (form == KvForm::kInt8) {
    return std::make_unique<ChosenInt8>(epoch, kv);
  }
  return std::make_unique<ChosenBF16>(kv);
}

}  // namespace lamina::memory_node
