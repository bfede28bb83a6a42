// SPDX-License-Identifier: Apache-2.0
//
// Reference attention: the definition of the bits, written to be read next to
// docs/design/attention_numerics.md. One thread, one query row at a time, no vectors.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/check.h"
#include "kernels/canonical_math.h"
#include "kernels/int8_kv.h"
#include "kernels/k_tiles.h"
#include "kernels/partial.h"

namespace lamina::kernels {
namespace {

class ReferenceScratch final : public AttentionScratch {
 public:
  explicit ReferenceScratch(size_t dim)
      : head_dim(dim), weights(kBlockTokens), q(dim), k(dim), out(dim), stack(dim) {}

  const size_t head_dim;
  std::vector<size_t> slots;   // Slots of the item's tokens.
  std::vector<float> weights;  // Scores, then their exponentials. [kBlockTokens]
  std::vector<float> q;        // [head_dim]
  std::vector<float> k;        // [head_dim], of one token; then V of it.
  std::vector<float> out;      // [head_dim]
  PartialStack stack;
};

void Widen(const BFloat16* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = ToFloat(from[i]);
  }
}

// Lane l takes eight of every 32 elements, from 8 l on, in their order.
float Dot(const float* q, const float* k, size_t head_dim) {
  float lanes[canonical::kScoreLanes] = {};
  for (size_t i = 0; i < head_dim; ++i) {
    float& lane = lanes[i % 32 / 8];
    lane = std::fma(q[i], k[i], lane);
  }
  return canonical::SumScoreLanes(lanes);
}

// One query head of one token: where its keys and values are.
struct Row {
  const AttentionDescriptor& descriptor;
  const std::vector<size_t>& slots;  // By token.
  Int8View int8;                     // Slot 0 of this KV head, where the first tokens lie in INT8.
  size_t int8_tokens;                // So many tokens are INT8, in their slots.
  const AttentionItem& item;         // Its INT8 tokens may be chosen ones.
  size_t tail_slot;   // The others follow each other from this slot of `k` and `v` on.
  const BFloat16* k;  // Slot 0 of this KV head, in tiles.
  const BFloat16* v;
  size_t first_token;  // The row sees tokens [first_token, end_token).
  size_t end_token;
  const AttentionWeights* weights;  // Takes the weights; null if they are not wanted.
  size_t weights_row;
};

// Sets `slots` to those that the extents name, in order.
void FindSlots(absl::Span<const Extent> extents, std::vector<size_t>& slots) {
  slots.clear();
  for (const Extent& extent : extents) {
    for (uint32_t i = 0; i < extent.tokens; ++i) {
      slots.push_back(size_t{extent.first_slot} + i);
    }
  }
}

size_t SlotOf(const Row& row, size_t token) {
  LAMINA_CHECK(token < row.slots.size() && "the extents cover every token that a query may see");
  return row.slots[token];
}

// The slot of bf16.
size_t TailSlotOf(const Row& row, size_t token) {
  return row.int8.k == nullptr ? SlotOf(row, token) : row.tail_slot + token - row.int8_tokens;
}

// The scale of a channel of K of an INT8 token.
Int8Scale KeyScale(const Row& row, size_t token, size_t channel, size_t share) {
  if (row.item.chosen.empty()) {
    const size_t block = token / kInt8BlockTokens * kInt8BlockTokens;
    const size_t holder = SlotOf(row, block + channel / share);
    return row.int8.k_scales[holder * share + channel % share];
  }
  size_t block = 0;
  for (size_t passed = row.item.chosen[0]; passed <= token; passed += row.item.chosen[block]) {
    ++block;
  }
  return row.int8.k_scales[row.item.ScaleSlotOf(block) * share + channel];
}

// K of one token.
void WidenKey(const Row& row, size_t token, size_t head_dim, float* to) {
  if (token >= row.int8_tokens) {
    const size_t slot = TailSlotOf(row, token);
    for (size_t i = 0; i < head_dim; ++i) {
      to[i] = ToFloat(row.k[OffsetInTiles(slot, i, head_dim)]);
    }
    return;
  }
  const size_t slot = SlotOf(row, token);
  const size_t share = Int8ScalesOfSlot(static_cast<uint32_t>(head_dim));
  for (size_t i = 0; i < head_dim; ++i) {
    to[i] =
        FromInt8(row.int8.k[OffsetInInt8Tiles(slot, i, head_dim)], KeyScale(row, token, i, share));
  }
}

// V of one token.
void WidenValue(const Row& row, size_t token, size_t head_dim, float* to) {
  if (token >= row.int8_tokens) {
    Widen(row.v + TailSlotOf(row, token) * head_dim, head_dim, to);
    return;
  }
  const size_t slot = SlotOf(row, token);
  for (size_t i = 0; i < head_dim; ++i) {
    to[i] = FromInt8(row.int8.v[slot * head_dim + i], row.int8.v_scales[slot]);
  }
}

float Score(const Row& row, size_t token, ReferenceScratch& scratch) {
  const size_t head_dim = scratch.head_dim;
  WidenKey(row, token, head_dim, scratch.k.data());
  const float s = row.descriptor.scale * Dot(scratch.q.data(), scratch.k.data(), head_dim);
  const float cap = row.descriptor.soft_cap;
  return cap > 0.0f ? cap * canonical::Tanh(s / cap) : s;
}

// Keeps the weights of tokens [begin, end), which are in the scratch.
void KeepWeights(const Row& row, size_t begin, size_t end, float peak, float sum,
                 const ReferenceScratch& scratch) {
  const AttentionWeights& kept = *row.weights;
  const size_t block = row.weights_row * kept.blocks() + begin / kBlockTokens;
  std::copy_n(scratch.weights.begin() + static_cast<ptrdiff_t>(begin % kBlockTokens), end - begin,
              kept.weights + row.weights_row * kept.tokens_max + begin);
  kept.peaks[block] = peak;
  kept.sums[block] = sum;
}

// The partial of tokens [begin, end), which lie in one block and are not empty. Leaves `out` in the
// scratch, returns lse.
float BlockPartial(const Row& row, size_t begin, size_t end, ReferenceScratch& scratch) {
  float m = -std::numeric_limits<float>::infinity();
  for (size_t t = begin; t < end; ++t) {
    const float s = Score(row, t, scratch);
    scratch.weights[t % kBlockTokens] = s;
    m = s > m ? s : m;
  }
  float lanes[canonical::kLanes] = {};
  std::fill(scratch.out.begin(), scratch.out.end(), 0.0f);
  for (size_t t = begin; t < end; ++t) {
    const float p = canonical::Exp(scratch.weights[t % kBlockTokens] - m);
    scratch.weights[t % kBlockTokens] = p;
    lanes[t % canonical::kLanes] += p;
    WidenValue(row, t, scratch.head_dim, scratch.k.data());
    for (size_t d = 0; d < scratch.head_dim; ++d) {
      scratch.out[d] = std::fma(p, scratch.k[d], scratch.out[d]);
    }
  }
  const float sum = canonical::SumLanes(lanes);
  if (row.weights != nullptr) {
    KeepWeights(row, begin, end, m, sum, scratch);
  }
  const float inverse = 1.0f / sum;
  for (float& x : scratch.out) {
    x = x * inverse;
  }
  return m + canonical::Log(sum);
}

// Pushes empty partials for the blocks before `end_block`, largest first.
void PushHidden(size_t end_block, ReferenceScratch& scratch) {
  std::fill(scratch.out.begin(), scratch.out.end(), 0.0f);
  for (uint32_t bit = uint32_t{1} << 31, block = 0; bit != 0; bit >>= 1) {
    if ((end_block & bit) != 0) {
      scratch.stack.Push(block, bit, scratch.out.data(), -std::numeric_limits<float>::infinity());
      block += bit;
    }
  }
}

void AttendRow(const Row& row, const BFloat16* q, BFloat16* out, float* partial, const float* sink,
               ReferenceScratch& scratch) {
  Widen(q, scratch.head_dim, scratch.q.data());
  PushHidden(row.first_token / kBlockTokens, scratch);
  for (size_t begin = row.first_token; begin < row.end_token;) {
    const size_t block = begin / kBlockTokens;
    const size_t end = std::min<size_t>((block + 1) * kBlockTokens, row.end_token);
    const float lse = BlockPartial(row, begin, end, scratch);
    scratch.stack.Push(static_cast<uint32_t>(block), 1, scratch.out.data(), lse);
    begin = end;
  }
  float lse;
  scratch.stack.Fold(scratch.out.data(), &lse);
  if (partial != nullptr) {
    std::copy(scratch.out.begin(), scratch.out.end(), partial);
    partial[scratch.head_dim] = lse;
    return;
  }
  const float share = sink == nullptr ? 1.0f : ShareWithSink(lse, *sink);
  for (size_t d = 0; d < scratch.head_dim; ++d) {
    out[d] = canonical::RoundOutput(share * scratch.out[d]);
  }
}

class ReferenceKernel final : public AttentionKernel {
 public:
  const char* name() const override { return "reference"; }

  std::unique_ptr<AttentionScratch> MakeScratch(const AttentionDescriptor& descriptor, uint32_t,
                                                uint32_t, size_t) const override {
    return std::make_unique<ReferenceScratch>(descriptor.head_dim);
  }

  void Attend(const AttentionDescriptor& descriptor, const KvView& kv,
              absl::Span<const AttentionItem> items, AttentionScratch& scratch,
              ThreadPool&) const override {
    auto& mine = static_cast<ReferenceScratch&>(scratch);
    LAMINA_CHECK(descriptor.head_dim == mine.head_dim);
    LAMINA_CHECK(descriptor.head_dim % 16 == 0 && descriptor.head_dim >= 16 &&
                 descriptor.head_dim <= 256);
    LAMINA_CHECK(descriptor.kv_heads > 0 && descriptor.query_heads % descriptor.kv_heads == 0);
    for (const AttentionItem& asked : items) {
      const bool summed = asked.weights != nullptr && asked.weights->summed != nullptr;
      AttentionItem item = asked;
      std::vector<float> memory;
      AttentionWeights kept;
      if (summed) {
        const uint32_t seen = item.first_position + item.query_tokens;
        memory.resize(AttentionWeights::FloatsOf(descriptor.query_heads, seen) * item.query_tokens);
        kept =
            AttentionWeights::Over(memory.data(), item.query_tokens, descriptor.query_heads, seen);
        item.weights = &kept;
      }
      FindSlots(item.extents, mine.slots);
      for (uint32_t token = 0; token < item.query_tokens; ++token) {
        for (uint32_t head = 0; head < descriptor.query_heads; ++head) {
          AttendOne(descriptor, kv, item, token, head, mine);
        }
        if (summed) {
          SumWeights(kept, token, item.first_position + token + 1,
                     asked.weights->summed + token * asked.weights->summed_stride);
        }
      }
    }
  }

 private:
  static Int8View HeadOf(const Int8View* all, size_t head, uint32_t head_dim) {
    if (all == nullptr) {
      return {};
    }
    const size_t first = head * all->slots;
    return {.k = all->k + first * head_dim,
            .v = all->v + first * head_dim,
            .k_scales = all->k_scales + head * all->k_scale_slots() * Int8ScalesOfSlot(head_dim),
            .v_scales = all->v_scales + first,
            .slots = all->slots,
            .scale_slots = all->scale_slots};
  }

  static void AttendOne(const AttentionDescriptor& descriptor, const KvView& kv,
                        const AttentionItem& item, uint32_t token, uint32_t head,
                        ReferenceScratch& scratch) {
    const size_t end = size_t{item.first_position} + token + 1;
    const size_t window = descriptor.window;
    const size_t kv_head = head / descriptor.group();
    const Row row = {.descriptor = descriptor,
                     .slots = scratch.slots,
                     .int8 = HeadOf(kv.int8, kv_head, descriptor.head_dim),
                     .int8_tokens = item.int8_tokens,
                     .item = item,
                     .tail_slot = item.tail_slot,
                     .k = kv.k + kv_head * kv.head_stride,
                     .v = kv.v + kv_head * kv.head_stride,
                     .first_token = std::max<size_t>(
                         item.first_seen, window != 0 && end > window ? end - window : 0),
                     .end_token = end,
                     .weights = item.weights,
                     .weights_row = item.weights == nullptr ? 0 : item.weights->row(token, head)};
    const size_t column = size_t{head} * descriptor.head_dim;
    float* partial = item.partial == nullptr
                         ? nullptr
                         : item.partial + (size_t{token} * descriptor.query_heads + head) *
                                              PartialWidth(descriptor);
    BFloat16* out = partial == nullptr ? item.out + token * item.out_stride + column : nullptr;
    const float* sink = descriptor.sinks.empty() ? nullptr : &descriptor.sinks[head];
    AttendRow(row, item.q + token * item.q_stride + column, out, partial, sink, scratch);
  }
};

}  // namespace

const AttentionKernel& ReferenceAttention() {
  static const ReferenceKernel kernel;
  return kernel;
}

}  // namespace lamina::kernels
