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
#include "kernels/cpu/attention_kept.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/weight_sums.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::internal {
namespace HWY_NAMESPACE {

// to[i] += shares[0][i / kBlockTokens] * weights[0][i], and so on for all heads. The first weights
// of long rows have left the second-level cache: lines of all heads are asked for some time before
// they are added, about as many as a core can have under way. Lines of the sums were often changed
// by another core last.
template <size_t kHeads>
void AddHeadRows(const HeadRows& rows, uint32_t tokens, float* to) {
  namespace hn = hwy::HWY_NAMESPACE;
  using D = hn::CappedTag<float, 16>;
  using Vector = hn::Vec<D>;
  constexpr auto kLanes = static_cast<uint32_t>(hn::MaxLanes(D()));
  constexpr uint32_t kAhead = 48 / kHeads * kLineFloats;
  const D d;
  const float* from = rows.weights;
  for (uint32_t first = 0, block = 0; first < tokens; first += kBlockTokens, ++block) {
    const uint32_t count = std::min(tokens - first, kBlockTokens);
    const float* const shares = rows.shares + block;
    Vector factors[kHeads];
#pragma GCC unroll 8
    for (size_t head = 0; head < kHeads; ++head) {
      factors[head] = hn::Set(d, shares[head * rows.blocks]);
    }
    float* const sums = to + first;
    uint32_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const bool line_begins = kLanes >= kLineFloats || i % kLineFloats == 0;
      const uint32_t later = i + kAhead;
      const float* const ahead =
          from + later / kBlockTokens * rows.block_floats + later % kBlockTokens;
      if (line_begins && first + i + kSumsAhead < tokens) {
        PrefetchLineToWrite(sums + i + kSumsAhead);
      }
      Vector sum = hn::LoadU(d, sums + i);
#pragma GCC unroll 8
      for (size_t head = 0; head < kHeads; ++head) {
        if (line_begins) {
          PrefetchLine(ahead + head * kScoreStride);
        }
        sum = hn::Add(sum, hn::Mul(factors[head], hn::LoadU(d, from + head * kScoreStride + i)));
      }
      hn::StoreU(sum, d, sums + i);
    }
    for (; i < count; ++i) {
      for (size_t head = 0; head < kHeads; ++head) {
        sums[i] += shares[head * rows.blocks] * from[head * kScoreStride + i];
      }
    }
    from += rows.block_floats;
  }
}

// Requires: `heads` is 1, 2, 4 or 8.
void AddRows(uint32_t heads, const HeadRows& rows, uint32_t tokens, float* to) {
  switch (heads) {
    case 8:
      return AddHeadRows<8>(rows, tokens, to);
    case 4:
      return AddHeadRows<4>(rows, tokens, to);
    case 2:
      return AddHeadRows<2>(rows, tokens, to);
    default:
      return AddHeadRows<1>(rows, tokens, to);
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
void FindShares(const KeptTile& kept, uint32_t row, size_t blocks, float* shares) {
  const float* const peaks = kept.peaks + row;
  const float* const sums = kept.sums + row;
  float peak = peaks[0];
  for (size_t block = 1; block < blocks; ++block) {
    peak = std::max(peak, peaks[block * kept.rows]);
  }
  float all = 0;
  for (size_t block = 0; block < blocks; ++block) {
    shares[block] = std::exp(peaks[block * kept.rows] - peak);
    all += sums[block * kept.rows] * shares[block];
  }
  for (size_t block = 0; block < blocks; ++block) {
    shares[block] = shares[block] / all;
  }
}

// An array of at least `count`, of which the elements need not be movable. They begin anew where it
// grows.
template <class T>
void Grow(size_t count, std::vector<T>& array) {
  if (array.size() < count) {
    array = std::vector<T>(std::bit_ceil(count));
  }
}

}  // namespace

void AddHeads(const KeptTile& kept, uint32_t first_row, uint32_t heads, uint32_t tokens,
              float* shares, float* to) {
  // They come while the shares are found.
  for (uint32_t i = 0; i < std::min(tokens, kSumsAhead); i += kLineFloats) {
    PrefetchLineToWrite(to + i);
  }
  const size_t blocks = BlocksOf(tokens);
  for (uint32_t head = 0; head < heads;) {
    const uint32_t count = std::bit_floor(std::min(heads - head, kHeadsAdded));
    const uint32_t row = first_row + head;
    for (uint32_t i = 0; i < count; ++i) {
      FindShares(kept, row + i, blocks, shares + i * blocks);
    }
    const HeadRows rows = {.weights = kept.weights + row * kScoreStride,
                           .block_floats = kept.block_floats(),
                           .shares = shares,
                           .blocks = blocks};
    HWY_DYNAMIC_DISPATCH(AddRows)(count, rows, tokens, to);
    head += count;
  }
}

WeightSums::WeightSums(uint32_t context_tokens_max, size_t threads) : workers_(threads) {
  for (Worker& worker : workers_) {
    worker.shares.resize(kHeadsAdded * BlocksOf(context_tokens_max));
  }
}

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
  Grow(orders, orders_);
  Grow(orders * kv_heads_, heads_);
  for (size_t i = 0; i < orders; ++i) {
    orders_[i].next = 0;  // Nobody adds, and none waits, since the last call ended.
  }
  for (size_t i = 0; i < orders * kv_heads_; ++i) {
    heads_[i].kept.store(nullptr, std::memory_order_relaxed);
    heads_[i].ended.store(false, std::memory_order_relaxed);
  }
}

const KeptTile* WeightSums::Keep(const AttentionTask& task, size_t worker, Tile& tile) {
  if (tile.weights == nullptr || tile.weights->summed == nullptr) {
    return nullptr;
  }
  Head& head = heads_[OrderOf(task) * kv_heads_ + task.kv_head];
  Kept* kept = head.kept.load(std::memory_order_acquire);
  if (kept == nullptr) {
    Kept* const mine = Take(worker);
    MakeRoom(task, tile, *mine);
    if (head.kept.compare_exchange_strong(kept, mine, std::memory_order_acq_rel,
                                          std::memory_order_acquire)) {
      kept = mine;
    } else {
      mine->taken.store(false, std::memory_order_relaxed);  // Another run of the tile was first.
    }
  }
  tile.weights = nullptr;
  return &kept->tile;
}

WeightSums::Kept* WeightSums::Take(size_t worker) {
  std::vector<std::unique_ptr<Kept>>& own = workers_[worker].kept;
  for (const std::unique_ptr<Kept>& kept : own) {
    if (!kept->taken.load(std::memory_order_acquire)) {
      kept->taken.store(true, std::memory_order_relaxed);
      return kept.get();
    }
  }
  own.push_back(std::make_unique<Kept>());
  return own.back().get();
}

void WeightSums::MakeRoom(const AttentionTask& task, const Tile& tile, Kept& kept) {
  const size_t blocks = BlocksOf(tile.EndSeen(tile.query_tokens - 1));
  const size_t floats = KeptTile::FloatsOf(tile.rows(), blocks);
  if (kept.floats < floats) {
    kept.floats = std::bit_ceil(floats);  // Sequences grow.
    kept.memory = hwy::AllocateAligned<float>(kept.floats);
    LAMINA_CHECK(kept.memory != nullptr);
  }
  const AttentionWeights& asked = *tile.weights;
  kept.tile = KeptTile::Over(kept.memory.get(), tile.rows(), blocks);
  kept.tile.summed = asked.summed + size_t{task.first_token} * asked.summed_stride;
  kept.tile.summed_stride = asked.summed_stride;
}

void WeightSums::End(const AttentionTask& task, const Tile& tile, size_t worker) {
  Order& order = orders_[OrderOf(task)];
  Head* const heads = heads_.data() + OrderOf(task) * kv_heads_;
  heads[task.kv_head].ended.store(true, std::memory_order_release);
  if (order.arrived.fetch_add(1, std::memory_order_acq_rel) != 0) {
    return;  // Whoever adds finds this one when it is next.
  }
  uint32_t arrived = 1;
  uint32_t counted = 0;
  do {
    order.waiting += arrived - counted;
    counted = arrived;
    AddThoseNext(tile, heads, worker, order);
  } while (!order.arrived.compare_exchange_strong(arrived, 0, std::memory_order_acq_rel,
                                                  std::memory_order_acquire));
}

// Counts first: with none waiting it does not look at what other workers write.
void WeightSums::AddThoseNext(const Tile& tile, Head* heads, size_t worker, Order& order) {
  while (order.waiting > 0 && heads[order.next].ended.load(std::memory_order_acquire)) {
    Kept* const kept = heads[order.next].kept.load(std::memory_order_relaxed);
    AddKvHead(tile, kept->tile, worker);
    kept->taken.store(false, std::memory_order_release);
    ++order.next;
    --order.waiting;
  }
}

// All KV heads have the same query tokens.
void WeightSums::AddKvHead(const Tile& tile, const KeptTile& kept, size_t worker) {
  float* const shares = workers_[worker].shares.data();
  for (uint32_t i = 0; i < tile.query_tokens; ++i) {
    AddHeads(kept, i * tile.group, tile.group, tile.EndSeen(i), shares,
             kept.summed + i * kept.summed_stride);
  }
}

}  // namespace lamina::kernels::internal
#endif  // HWY_ONCE
