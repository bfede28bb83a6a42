// SPDX-License-Identifier: Apache-2.0
//
// Attention over some tokens of closed blocks, gathered with the scales of their blocks, of which
// the later half lies in front, as what a compute node puts into a piece does: the
// reference against plain double loops, every fast kernel against the reference, bit by bit, and
// all tokens against INT8 where it lies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/int8_attention_internal.h"
#include "kernels/int8_arena.h"
#include "kernels/kv_arena.h"
#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::kernels {
namespace {

struct ChosenCase {
  AttentionDescriptor descriptor;
  uint32_t position = 0;  // The row's; tokens below it may be chosen.
  double ratio = 1;       // So many of them.
  uint32_t seed = 1;
};

// A row behind a sequence whose closed blocks are INT8 in slots of the tokens' numbers, and what is
// gathered for it. Slots that no token has hold NaN.
class ChosenProblem {
 public:
  explicit ChosenProblem(const ChosenCase& c)
      : d_(c.descriptor),
        position_(c.position),
        closed_end_(Int8TokensOf(c.position)),
        random_(c.seed),
        arena_(*Int8Arena::Create({&d_, 1}, std::max(1u, closed_end_))),
        tail_(*KvArena::Create({&d_, 1}, kInt8BlockTokens)),
        open_(*KvArena::Create({&d_, 1}, kSkipped + kInt8BlockTokens)) {
    q_ = Normal(d_.q_width(), 1.5f);
    Close();
    Choose(c.ratio);
    Gather();
  }

  uint32_t tokens() const { return static_cast<uint32_t>(closed_.size() + opened_.size()); }

  std::vector<uint16_t> Attend(const AttentionKernel& kernel, ThreadPool& pool,
                               std::vector<float>* weights = nullptr) {
    const Int8View int8{.k = k_.data(),
                        .v = v_.data(),
                        .k_scales = k_scales_.data(),
                        .v_scales = v_scales_.data(),
                        .slots = slots_,
                        .scale_slots = scale_slots_};
    KvView view = open_.View(0);
    view.int8 = &int8;
    std::vector<Extent> extents;
    for (const Extent& extent : {Extent{.first_slot = FirstSlot(), .tokens = earlier_tokens_},
                                 Extent{.first_slot = kFirstSlot, .tokens = later_tokens()}}) {
      if (extent.tokens > 0) {
        extents.push_back(extent);
      }
    }
    AttentionItem item{.extents = extents,
                       .first_position = tokens() - 1,
                       .int8_tokens = static_cast<uint32_t>(closed_.size()),
                       .tail_slot = kSkipped,
                       .chosen = chosen_,
                       .scale_slot = FirstScale(),
                       .later_block = later_block_,
                       .later_scale_slot = kFirstScale};
    return Call(kernel, view, item, pool, weights);
  }

  // Attends over INT8 where it lies. Requires: all tokens are chosen.
  std::vector<uint16_t> AttendInPlace(const AttentionKernel& kernel, ThreadPool& pool) {
    const Int8View int8 = arena_.View(0);
    KvView view = tail_.View(0);
    view.int8 = &int8;
    const Extent extent{.first_slot = 0, .tokens = closed_end_};
    return Call(kernel, view,
                {.extents = {&extent, closed_end_ == 0 ? 0u : 1u},
                 .first_position = position_,
                 .int8_tokens = closed_end_},
                pool, nullptr);
  }

  // By the formulas, in double; and what the tokens get, summed over heads.
  std::vector<double> Exact(std::vector<double>& weights) {
    std::vector<double> out;
    weights.assign(tokens(), 0.0);
    for (uint32_t head = 0; head < d_.query_heads; ++head) {
      std::vector<double> scores(tokens());
      for (uint32_t i = 0; i < tokens(); ++i) {
        double s = 0;
        for (uint32_t channel = 0; channel < d_.head_dim; ++channel) {
          s += double{ToFloat(q_[size_t{head} * d_.head_dim + channel])} *
               Value(true, i, head / d_.group(), channel);
        }
        s *= double{d_.scale};
        scores[i] = d_.soft_cap > 0 ? d_.soft_cap * std::tanh(s / d_.soft_cap) : s;
      }
      const double m = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& s : scores) {
        s = std::exp(s - m);
        sum += s;
      }
      for (uint32_t channel = 0; channel < d_.head_dim; ++channel) {
        double x = 0;
        for (uint32_t i = 0; i < tokens(); ++i) {
          x += scores[i] / sum * Value(false, i, head / d_.group(), channel);
        }
        out.push_back(x);
      }
      for (uint32_t i = 0; i < tokens(); ++i) {
        weights[i] += scores[i] / sum;
      }
    }
    return out;
  }

 private:
  static constexpr uint32_t kSkipped = 5;      // Slots of bf16 before the row's.
  static constexpr uint32_t kFirstSlot = 32;   // INT8 before the row's is another's.
  static constexpr uint32_t kFirstScale = 64;  // So are scales.

  std::vector<uint16_t> Call(const AttentionKernel& kernel, const KvView& view, AttentionItem item,
                             ThreadPool& pool, std::vector<float>* weights) {
    std::vector<BFloat16> out(d_.q_width());
    item.q = q_.data();
    item.q_stride = d_.q_width();
    item.out = out.data();
    item.out_stride = d_.q_width();
    const uint32_t seen = item.first_position + 1;
    std::vector<float> memory(AttentionWeights::FloatsOf(d_.query_heads, seen));
    const auto kept = AttentionWeights::Over(memory.data(), 1, d_.query_heads, seen);
    item.weights = weights == nullptr ? nullptr : &kept;
    const auto scratch = kernel.MakeScratch(d_, 1, seen, pool.threads());
    kernel.Attend(d_, view, {&item, 1}, *scratch, pool);
    const std::vector<uint16_t> bits = Bits(out);
    if (weights != nullptr) {
      weights->assign(seen, 0.0f);
      SumWeights(kept, 0, seen, weights->data());
      std::vector<float> summed(seen);
      const AttentionWeights sums = {.query_heads = d_.query_heads, .summed = summed.data()};
      item.weights = &sums;
      kernel.Attend(d_, view, {&item, 1}, *scratch, pool);
      EXPECT_EQ(summed, *weights) << kernel.name();
      EXPECT_EQ(Bits(out), bits) << kernel.name();
    }
    return bits;
  }

  std::vector<BFloat16> Normal(size_t count, float sigma) {
    std::normal_distribution<float> normal(0.3f, sigma);
    std::vector<BFloat16> values(count);
    std::generate(values.begin(), values.end(), [&] { return ToBFloat16(normal(random_)); });
    return values;
  }

  // All blocks pass through the tail; the open one stays there.
  void Close() {
    const Extent all{.first_slot = 0, .tokens = closed_end_};
    for (uint32_t block = 0; block <= position_; block += kInt8BlockTokens) {
      const Extent own{.first_slot = 0,
                       .tokens = std::min(kInt8BlockTokens, position_ + 1 - block)};
      const std::vector<BFloat16> k = Normal(size_t{own.tokens} * d_.kv_width(), 1.0f);
      const std::vector<BFloat16> v = Normal(size_t{own.tokens} * d_.kv_width(), 1.0f);
      StoreKv(d_, k.data(), v.data(), d_.kv_width(), {&own, 1}, tail_.k(0), tail_.v(0),
              tail_.head_stride(0));
      if (block < closed_end_) {
        CloseInt8Block(d_, tail_.View(0), 0, {&all, 1}, block, arena_.View(0));
      }
    }
  }

  void Choose(double ratio) {
    std::bernoulli_distribution taken(ratio);
    for (uint32_t token = 0; token < position_; ++token) {
      // Some blocks are left out altogether.
      const bool left_out = ratio < 1 && token / kInt8BlockTokens % 5 == 2;
      if (!left_out && taken(random_)) {
        (token < closed_end_ ? closed_ : opened_).push_back(token);
      }
    }
    opened_.push_back(position_);
    for (size_t i = 0; i < closed_.size(); ++i) {
      const uint32_t block = closed_[i] / kInt8BlockTokens;
      if (blocks_.empty() || blocks_.back() != block) {
        blocks_.push_back(block);
        chosen_.push_back(0);
      }
      ++chosen_.back();
    }
    later_block_ = static_cast<uint32_t>(blocks_.size() / 2);
    earlier_tokens_ = std::accumulate(chosen_.begin(), chosen_.begin() + later_block_, 0u);
  }

  uint32_t later_tokens() const { return static_cast<uint32_t>(closed_.size()) - earlier_tokens_; }
  // Where tokens of the earlier blocks begin, and scales of these.
  uint32_t FirstSlot() const {
    return kFirstSlot + static_cast<uint32_t>(WholeTiles(later_tokens()));
  }
  uint32_t FirstScale() const {
    const auto later = static_cast<uint32_t>(blocks_.size()) - later_block_;
    return kFirstScale + later * kInt8BlockTokens;
  }

  void Gather() {
    slots_ = FirstSlot() + WholeTiles(earlier_tokens_);
    scale_slots_ = kFirstScale + blocks_.size() * kInt8BlockTokens;
    const size_t share = Int8ScalesOfSlot(d_.head_dim);
    k_.assign(d_.kv_heads * slots_ * d_.head_dim, 77);
    v_ = k_;
    k_scales_.assign(d_.kv_heads * scale_slots_ * share, kInt8NotFinite);
    v_scales_.assign(d_.kv_heads * slots_, kInt8NotFinite);
    for (const bool later : {false, true}) {
      std::vector<Extent> tokens;
      for (size_t i = later ? earlier_tokens_ : 0; i < (later ? closed_.size() : earlier_tokens_);
           ++i) {
        tokens.push_back({.first_slot = closed_[i], .tokens = 1});
      }
      std::vector<Extent> blocks;
      for (size_t i = later ? later_block_ : 0; i < (later ? blocks_.size() : later_block_); ++i) {
        blocks.push_back({.first_slot = blocks_[i] * kInt8BlockTokens, .tokens = kInt8BlockTokens});
      }
      for (uint32_t head = 0; head < d_.kv_heads; ++head) {
        const size_t first = head * slots_ + (later ? kFirstSlot : FirstSlot());
        const size_t first_scale = head * scale_slots_ + (later ? kFirstScale : FirstScale());
        LoadInt8(d_.head_dim, arena_.View(0, head), tokens, 0, static_cast<uint32_t>(tokens.size()),
                 {.k = k_.data() + first * d_.head_dim,
                  .v = v_.data() + first * d_.head_dim,
                  .v_scales = v_scales_.data() + first});
        LoadInt8(d_.head_dim, arena_.View(0, head), blocks, 0,
                 static_cast<uint32_t>(blocks.size()) * kInt8BlockTokens,
                 {.k_scales = k_scales_.data() + first_scale * share});
      }
    }
    std::fill_n(open_.k(0), d_.kv_heads * open_.head_stride(0), BFloat16{0x7fc0});
    std::fill_n(open_.v(0), d_.kv_heads * open_.head_stride(0), BFloat16{0x7fc0});
    for (size_t i = 0; i < opened_.size(); ++i) {
      for (uint32_t head = 0; head < d_.kv_heads; ++head) {
        for (uint32_t channel = 0; channel < d_.head_dim; ++channel) {
          const size_t to = head * open_.head_stride(0);
          open_.k(0)[to + OffsetInTiles(kSkipped + i, channel, d_.head_dim)] =
              TailK(opened_[i], head, channel);
          open_.v(0)[to + (kSkipped + i) * d_.head_dim + channel] =
              TailV(opened_[i], head, channel);
        }
      }
    }
  }

  BFloat16 TailK(uint32_t token, uint32_t head, uint32_t channel) {
    return tail_.k(0)[head * tail_.head_stride(0) +
                      OffsetInTiles(token % kInt8BlockTokens, channel, d_.head_dim)];
  }
  BFloat16 TailV(uint32_t token, uint32_t head, uint32_t channel) {
    return tail_.v(
        0)[head * tail_.head_stride(0) + size_t{token % kInt8BlockTokens} * d_.head_dim + channel];
  }

  // A value of the i-th token that the row sees.
  double Value(bool key, uint32_t i, uint32_t head, uint32_t channel) {
    if (i >= closed_.size()) {
      const uint32_t token = opened_[i - closed_.size()];
      return double{ToFloat(key ? TailK(token, head, channel) : TailV(token, head, channel))};
    }
    const uint32_t token = closed_[i];
    const Int8View from = arena_.View(0, head);
    const size_t share = Int8ScalesOfSlot(d_.head_dim);
    const size_t holder = token / kInt8BlockTokens * kInt8BlockTokens + channel / share;
    const Int8Scale scale =
        key ? from.k_scales[holder * share + channel % share] : from.v_scales[token];
    const uint8_t u = key ? from.k[OffsetInInt8Tiles(token, channel, d_.head_dim)]
                          : from.v[size_t{token} * d_.head_dim + channel];
    return double{ToFloat(scale.step)} * (int32_t{u} - scale.zero);
  }

  const AttentionDescriptor d_;
  const uint32_t position_;
  const uint32_t closed_end_;
  std::mt19937 random_;
  Int8Arena arena_;
  KvArena tail_;  // The open block.
  KvArena open_;  // Its chosen tokens and the row's, behind slots of NaN.
  std::vector<BFloat16> q_;
  std::vector<uint32_t> closed_;  // Chosen tokens of closed blocks, and of the open one.
  std::vector<uint32_t> opened_;
  std::vector<uint32_t> blocks_;  // Blocks of the former, and how many each has.
  std::vector<uint32_t> chosen_;
  uint32_t later_block_ = 0;     // These begin with the later half,
  uint32_t earlier_tokens_ = 0;  // before which there are so many tokens.
  size_t slots_ = 0;
  size_t scale_slots_ = 0;
  std::vector<uint8_t> k_, v_;
  std::vector<Int8Scale> k_scales_, v_scales_;
};

std::vector<ChosenCase> Cases(bool all) {
  constexpr uint32_t kPositions[] = {0, 1, 63, 64, 65, 127, 128, 200, 255, 256, 320, 700, 1300};
  constexpr double kRatios[] = {0.5, 0.2, 0.03, 0.8, 0.0};
  std::vector<ChosenCase> cases;
  uint32_t seed = 1;
  for (uint32_t head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (const uint32_t group : {1, 2, 3, 4, 5, 8, 32}) {
      ++seed;
      const float cap = seed % 5 == 0 ? 3.0f : 0.0f;
      cases.push_back({.descriptor = Descriptor(head_dim, 1 + seed % 2, group, 0, cap),
                       .position = kPositions[seed * 7 % 13],
                       .ratio = all ? 1 : kRatios[seed % 5],
                       .seed = seed});
    }
  }
  return cases;
}

std::string Words(const ChosenCase& c) {
  return absl::StrCat("head_dim ", c.descriptor.head_dim, " group ", c.descriptor.group(), " cap ",
                      c.descriptor.soft_cap, " position ", c.position, " ratio ", c.ratio);
}

TEST(Int8ChosenTest, TheReferenceIsAttentionOverDequantisedValues) {
  ThreadPool pool({.threads = 1});
  for (const ChosenCase& c : Cases(/*all=*/false)) {
    ChosenProblem problem(c);
    std::vector<double> weights;
    const std::vector<double> want = problem.Exact(weights);
    std::vector<float> found;
    const std::vector<uint16_t> got = problem.Attend(ReferenceAttention(), pool, &found);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(ToFloat(BFloat16{got[i]}), want[i], std::abs(want[i]) / 256 + 1e-5)
          << Words(c) << " element " << i;
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      ASSERT_NEAR(found[i], weights[i], 1e-4 * c.descriptor.query_heads) << Words(c) << " " << i;
    }
  }
}

TEST(Int8ChosenTest, EveryShapeHasTheReferenceBits) {
  for (const size_t threads : {1, 3}) {
    ThreadPool pool({.threads = threads});
    for (const ChosenCase& c : Cases(/*all=*/false)) {
      ChosenProblem problem(c);
      std::vector<float> wanted;
      const std::vector<uint16_t> want = problem.Attend(ReferenceAttention(), pool, &wanted);
      for (const AttentionKernel* kernel : CpuInt8AttentionVariants()) {
        std::vector<float> found;
        ASSERT_EQ(problem.Attend(*kernel, pool), want) << kernel->name() << " " << Words(c);
        ASSERT_EQ(problem.Attend(*kernel, pool, &found), want) << kernel->name() << " " << Words(c);
        for (size_t i = 0; i < wanted.size(); ++i) {
          ASSERT_NEAR(found[i], wanted[i], 1e-6 * (1 + wanted[i])) << Words(c) << " weight " << i;
        }
      }
    }
  }
}

TEST(Int8ChosenTest, AllTokensHaveTheBitsOfInt8WhereItLies) {
  ThreadPool pool({.threads = 2});
  for (const ChosenCase& c : Cases(/*all=*/true)) {
    ChosenProblem problem(c);
    const std::vector<uint16_t> want = problem.AttendInPlace(ReferenceAttention(), pool);
    ASSERT_EQ(problem.Attend(ReferenceAttention(), pool), want) << Words(c);
    for (const AttentionKernel* kernel : CpuInt8AttentionVariants()) {
      ASSERT_EQ(problem.Attend(*kernel, pool), want) << kernel->name() << " " << Words(c);
    }
  }
}

}  // namespace
}  // namespace lamina::kernels
