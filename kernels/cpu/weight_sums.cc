// SPDX-License-Identifier: Apache-2.0
//
// The sum over heads in vectors, compiled once for each instruction set; products and sums are
// rounded one by one, as in SumWeights().
#include "kernels/cpu/weight_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/check.h"
#include "kernels/cpu/attention_ahead.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/weight_sums.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::internal {
namespace HWY_NAMESPACE {

// to[i] += shares[0][i / kBlockTokens] * from[0][i], and so on for all heads. The first weights of
// long rows have left the second-level cache: lines of all heads are asked for some time before
// they are added, about as many as a core can have under way.
// Shapes: from  [kHeads] rows of `tokens`; shares  [kHeads] rows of a block each
template <size_t kHeads>
void AddHeadRows(const float* const* from, const float* const* shares, uint32_t tokens, float* to) {
  namespace hn = hwy::HWY_NAMESPACE;
  using D = hn::CappedTag<float, 16>;
  using Vector = hn::Vec<D>;
  constexpr auto kLanes = static_cast<uint32_t>(hn::MaxLanes(D()));
  constexpr uint32_t kLineFloats = 64 / sizeof(float);
  constexpr uint32_t kAhead = 48 / kHeads * kLineFloats;
  const D d;
  for (uint32_t first = 0, block = 0; first < tokens; first += kBlockTokens, ++block) {
    const uint32_t end = std::min(tokens, first + kBlockTokens);
    Vector factors[kHeads];
#pragma GCC unroll 8
    for (size_t head = 0; head < kHeads; ++head) {
      factors[head] = hn::Set(d, shares[head][block]);
    }
    uint32_t i = first;
    for (; i + kLanes <= end; i += kLanes) {
      Vector sum = hn::LoadU(d, to + i);
#pragma GCC unroll 8
      for (size_t head = 0; head < kHeads; ++head) {
        if (kLanes >= kLineFloats || i % kLineFloats == 0) {
          PrefetchLine(from[head] + i + kAhead);
        }
        sum = hn::Add(sum, hn::Mul(factors[head], hn::LoadU(d, from[head] + i)));
      }
      hn::StoreU(sum, d, to + i);
    }
    for (; i < end; ++i) {
      for (size_t head = 0; head < kHeads; ++head) {
        to[i] += shares[head][block] * from[head][i];
      }
    }
  }
}

// Requires: `heads` is 1, 2, 4 or 8.
void AddRows(uint32_t heads, const float* const* from, const float* const* shares, uint32_t tokens,
             float* to) {
  switch (heads) {
    case 8:
      return AddHeadRows<8>(from, shares, tokens, to);
    case 4:
      return AddHeadRows<4>(from, shares, tokens, to);
    case 2:
      return AddHeadRows<2>(from, shares, tokens, to);
    default:
      return AddHeadRows<1>(from, shares, tokens, to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lamina::kernels::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels::internal {
namespace {

HWY_EXPORT(AddRows);

size_t BlocksOf(uint32_t tokens) { return (size_t{tokens} + kBlockTokens - 1) / kBlockTokens; }

// What the blocks of a row have of its head's softmax, to the bit as SumWeights() has it.
void FindShares(const AttentionWeights& weights, size_t row, size_t blocks, float* shares) {
  const float* const peaks = weights.peaks + row * weights.blocks();
  const float* const sums = weights.sums + row * weights.blocks();
  const float peak = *std::max_element(peaks, peaks + blocks);
  float all = 0;
  for (size_t block = 0; block < blocks; ++block) {
    shares[block] = std::exp(peaks[block] - peak);
    all += sums[block] * shares[block];
  }
  for (size_t block = 0; block < blocks; ++block) {
    shares[block] = shares[block] / all;
  }
}

}  // namespace

void AddHeads(const AttentionWeights& weights, uint32_t token, uint32_t first_head, uint32_t heads,
              uint32_t tokens, float* shares, float* to) {
  const size_t blocks = BlocksOf(tokens);
  for (uint32_t head = 0; head < heads;) {
    const uint32_t count = std::bit_floor(std::min(heads - head, kHeadsAdded));
    const float* from[kHeadsAdded] = {};
    const float* shares_of[kHeadsAdded] = {};
    for (uint32_t i = 0; i < count; ++i) {
      const size_t row = weights.row(token, first_head + head + i);
      from[i] = weights.weights + row * weights.tokens_max;
      shares_of[i] = shares + i * blocks;
      FindShares(weights, row, blocks, shares + i * blocks);
    }
    HWY_DYNAMIC_DISPATCH(AddRows)(count, from, shares_of, tokens, to);
    head += count;
  }
}

WeightSums::WeightSums(uint32_t context_tokens_max, size_t threads)
    : shares_of_worker_(kHeadsAdded * BlocksOf(context_tokens_max)),
      shares_(threads * shares_of_worker_) {}

void WeightSums::Begin(const AttentionDescriptor& descriptor, absl::Span<const AttentionItem> items,
                       uint32_t tile_tokens) {
  const auto summed = [](const AttentionItem& item) {
    return item.weights != nullptr && item.weights->summed != nullptr;
  };
  if (std::none_of(items.begin(), items.end(), summed)) {
    return;
  }
  kv_heads_ = descriptor.kv_heads;
  tile_tokens_ = tile_tokens;
  first_order_.clear();
  size_t orders = 0;
  for (const AttentionItem& item : items) {
    first_order_.push_back(orders);
    orders += summed(item) ? (item.query_tokens + tile_tokens - 1) / tile_tokens : 0;
  }
  orders_.assign(orders, Order());
  ended_.assign(orders * kv_heads_, 0);
  kept_.assign(orders * kv_heads_, nullptr);
}

void WeightSums::Keep(const AttentionTask& task, size_t worker, Tile& tile) {
  if (tile.weights == nullptr || tile.weights->summed == nullptr) {
    return;
  }
  const std::lock_guard lock(mutex_);
  Kept*& kept = kept_[OrderOf(task) * kv_heads_ + task.kv_head];
  if (kept == nullptr) {
    kept = Take(worker);
    MakeRoom(tile, *kept);
  }
  tile.weights = &kept->weights;
  tile.weights_row = 0;
}

WeightSums::Kept* WeightSums::Take(size_t worker) {
  if (free_.empty()) {
    all_.push_back(std::make_unique<Kept>());
    free_.push_back(all_.back().get());
  }
  const auto own = std::find_if(free_.rbegin(), free_.rend(),
                                [&](const Kept* kept) { return kept->worker == worker; });
  const auto taken = own == free_.rend() ? free_.end() - 1 : own.base() - 1;
  Kept* const kept = *taken;
  free_.erase(taken);
  kept->worker = worker;
  return kept;
}

// Rows are an odd number of lines apart, so that they share neither lines nor cache sets.
void WeightSums::MakeRoom(const Tile& tile, Kept& kept) {
  constexpr uint32_t kLineFloats = 64 / sizeof(float);
  const uint32_t tokens = tile.EndSeen(tile.query_tokens - 1);
  const uint32_t row_floats = ((tokens + kLineFloats - 1) / kLineFloats | 1) * kLineFloats;
  const size_t floats = AttentionWeights::FloatsOf(tile.group, row_floats) * tile.query_tokens;
  if (kept.floats < floats) {
    kept.floats = std::bit_ceil(floats);  // Sequences grow.
    kept.memory = hwy::AllocateAligned<float>(kept.floats);
    LAMINA_CHECK(kept.memory != nullptr);
  }
  const AttentionWeights& asked = *tile.weights;
  kept.weights =
      AttentionWeights::Over(kept.memory.get(), tile.query_tokens, tile.group, row_floats);
  kept.weights.summed = asked.summed;
  kept.weights.summed_stride = asked.summed_stride;
}

void WeightSums::End(const AttentionTask& task, const Tile& tile, size_t worker) {
  if (tile.weights == nullptr || tile.weights->summed == nullptr) {
    return;
  }
  const size_t index = OrderOf(task);
  const uint8_t* const ended = ended_.data() + index * kv_heads_;
  Kept* const* const kept = kept_.data() + index * kv_heads_;
  Order& order = orders_[index];
  std::unique_lock lock(mutex_);
  ended_[index * kv_heads_ + task.kv_head] = 1;
  if (order.adding) {
    return;  // That worker finds this one when it is next.
  }
  order.adding = true;
  while (order.next < kv_heads_ && ended[order.next] != 0) {
    Kept* const next = kept[order.next];
    lock.unlock();
    AddKvHead(task, tile, next->weights, worker);
    lock.lock();
    free_.push_back(next);
    ++order.next;
  }
  order.adding = false;
}

// All KV heads have the same query tokens.
void WeightSums::AddKvHead(const AttentionTask& task, const Tile& tile,
                           const AttentionWeights& weights, size_t worker) {
  float* const shares = shares_.data() + worker * shares_of_worker_;
  for (uint32_t i = 0; i < tile.query_tokens; ++i) {
    AddHeads(weights, i, 0, tile.group, tile.EndSeen(i), shares,
             weights.summed + size_t{task.first_token + i} * weights.summed_stride);
  }
}

}  // namespace lamina::kernels::internal
#endif  // HWY_ONCE
