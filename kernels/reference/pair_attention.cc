// SPDX-License-Identifier: Apache-2.0
//
// Reference attention in pairs of bf16: the definition of the bits, written to be read next to
// docs/design/attention_numerics.md. One thread, one query row at a time, no vectors.
#include "kernels/pair_attention.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "common/check.h"
#include "kernels/canonical_math.h"
#include "kernels/k_tiles.h"
#include "kernels/pair_math.h"
#include "kernels/partial.h"

namespace lamina::kernels {
namespace {

constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

class PairScratch final : public AttentionScratch {
 public:
  explicit PairScratch(size_t dim) : head_dim(dim), out(dim), stack(dim) {}

  const size_t head_dim;
  float scores[kBlockTokens] = {};
  BFloat16 weights[kBlockTokens] = {};
  std::vector<float> out;  // [head_dim]
  PartialStack stack;
};

// One query head of one token. It sees tokens [first_token, end_token).
struct Row {
  const AttentionDescriptor& descriptor;
  absl::Span<const Extent> extents;
  const BFloat16* k;  // Slot 0 of this KV head, in tiles.
  const BFloat16* v;
  const BFloat16* q;
  size_t first_token;
  size_t end_token;
};

size_t SlotOf(absl::Span<const Extent> extents, size_t token) {
  for (const Extent& extent : extents) {
    if (token < extent.tokens) {
      return extent.first_slot + token;
    }
    token -= extent.tokens;
  }
  LAMINA_CHECK(false && "the extents cover every token that a query may see");
  return 0;
}

// What makes the scores below natural ones.
float Factor(const AttentionDescriptor& d) { return d.soft_cap > 0.0f ? 1.0f : d.scale; }

// Steps go through the head's pairs in the order in which a tile of K has them. Capped, or a plain
// product yet to be scaled.
float Score(const Row& row, size_t token, size_t head_dim) {
  const size_t slot = SlotOf(row.extents, token);
  float dot = 0.0f;
  std::vector<size_t> pairs(head_dim / 2);
  for (size_t pair = 0; pair < head_dim / 2; ++pair) {
    pairs[PlaceOfPair(pair, head_dim)] = pair;
  }
  for (const size_t pair : pairs) {
    dot = pairs::Step(dot, pairs::MakePair(row.q[2 * pair], row.q[2 * pair + 1]),
                      pairs::MakePair(row.k[OffsetInTiles(slot, 2 * pair, head_dim)],
                                      row.k[OffsetInTiles(slot, 2 * pair + 1, head_dim)]));
  }
  const float cap = row.descriptor.soft_cap;
  return cap > 0.0f ? cap * canonical::Tanh(row.descriptor.scale * dot / cap) : dot;
}

// The partial of tokens [begin, end), which lie in one block and are not empty. Leaves `out` in the
// scratch, returns lse.
float BlockPartial(const Row& row, size_t begin, size_t end, PairScratch& scratch) {
  const size_t head_dim = scratch.head_dim;
  float peak = kEmptyLse;
  for (size_t t = begin; t < end; ++t) {
    const float s = Score(row, t, head_dim);
    scratch.scores[t % kBlockTokens] = s;
    peak = s > peak ? s : peak;
  }
  const float factor = Factor(row.descriptor);
  const float power = factor * canonical::kLog2E;
  std::fill_n(scratch.weights, kBlockTokens, BFloat16{0});
  for (size_t t = begin; t < end; ++t) {
    scratch.weights[t % kBlockTokens] =
        pairs::Weight(scratch.scores[t % kBlockTokens], peak, power);
  }
  float lanes[canonical::kLanes] = {};
  std::fill(scratch.out.begin(), scratch.out.end(), 0.0f);
  for (size_t first = begin / 2 * 2; first < end; first += 2) {
    const BFloat16* weights = scratch.weights + first % kBlockTokens;
    const uint32_t pair = pairs::MakePair(weights[0], weights[1]);
    float& lane = lanes[first / 2 % canonical::kLanes];
    lane = pairs::Step(lane, pair, pairs::kOnes);
    for (size_t d = 0; d < head_dim; ++d) {
      // Zero in place of what the row does not see.
      const auto value = [&](size_t t) {
        return t >= begin && t < end ? row.v[SlotOf(row.extents, t) * head_dim + d] : BFloat16{0};
      };
      scratch.out[d] =
          pairs::Step(scratch.out[d], pair, pairs::MakePair(value(first), value(first + 1)));
    }
  }
  const float sum = canonical::SumLanes(lanes);
  const float inverse = 1.0f / sum;
  for (float& x : scratch.out) {
    x = x * inverse;
  }
  return factor * peak + canonical::Log(sum);
}

// Leaves the row's `out` in the scratch, returns lse.
float Attend(const Row& row, PairScratch& scratch) {
  std::fill(scratch.out.begin(), scratch.out.end(), 0.0f);
  uint32_t block = 0;
  for (; block < row.first_token / kBlockTokens; ++block) {
    scratch.stack.Push(block, 1, scratch.out.data(), kEmptyLse);
  }
  for (; block * size_t{kBlockTokens} < row.end_token; ++block) {
    const size_t begin = std::max<size_t>(row.first_token, block * size_t{kBlockTokens});
    const size_t end = std::min<size_t>(row.end_token, (block + 1) * size_t{kBlockTokens});
    const float lse = BlockPartial(row, begin, end, scratch);
    scratch.stack.Push(block, 1, scratch.out.data(), lse);
  }
  float lse;
  scratch.stack.Fold(scratch.out.data(), &lse);
  return lse;
}

class PairReference final : public AttentionKernel {
 public:
  const char* name() const override { return "pairs/reference"; }

  std::unique_ptr<AttentionScratch> MakeScratch(const AttentionDescriptor& descriptor, uint32_t,
                                                uint32_t, size_t) const override {
    return std::make_unique<PairScratch>(descriptor.head_dim);
  }

  void Attend(const AttentionDescriptor& descriptor, const KvView& kv,
              absl::Span<const AttentionItem> items, AttentionScratch& scratch,
              ThreadPool&) const override {
    auto& mine = static_cast<PairScratch&>(scratch);
    LAMINA_CHECK(descriptor.head_dim == mine.head_dim);
    LAMINA_CHECK(descriptor.head_dim % 16 == 0 && descriptor.head_dim >= 16 &&
                 descriptor.head_dim <= 256);
    LAMINA_CHECK(descriptor.kv_heads > 0 && descriptor.query_heads % descriptor.kv_heads == 0);
    for (const AttentionItem& item : items) {
      LAMINA_CHECK(item.weights == nullptr);
      for (uint32_t token = 0; token < item.query_tokens; ++token) {
        for (uint32_t head = 0; head < descriptor.query_heads; ++head) {
          AttendOne(descriptor, kv, item, token, head, mine);
        }
      }
    }
  }

 private:
  static void AttendOne(const AttentionDescriptor& descriptor, const KvView& kv,
                        const AttentionItem& item, uint32_t token, uint32_t head,
                        PairScratch& scratch) {
    const size_t end = size_t{item.first_position} + token + 1;
    const size_t window = descriptor.window;
    const size_t plane = head / descriptor.group() * kv.head_stride;
    const size_t column = size_t{head} * descriptor.head_dim;
    const Row row = {.descriptor = descriptor,
                     .extents = item.extents,
                     .k = kv.k + plane,
                     .v = kv.v + plane,
                     .q = item.q + token * item.q_stride + column,
                     .first_token = std::max<size_t>(
                         item.first_seen, window != 0 && end > window ? end - window : 0),
                     .end_token = end};
    const float lse = kernels::Attend(row, scratch);
    if (item.partial != nullptr) {
      float* to =
          item.partial + (size_t{token} * descriptor.query_heads + head) * PartialWidth(descriptor);
      std::copy(scratch.out.begin(), scratch.out.end(), to);
      to[scratch.head_dim] = lse;
      return;
    }
    const float share =
        descriptor.sinks.empty() ? 1.0f : ShareWithSink(lse, descriptor.sinks[head]);
    for (size_t d = 0; d < scratch.head_dim; ++d) {
      item.out[token * item.out_stride + column + d] =
          canonical::RoundOutput(share * scratch.out[d]);
    }
  }
};

}  // namespace

const AttentionKernel& ReferencePairAttention() {
  static const PairReference kernel;
  return kernel;
}

}  // namespace lamina::kernels
