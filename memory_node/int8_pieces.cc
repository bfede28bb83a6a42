// SPDX-License-Identifier: Apache-2.0
#include "memory_node/int8_pieces.h"

#include <algorithm>
#include <utility>

#include "common/kv_form.h"
#include "common/status_macros.h"
#include "kernels/attention.h"
#include "kernels/int8_kv.h"

namespace lamina::memory_node {
namespace {

// Calls `visit` for each run of which some of the slots [begin, end) are, counted over the heads:
// with the head and the run's number, its first slot, and where in the range it begins and ends.
template <typename SlotsOf, typename Visit>
absl::Status VisitRuns(const plan::FetchPiece& piece, size_t per_head, size_t begin, size_t end,
                       const SlotsOf& slots_of, const Visit& visit) {
  size_t slot = begin / per_head * per_head;
  for (auto head = static_cast<uint32_t>(begin / per_head); slot < end; ++head) {
    for (uint32_t run = piece.first_run; run < piece.runs_end && slot < end; ++run) {
      const size_t slots = slots_of(run);
      const size_t from = std::max(slot, begin);
      const size_t to = std::min(slot + slots, end);
      if (from < to) {
        LAMINA_RETURN_IF_ERROR(visit(head, run, slot, from, to));
      }
      slot += slots;
    }
  }
  return absl::OkStatus();
}

template <typename T>
void Clear(T* plane, size_t first, size_t end, size_t width) {
  std::fill(plane + first * width, plane + std::max(first, end) * width, T());
}

}  // namespace

void TailCopy::Begin(uint32_t tail_slot, uint32_t tokens) {
  tail_slot_ = tail_slot;
  tokens_ = tokens;
  for (Layer& layer : layers_) {
    layer.taken = false;
  }
}

absl::Status TailCopy::Take(uint32_t layer, const AttentionDescriptor& part,
                            kernels::KvReads& reads) {
  if (Has(layer)) {
    return absl::OkStatus();
  }
  layers_.resize(std::max<size_t>(layers_.size(), layer + 1));
  Layer& copy = layers_[layer];
  copy.head_dim = part.head_dim;
  const size_t plane = size_t{kInt8BlockTokens} * part.head_dim;
  copy.data.resize(2 * plane * part.kv_heads);
  const Extent tail{.first_slot = tail_slot_, .tokens = kInt8BlockTokens};
  for (uint32_t head = 0; head < part.kv_heads; ++head) {
    BFloat16* const k = copy.data.data() + 2 * plane * head;
    LAMINA_RETURN_IF_ERROR(reads.Load(layer, head, {&tail, 1}, 0, tokens_, k, k + plane));
  }
  copy.taken = true;
  return absl::OkStatus();
}

void TailCopy::Load(uint32_t layer, uint32_t head, uint32_t first, uint32_t tokens, BFloat16* k,
                    BFloat16* v) const {
  const Layer& copy = layers_[layer];
  const size_t plane = size_t{kInt8BlockTokens} * copy.head_dim;
  const BFloat16* const from = copy.data.data() + 2 * plane * head;
  const Extent whole{.first_slot = 0, .tokens = kInt8BlockTokens};
  kernels::LoadKv(copy.head_dim, from, from + plane, {&whole, 1}, first, tokens, k, v);
}

Int8Gather::Int8Gather(const plan::FetchPiece& piece, uint32_t layer, uint32_t head_dim,
                       const Runs& runs, std::byte* data)
    : piece_(piece),
      layer_(layer),
      head_dim_(head_dim),
      runs_(runs),
      data_(data),
      planes_(plan::PlanesOf(piece, head_dim)) {}

absl::Status Int8Gather::Closed(kernels::KvReads& reads, size_t first, size_t end) const {
  auto* const k = reinterpret_cast<uint8_t*>(data_ + planes_.int8_k);
  auto* const v = reinterpret_cast<uint8_t*>(data_ + planes_.int8_v);
  auto* const v_scales = reinterpret_cast<kernels::Int8Scale*>(data_ + planes_.v_scales);
  return VisitRuns(
      piece_, closed_slots(), first * kTile, end * kTile,
      [this](uint32_t run) {
        return runs_.runs[run].int8_slots() - runs_.runs[run].filled_slots();
      },
      [&](uint32_t head, uint32_t run, size_t slot, size_t from, size_t to) -> absl::Status {
        const Int8RunTokens& tokens = runs_.tokens[run];
        const size_t skipped = Skipped(head, piece_.filled);
        uint8_t* const head_k = k + skipped * head_dim_;
        uint8_t* const head_v = v + skipped * head_dim_;
        kernels::Int8Scale* const head_scales = v_scales + skipped;
        const size_t tokens_end = std::clamp(slot + runs_.runs[run].int8_fetched(), from, to);
        const size_t seen = std::clamp(slot + tokens.hidden, from, tokens_end);
        Clear(head_k, from, seen, head_dim_);
        // K of a tile with some tokens is cleared whole before these come.
        Clear(head_k, tokens_end / kTile * kTile, to, head_dim_);
        for (const auto& [begin, upto] : {std::pair(from, seen), std::pair(tokens_end, to)}) {
          Clear(head_v, begin, upto, head_dim_);
          Clear(head_scales, begin, upto, 1);
        }
        if (seen == tokens_end) {
          return absl::OkStatus();
        }
        return reads.LoadClosed(layer_, piece_.heads.first + head, tokens.slots,
                                static_cast<uint32_t>(seen - slot),
                                static_cast<uint32_t>(tokens_end - seen),
                                {.k = head_k + slot * head_dim_,
                                 .v = head_v + slot * head_dim_,
                                 .v_scales = head_scales + slot});
      });
}

absl::Status Int8Gather::Scales(kernels::KvReads& reads, size_t first, size_t end) const {
  const size_t share = Int8ScalesOfSlot(static_cast<uint32_t>(head_dim_));
  auto* const scales = reinterpret_cast<kernels::Int8Scale*>(data_ + planes_.k_scales);
  return VisitRuns(
      piece_, scale_slots(), first * kTile, end * kTile,
      [this](uint32_t run) {
        return runs_.runs[run].scale_slots() - runs_.runs[run].filled_scales();
      },
      [&](uint32_t head, uint32_t run, size_t slot, size_t from, size_t to) -> absl::Status {
        const Int8RunTokens& tokens = runs_.tokens[run];
        kernels::Int8Scale* const head_scales =
            scales + Skipped(head, piece_.filled_scales) * share;
        const size_t tokens_end = std::clamp(slot + runs_.runs[run].scales_fetched(), from, to);
        const size_t seen = std::clamp(slot + tokens.hidden, from, tokens_end);
        Clear(head_scales, from, seen, share);
        Clear(head_scales, tokens_end, to, share);
        if (seen == tokens_end) {
          return absl::OkStatus();
        }
        return reads.LoadClosed(layer_, piece_.heads.first + head, tokens.scale_slots,
                                static_cast<uint32_t>(seen - slot),
                                static_cast<uint32_t>(tokens_end - seen),
                                {.k_scales = head_scales + slot * share});
      });
}

absl::Status Int8Gather::Tails(kernels::KvReads& reads, size_t first, size_t end) const {
  auto* const k = reinterpret_cast<BFloat16*>(data_ + planes_.k);
  auto* const v = reinterpret_cast<BFloat16*>(data_ + planes_.v);
  return VisitRuns(
      piece_, tail_slots(), first * kTile, end * kTile,
      [this](uint32_t run) { return runs_.runs[run].tail_slots() - runs_.runs[run].filled_open(); },
      [&](uint32_t head, uint32_t run, size_t slot, size_t from, size_t to) -> absl::Status {
        const Int8RunTokens& tokens = runs_.tokens[run];
        const size_t tokens_end = std::clamp(slot + runs_.runs[run].tail_fetched(), from, to);
        BFloat16* const head_k = k + Skipped(head, piece_.filled_open) * head_dim_;
        BFloat16* const head_v = v + Skipped(head, piece_.filled_open) * head_dim_;
        // K of a tile with some tokens is cleared whole before these come.
        Clear(head_k, std::max(tokens_end / kTile * kTile, from), to, head_dim_);
        Clear(head_v, tokens_end, to, head_dim_);
        if (from == tokens_end) {
          return absl::OkStatus();
        }
        const auto begin = static_cast<uint32_t>(from - slot);
        const auto count = static_cast<uint32_t>(tokens_end - from);
        const uint32_t kv_head = piece_.heads.first + head;
        BFloat16* const run_k = head_k + slot * head_dim_;
        BFloat16* const run_v = head_v + slot * head_dim_;
        if (tokens.copy != nullptr && tokens.copy->Has(layer_)) {
          tokens.copy->Load(layer_, kv_head, begin, count, run_k, run_v);
          return absl::OkStatus();
        }
        return reads.Load(layer_, kv_head, tokens.open, begin, count, run_k, run_v);
      });
}

}  // namespace lamina::memory_node
