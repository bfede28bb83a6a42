// SPDX-License-Identifier: Apache-2.0
//
// Attention over INT8: the reference against the definition in double, and every fast kernel that
// this processor can run against the reference, bit by bit.
#include "kernels/reference/int8_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/cpu/int8_attention_internal.h"
#include "kernels/cpu/int8_probe.h"
#include "kernels/int8_arena.h"
#include "kernels/int8_kv.h"
#include "kernels/kv_arena.h"
#include "tests/unit/kernels/attention_fixture.h"
#include "tests/unit/kernels/instruction_sets.h"

namespace lamina::kernels {
namespace {

// A sequence as a memory node has it: closed blocks in scattered INT8 slots, the open one in a
// tail. Other slots hold what no sequence may see: NaN in tails, NaN scales.
class Int8Problem {
 public:
  // Its queries are its last tokens, and stand in one block.
  explicit Int8Problem(const AttentionCase& c, float broken = 0.0f) : case_(c), random_(c.seed) {
    const AttentionDescriptor& d = c.descriptor;
    int8_tokens_ = Int8TokensOf(c.tokens - c.queries);
    Scatter();
    tail_slot_ = (1 + c.seed % 3) * (c.seed % 2 == 0 ? kInt8BlockTokens : 7);
    int8_.emplace(*Int8Arena::Create({&d, 1}, slots_ + 1));
    tail_.emplace(*KvArena::Create({&d, 1}, tail_slot_ + kInt8BlockTokens));
    for (uint32_t head = 0; head < d.kv_heads; ++head) {
      const Int8View view = int8_->View(0, head);
      std::fill_n(view.k_scales, view.slots * Int8ScalesOfSlot(d.head_dim), kInt8NotFinite);
      std::fill_n(view.v_scales, view.slots, kInt8NotFinite);
    }
    std::fill_n(tail_->k(0), d.kv_heads * tail_->head_stride(0), BFloat16{0x7fc0});
    std::fill_n(tail_->v(0), d.kv_heads * tail_->head_stride(0), BFloat16{0x7fc0});
    rows_k_ = Normal(size_t{c.tokens} * d.kv_width(), 1.0f);
    rows_v_ = Normal(size_t{c.tokens} * d.kv_width(), 1.0f);
    if (broken != 0.0f && c.tokens > 3) {
      rows_k_[3 * d.kv_width()] = ToBFloat16(broken);
      rows_v_[2 * d.kv_width()] = ToBFloat16(broken);
    }
    q_ = Normal(size_t{c.queries} * d.q_width(), 1.5f);
    Store();
  }

  std::vector<BFloat16> Attend(const AttentionKernel& kernel, ThreadPool& pool) {
    const AttentionDescriptor& d = case_.descriptor;
    std::vector<BFloat16> out(size_t{case_.queries} * d.q_width());
    AttentionItem item = Item();
    item.out = out.data();
    Call(kernel, pool, item);
    return out;
  }

  std::vector<float> AttendToPartials(const AttentionKernel& kernel, ThreadPool& pool) {
    const AttentionDescriptor& d = case_.descriptor;
    std::vector<float> partials(size_t{case_.queries} * d.query_heads * PartialWidth(d));
    AttentionItem item = Item();
    item.partial = partials.data();
    Call(kernel, pool, item);
    return partials;
  }

  // Attends with weights, which are summed over heads to `sums`, [queries, tokens]: by the kernel
  // or else by plain loops.
  std::vector<BFloat16> AttendWeighed(const AttentionKernel& kernel, ThreadPool& pool,
                                      bool by_kernel, std::vector<float>& sums) {
    const AttentionDescriptor& d = case_.descriptor;
    std::vector<float> memory(AttentionWeights::FloatsOf(d.query_heads, case_.tokens) *
                              case_.queries);
    AttentionWeights weights =
        AttentionWeights::Over(memory.data(), case_.queries, d.query_heads, case_.tokens);
    sums.assign(size_t{case_.queries} * case_.tokens, 0.0f);
    if (by_kernel) {
      weights.summed = sums.data();
      weights.summed_stride = case_.tokens;
    }
    std::vector<BFloat16> out(size_t{case_.queries} * d.q_width());
    AttentionItem item = Item();
    item.out = out.data();
    item.weights = &weights;
    Call(kernel, pool, item);
    for (uint32_t i = 0; !by_kernel && i < case_.queries; ++i) {
      SumWeights(weights, i, case_.tokens - case_.queries + i + 1,
                 sums.data() + size_t{i} * case_.tokens);
    }
    return out;
  }

  // By the definition, in double.
  std::vector<double> Exact() const {
    const AttentionDescriptor& d = case_.descriptor;
    const uint32_t first = case_.tokens - case_.queries;
    const SeenKv seen = SeeFrom(d, first, rows_k_, rows_v_);
    std::vector<double> out;
    for (uint32_t i = 0; i < case_.queries; ++i) {
      const std::vector<double> row = AttendSeen(
          d, seen, first + i, absl::MakeConstSpan(q_).subspan(i * d.q_width(), d.q_width()));
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

 private:
  AttentionItem Item() const {
    const size_t width = case_.descriptor.q_width();
    return {.extents = extents_,
            .first_position = case_.tokens - case_.queries,
            .query_tokens = case_.queries,
            .q = q_.data(),
            .q_stride = width,
            .out_stride = width,
            .int8_tokens = int8_tokens_,
            .tail_slot = tail_slot_};
  }

  void Call(const AttentionKernel& kernel, ThreadPool& pool, const AttentionItem& item) {
    const AttentionDescriptor& d = case_.descriptor;
    const Int8View int8 = int8_->View(0);
    KvView kv = tail_->View(0);
    kv.int8 = &int8;
    const auto scratch = kernel.MakeScratch(d, case_.queries, case_.tokens, pool.threads());
    kernel.Attend(d, kv, {&item, 1}, *scratch, pool);
  }

  // Each block passes through the tail.
  void Store() {
    const AttentionDescriptor& d = case_.descriptor;
    const size_t width = d.kv_width();
    const Int8View int8 = int8_->View(0);
    for (uint32_t t = 0; t < case_.tokens; t += kInt8BlockTokens) {
      const Extent own{.first_slot = tail_slot_,
                       .tokens = std::min(kInt8BlockTokens, case_.tokens - t)};
      if (own.tokens < kInt8BlockTokens || t == int8_tokens_) {
        std::fill_n(tail_->k(0), d.kv_heads * tail_->head_stride(0), BFloat16{0x7fc0});
        std::fill_n(tail_->v(0), d.kv_heads * tail_->head_stride(0), BFloat16{0x7fc0});
      }
      StoreKv(d, rows_k_.data() + t * width, rows_v_.data() + t * width, width, {&own, 1},
              tail_->k(0), tail_->v(0), tail_->head_stride(0));
      if (t < int8_tokens_) {
        CloseInt8Block(d, tail_->View(0), tail_slot_, extents_, t, int8);
      }
    }
  }

  void Scatter() {
    std::vector<uint32_t> runs;
    for (uint32_t left = int8_tokens_; left > 0;) {
      const auto run =
          std::min<uint32_t>(left, 1 + static_cast<uint32_t>(random_() % case_.run_max));
      extents_.push_back({.first_slot = 0, .tokens = run});
      left -= run;
    }
    std::vector<size_t> order(extents_.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), random_);
    for (const size_t i : order) {
      slots_ += static_cast<uint32_t>(random_() % 3);
      extents_[i].first_slot = slots_;
      slots_ += extents_[i].tokens;
    }
  }

  std::vector<BFloat16> Normal(size_t count, float sigma) {
    std::normal_distribution<float> normal(0.3f, sigma);
    std::vector<BFloat16> values(count);
    for (BFloat16& x : values) {
      x = ToBFloat16(normal(random_));
    }
    return values;
  }

  const AttentionCase case_;
  std::mt19937 random_;
  uint32_t int8_tokens_ = 0;
  uint32_t tail_slot_ = 0;
  std::vector<Extent> extents_;
  uint32_t slots_ = 0;
  std::optional<Int8Arena> int8_;
  std::optional<KvArena> tail_;
  std::vector<BFloat16> rows_k_, rows_v_;  // [tokens, kv_heads, head_dim]
  std::vector<BFloat16> q_;                // [queries, query_heads, head_dim]
};

// Head sizes x groups, with odd lengths, fragments, windows and caps mixed in by the seed.
std::vector<AttentionCase> Cases() {
  constexpr uint32_t kTokens[] = {1, 63, 64, 65, 128, 129, 255, 256, 257, 321, 700};
  constexpr uint32_t kRuns[] = {1, 7, 64, 1024};
  std::vector<AttentionCase> cases;
  uint32_t seed = 1;
  for (uint32_t head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (uint32_t group : {1, 2, 3, 4, 5, 8, 32}) {
      ++seed;
      const uint32_t tokens = kTokens[seed * 7 % 11];
      const uint32_t window = seed % 3 == 0 ? 1 + seed * 37 % 400 : 0;
      const float cap = seed % 5 == 0 ? 3.0f : 0.0f;
      const AttentionDescriptor plain = Descriptor(head_dim, 1 + seed % 2, group, window, cap);
      const uint32_t in_block = (tokens - 1) % kInt8BlockTokens + 1;
      cases.push_back({.descriptor = seed % 4 == 0 ? WithSinks(plain) : plain,
                       .tokens = tokens,
                       .queries = 1 + seed % std::min(in_block, 11u),
                       .run_max = kRuns[seed % 4],
                       .seed = seed});
    }
  }
  return cases;
}

std::string Words(const AttentionCase& c) {
  return absl::StrCat("head_dim ", c.descriptor.head_dim, " group ", c.descriptor.group(),
                      " window ", c.descriptor.window, " cap ", c.descriptor.soft_cap, " sinks ",
                      c.descriptor.sinks.size(), " tokens ", c.tokens, " queries ", c.queries,
                      " run_max ", c.run_max);
}

// Random values, one channel of which lies far from 0.
std::vector<BFloat16> RandomRows(const AttentionDescriptor& d, uint32_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<BFloat16> rows(size_t{tokens} * d.kv_width());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = ToBFloat16(normal(random) + (i % d.kv_width() == 3 ? 40.0f : 0.0f));
  }
  return rows;
}

// At position 64 the first block is INT8, at 63 nothing is; tokens of the open block are exact.
TEST(Int8DefinitionTest, AQuerySeesBlocksThatEndedBeforeItAsInt8) {
  const AttentionDescriptor d = Descriptor(32, 2, 2);
  const std::vector<BFloat16> k = RandomRows(d, 200, 1);
  const std::vector<BFloat16> v = RandomRows(d, 200, 2);
  const struct {
    uint32_t position;
    uint32_t int8_tokens;
  } borders[] = {{0, 0}, {63, 0}, {64, 64}, {127, 64}, {128, 128}, {199, 192}};
  for (const auto& border : borders) {
    const SeenKv seen = SeeFrom(d, border.position, k, v);
    ASSERT_EQ(seen.int8_tokens, border.int8_tokens) << border.position;
    size_t rounded = 0;
    for (size_t i = 0; i < k.size(); ++i) {
      const bool exact = seen.k[i] == ToFloat(k[i]) && seen.v[i] == ToFloat(v[i]);
      ASSERT_TRUE(exact || i / d.kv_width() < border.int8_tokens) << border.position << " " << i;
      rounded += exact ? 0 : 1;
    }
    EXPECT_GE(rounded, size_t{border.int8_tokens} * d.kv_width() / 2) << border.position;
  }
}

// The values that int8_kv.h keeps, by its functions in f32.
TEST(Int8DefinitionTest, ValuesAreThoseThatAreKept) {
  const AttentionDescriptor d = Descriptor(32, 2, 2);
  const std::vector<BFloat16> k = RandomRows(d, 65, 3);
  const std::vector<BFloat16> v = RandomRows(d, 65, 4);
  const SeenKv seen = SeeFrom(d, 64, k, v);
  const auto expect_group = [](const std::vector<BFloat16>& rows, const std::vector<double>& found,
                               size_t first, size_t count, size_t stride) {
    float min = ToFloat(rows[first]);
    float max = min;
    for (size_t i = 0; i < count; ++i) {
      min = std::min(min, ToFloat(rows[first + i * stride]));
      max = std::max(max, ToFloat(rows[first + i * stride]));
    }
    const Int8Scale scale = Int8ScaleOf(min, max);
    for (size_t i = first; i < first + count * stride; i += stride) {
      // A quotient may be rounded to the other side of a half.
      EXPECT_NEAR(found[i], FromInt8(ToInt8(ToFloat(rows[i]), scale), scale), ToFloat(scale.step));
    }
  };
  for (size_t channel = 0; channel < d.kv_width(); ++channel) {
    expect_group(k, seen.k, channel, kInt8BlockTokens, d.kv_width());
  }
  for (size_t head = 0; head < size_t{kInt8BlockTokens} * d.kv_heads; ++head) {
    expect_group(v, seen.v, head * d.head_dim, d.head_dim, 1);
  }
}

TEST(Int8DefinitionTest, AGroupWithAValueThatIsNotFiniteIsNaN) {
  const AttentionDescriptor d = Descriptor(32, 1, 1);
  for (const float broken : {INFINITY, -INFINITY, NAN}) {
    std::vector<BFloat16> k = RandomRows(d, 65, 5);
    std::vector<BFloat16> v = RandomRows(d, 65, 6);
    k[7 * d.kv_width() + 9] = ToBFloat16(broken);
    v[7 * d.kv_width() + 9] = ToBFloat16(broken);
    const SeenKv seen = SeeFrom(d, 64, k, v);
    for (size_t i = 0; i < 64 * d.kv_width(); ++i) {
      EXPECT_EQ(std::isnan(seen.k[i]), i % d.kv_width() == 9) << i;
      EXPECT_EQ(std::isnan(seen.v[i]), i / d.kv_width() == 7) << i;
    }
  }
}

TEST(Int8AttentionTest, TheReferenceIsAttentionOverDequantisedValues) {
  ThreadPool pool({.threads = 1});
  for (const AttentionCase& c : Cases()) {
    Int8Problem problem(c);
    const std::vector<double> want = problem.Exact();
    const std::vector<BFloat16> got = problem.Attend(ReferenceAttention(), pool);
    for (size_t i = 0; i < want.size(); ++i) {
      // The rounding of the output, and 1e-5; see docs/design/attention_numerics.md.
      const double tolerance = std::abs(want[i]) / 256 + 1e-5;
      ASSERT_NEAR(ToFloat(got[i]), want[i], tolerance) << Words(c) << " element " << i;
    }
  }
}

TEST(Int8AttentionTest, EveryShapeHasTheReferenceBits) {
  EXPECT_GE(CpuInt8AttentionVariants().size(), CountTargetsHere(kFmaTargets));
  EXPECT_EQ(CpuInt8AttentionVariants().size(), CpuAttentionVariants().size());
  ThreadPool pool({.threads = 1});
  for (const AttentionCase& c : Cases()) {
    Int8Problem problem(c);
    const std::vector<uint16_t> want = Bits(problem.Attend(ReferenceAttention(), pool));
    const std::vector<float> partials = problem.AttendToPartials(ReferenceAttention(), pool);
    for (const AttentionKernel* kernel : CpuInt8AttentionVariants()) {
      ASSERT_EQ(Bits(problem.Attend(*kernel, pool)), want) << kernel->name() << " " << Words(c);
      ASSERT_EQ(problem.AttendToPartials(*kernel, pool), partials)
          << kernel->name() << " " << Words(c);
    }
  }
}

TEST(Int8AttentionTest, CutsForManyThreadsHaveTheReferenceBits) {
  ThreadPool one({.threads = 1});
  const AttentionCase cases[] = {
      {.descriptor = Descriptor(64, 3, 3), .tokens = 1025, .run_max = 300},
      {.descriptor = Descriptor(64, 1, 3), .tokens = 5000, .run_max = 5000, .seed = 2},
      {.descriptor = Descriptor(128, 1, 4, 1000), .tokens = 2100, .queries = 20, .run_max = 700},
      {.descriptor = WithSinks(Descriptor(80, 2, 2, 0, 4.0f)), .tokens = 1536, .queries = 64}};
  for (const AttentionCase& c : cases) {
    Int8Problem problem(c);
    const std::vector<uint16_t> want = Bits(problem.Attend(ReferenceAttention(), one));
    const std::vector<float> partials = problem.AttendToPartials(ReferenceAttention(), one);
    for (const size_t threads : {2, 3, 8, 16, 32, 128}) {
      ThreadPool pool({.threads = threads});
      for (const AttentionKernel* kernel : CpuInt8AttentionVariants()) {
        ASSERT_EQ(Bits(problem.Attend(*kernel, pool)), want)
            << kernel->name() << " " << Words(c) << " threads " << threads;
        ASSERT_EQ(problem.AttendToPartials(*kernel, pool), partials)
            << kernel->name() << " " << Words(c) << " threads " << threads;
      }
    }
  }
}

// Prompts have several queries, tiles of them, and long rows that are cut.
TEST(Int8AttentionTest, KernelsAddWeightsToTheBitAsPlainLoopsDo) {
  std::vector<AttentionCase> cases = Cases();
  std::erase_if(cases, [](const AttentionCase& c) { return c.descriptor.window != 0; });
  cases.push_back({.descriptor = Descriptor(64, 3, 5), .tokens = 2112, .queries = 64});
  cases.push_back({.descriptor = Descriptor(64, 1, 3), .tokens = 5000, .run_max = 300});
  for (const size_t threads : {1, 4}) {
    ThreadPool pool({.threads = threads});
    for (const AttentionCase& c : cases) {
      Int8Problem problem(c);
      for (const AttentionKernel* kernel : CpuInt8AttentionVariants()) {
        const std::vector<uint16_t> out = Bits(problem.Attend(*kernel, pool));
        std::vector<float> want;
        std::vector<float> got;
        ASSERT_EQ(Bits(problem.AttendWeighed(*kernel, pool, /*by_kernel=*/false, want)), out)
            << kernel->name() << " " << Words(c);
        ASSERT_EQ(Bits(problem.AttendWeighed(*kernel, pool, /*by_kernel=*/true, got)), out)
            << kernel->name() << " " << Words(c);
        ASSERT_EQ(got, want) << kernel->name() << " " << Words(c) << " threads " << threads;
      }
    }
  }
}

TEST(Int8AttentionTest, ValuesThatAreNotFiniteMakeTheirGroupNaNEverywhereAlike) {
  ThreadPool pool({.threads = 2});
  for (const float broken : {INFINITY, -INFINITY, NAN, 3.3e38f, -1e-40f}) {
    for (const uint32_t head_dim : {64u, 80u}) {
      Int8Problem problem({.descriptor = Descriptor(head_dim, 2, 3), .tokens = 130, .seed = 5},
                          broken);
      const std::vector<uint16_t> want = Bits(problem.Attend(ReferenceAttention(), pool));
      EXPECT_EQ(want[0] == 0x7fc0, !(std::abs(broken) < 1e38f)) << broken;
      for (const AttentionKernel* kernel : CpuInt8AttentionVariants()) {
        EXPECT_EQ(Bits(problem.Attend(*kernel, pool)), want) << kernel->name() << " " << broken;
      }
    }
  }
}

TEST(Int8AttentionTest, TheProbeFindsAWrongKernel) {
  for (const AttentionKernel* kernel : CpuInt8AttentionVariants()) {
    EXPECT_TRUE(ProbeInt8Attention(*kernel).ok()) << kernel->name();
  }
  class Wrong final : public AttentionKernel {
   public:
    const char* name() const override { return "wrong"; }
    std::unique_ptr<AttentionScratch> MakeScratch(const AttentionDescriptor& d, uint32_t queries,
                                                  uint32_t context, size_t threads) const override {
      return ReferenceAttention().MakeScratch(d, queries, context, threads);
    }
    void Attend(const AttentionDescriptor& d, const KvView& kv,
                absl::Span<const AttentionItem> items, AttentionScratch& scratch,
                ThreadPool& pool) const override {
      ReferenceAttention().Attend(d, kv, items, scratch, pool);
      items.back().out[d.head_dim - 1].bits ^= 1;
    }
  } wrong;
  EXPECT_EQ(ProbeInt8Attention(wrong).code(), absl::StatusCode::kInternal);
  const AttentionKernel* const all[] = {&wrong};
  EXPECT_EQ(&FirstInt8ThatPasses(all), &ReferenceAttention());
}

TEST(Int8ScaleTest, OfOneValueIsNearlyExactAndOfZerosIsOne) {
  EXPECT_EQ(ToFloat(Int8ScaleOf(0, 0).step), 1.0f);
  for (const float x : {0.3f, -7.0f, 1e-38f, -1e-40f, 3e38f}) {
    const float rounded = ToFloat(ToBFloat16(x));
    const Int8Scale scale = Int8ScaleOf(rounded, rounded);
    const float back = FromInt8(ToInt8(rounded, scale), scale);
    EXPECT_LE(std::abs(double{back} - double{rounded}), std::abs(double{rounded}) * 3e-5) << x;
  }
}

TEST(Int8ScaleTest, NoValueIsOffByMoreThanAStep) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int group = 0; group < 2000; ++group) {
    const float middle = 100 * normal(random);
    const float spread = std::exp2(static_cast<float>(group % 40 - 20));
    std::vector<float> values;
    for (int i = 0; i < 64; ++i) {
      values.push_back(ToFloat(ToBFloat16(middle + spread * normal(random))));
    }
    const auto [min, max] = std::minmax_element(values.begin(), values.end());
    const Int8Scale scale = Int8ScaleOf(*min, *max);
    for (const float x : values) {
      const double off = std::abs(double{FromInt8(ToInt8(x, scale), scale)} - double{x});
      EXPECT_LE(off, ToFloat(scale.step)) << x;
      EXPECT_LE(ToFloat(scale.step), std::max((*max - *min) / 255.0,
                                              std::max(std::abs(*max), std::abs(*min)) / 32767.0) *
                                         (1 + 1.0 / 128));
    }
  }
}

TEST(Int8ArenaTest, TakesTheBytesOfItsSlots) {
  const std::vector<AttentionDescriptor> layers = {Descriptor(64, 3, 3), Descriptor(80, 2, 1)};
  EXPECT_EQ(KvSlotBytes(layers, KvForm::kInt8), 3 * 136 + 2 * 172);
  EXPECT_EQ(KvSlotBytes(layers, KvForm::kBF16), KvArena::SlotBytes(layers));
  const auto arena = Int8Arena::Create(layers, 1000);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->slots(), 1000);
  constexpr uint64_t kHugePage = uint64_t{2} << 20;
  const uint64_t bytes = KvSlotBytes(layers, KvForm::kInt8) * WholeTiles(1000);
  EXPECT_EQ(arena->bytes(), (bytes + kHugePage - 1) / kHugePage * kHugePage);
  EXPECT_EQ(Int8Arena::Create(layers, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Int8Arena::Create({}, 16).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::kernels
