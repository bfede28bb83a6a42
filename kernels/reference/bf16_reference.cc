// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/bf16_reference.h"

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

constexpr size_t kBlockPairs = Bf16Products::kBlockPairs;
constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

class Bf16Scratch final : public AttentionScratch {
 public:
  explicit Bf16Scratch(size_t dim)
      : head_dim(dim), query(dim / 2), key(dim / 2), out(dim), stack(dim) {}

  const size_t head_dim;
  std::vector<uint32_t> query;  // [head_dim / 2] words, as LoadKey() orders them.
  std::vector<uint32_t> key;
  float scores[kBlockTokens] = {};
  size_t slots[kBlockTokens] = {};
  uint32_t weights[kBlockPairs] = {};
  uint32_t values[kBlockPairs] = {};
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

// Words of the elements of K of one token, in the order in which a tile of K has its pairs.
void LoadKey(const Row& row, size_t token, absl::Span<uint32_t> words) {
  const size_t head_dim = 2 * words.size();
  const size_t slot = SlotOf(row.extents, token);
  for (size_t pair = 0; pair < words.size(); ++pair) {
    words[PlaceOfPair(pair, head_dim)] =
        pairs::MakePair(row.k[OffsetInTiles(slot, 2 * pair, head_dim)],
                        row.k[OffsetInTiles(slot, 2 * pair + 1, head_dim)]);
  }
}

void LoadQuery(const Row& row, absl::Span<uint32_t> words) {
  for (size_t pair = 0; pair < words.size(); ++pair) {
    words[PlaceOfPair(pair, 2 * words.size())] =
        pairs::MakePair(row.q[2 * pair], row.q[2 * pair + 1]);
  }
}

// What makes the scores below natural ones.
float Factor(const AttentionDescriptor& d) { return d.soft_cap > 0.0f ? 1.0f : d.scale; }

// Capped, or a plain product yet to be scaled.
float Score(const AttentionDescriptor& d, float dot) {
  return d.soft_cap > 0.0f ? d.soft_cap * canonical::Tanh(d.scale * dot / d.soft_cap) : dot;
}

struct Softmax {
  float lse;
  float weights_sum;
};

// The weights of tokens [begin, end), which lie in one block and are not empty, from their scores;
// 0 for the block's others. Leaves them in the scratch as pairs.
Softmax FindWeights(const AttentionDescriptor& d, size_t begin, size_t end, Bf16Scratch& scratch) {
  float peak = kEmptyLse;
  for (size_t t = begin; t < end; ++t) {
    const float s = scratch.scores[t % kBlockTokens];
    peak = s > peak ? s : peak;
  }
  const float factor = Factor(d);
  const float power = factor * canonical::kLog2E;
  float lanes[canonical::kLanes] = {};
  const size_t block = begin / kBlockTokens * kBlockTokens;
  for (size_t i = 0; i < kBlockPairs; ++i) {
    const auto weight = [&](size_t t) {
      return t >= begin && t < end ? pairs::Weight(scratch.scores[t % kBlockTokens], peak, power)
                                   : BFloat16{0};
    };
    scratch.weights[i] = pairs::MakePair(weight(block + 2 * i), weight(block + 2 * i + 1));
    float& lane = lanes[i % canonical::kLanes];
    lane = pairs::Step(lane, scratch.weights[i], pairs::kOnes);
  }
  const float sum = canonical::SumLanes(lanes);
  return {.lse = factor * peak + canonical::Log(sum), .weights_sum = sum};
}

// The values of element `d` of a block's tokens; zeros in place of those that the row does not see.
void LoadValues(const Row& row, size_t begin, size_t end, size_t d, Bf16Scratch& scratch) {
  const size_t block = begin / kBlockTokens * kBlockTokens;
  for (size_t i = 0; i < kBlockPairs; ++i) {
    const auto value = [&](size_t t) {
      return t >= begin && t < end ? row.v[scratch.slots[t % kBlockTokens] * scratch.head_dim + d]
                                   : BFloat16{0};
    };
    scratch.values[i] = pairs::MakePair(value(block + 2 * i), value(block + 2 * i + 1));
  }
}

// The partial of tokens [begin, end), which lie in one block and are not empty. Leaves `out` in the
// scratch, returns lse.
float BlockPartial(const Bf16Products& products, const Row& row, size_t begin, size_t end,
                   Bf16Scratch& scratch) {
  for (size_t t = begin; t < end; ++t) {
    LoadKey(row, t, absl::MakeSpan(scratch.key));
    scratch.slots[t % kBlockTokens] = SlotOf(row.extents, t);
    scratch.scores[t % kBlockTokens] =
        Score(row.descriptor, products.Dot(scratch.query, scratch.key));
  }
  const Softmax softmax = FindWeights(row.descriptor, begin, end, scratch);
  const float inverse = 1.0f / softmax.weights_sum;
  const SeenPairs seen = {.begin = begin % kBlockTokens / 2,
                          .end = ((end - 1) % kBlockTokens) / 2 + 1};
  for (size_t d = 0; d < scratch.head_dim; ++d) {
    LoadValues(row, begin, end, d, scratch);
    scratch.out[d] = products.Value(scratch.weights, scratch.values, seen) * inverse;
  }
  return softmax.lse;
}

// Leaves the row's `out` in the scratch, returns lse.
float Attend(const Bf16Products& products, const Row& row, Bf16Scratch& scratch) {
  LoadQuery(row, absl::MakeSpan(scratch.query));
  std::fill(scratch.out.begin(), scratch.out.end(), 0.0f);
  uint32_t block = 0;
  for (; block < row.first_token / kBlockTokens; ++block) {
    scratch.stack.Push(block, 1, scratch.out.data(), kEmptyLse);
  }
  for (; block * size_t{kBlockTokens} < row.end_token; ++block) {
    const size_t begin = std::max<size_t>(row.first_token, block * size_t{kBlockTokens});
    const size_t end = std::min<size_t>(row.end_token, (block + 1) * size_t{kBlockTokens});
    const float lse = BlockPartial(products, row, begin, end, scratch);
    scratch.stack.Push(block, 1, scratch.out.data(), lse);
  }
  float lse;
  scratch.stack.Fold(scratch.out.data(), &lse);
  return lse;
}

class Bf16Reference final : public AttentionKernel {
 public:
  explicit Bf16Reference(const Bf16Products& products) : products_(products) {}

  const char* name() const override { return products_.name(); }

  std::unique_ptr<AttentionScratch> MakeScratch(const AttentionDescriptor& descriptor, uint32_t,
                                                uint32_t, size_t) const override {
    return std::make_unique<Bf16Scratch>(descriptor.head_dim);
  }

  void Attend(const AttentionDescriptor& descriptor, const KvView& kv,
              absl::Span<const AttentionItem> items, AttentionScratch& scratch,
              ThreadPool&) const override {
    auto& mine = static_cast<Bf16Scratch&>(scratch);
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
  void AttendOne(const AttentionDescriptor& descriptor, const KvView& kv, const AttentionItem& item,
                 uint32_t token, uint32_t head, Bf16Scratch& scratch) const {
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
    const float lse = kernels::Attend(products_, row, scratch);
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

  const Bf16Products& products_;
};

}  // namespace

std::unique_ptr<AttentionKernel> MakeBf16Reference(const Bf16Products& products) {
  return std::make_unique<Bf16Reference>(products);
}

}  // namespace lamina::kernels
