// SPDX-License-Identifier: Apache-2.0
//
// A row's bits depend on its own q, K and V alone: not on the other queries, the threads, the
// extents, nor on what lies in memory that is none of its business.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/canonical_math.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/k_tiles.h"
#include "kernels/partial.h"
#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::kernels {
namespace {

std::vector<const AttentionKernel*> AllKernels() {
  std::vector<const AttentionKernel*> all = {&ReferenceAttention()};
  for (const AttentionKernel* kernel : CpuAttentionVariants()) {
    all.push_back(kernel);
  }
  return all;
}

// A chunk of queries in one call against one call for each query.
TEST(AttentionInvarianceTest, PrefillHasTheBitsOfDecode) {
  ThreadPool pool({.threads = 1});
  const AttentionCase cases[] = {
      {Descriptor(64, 2, 3), 700, 600, 100},       {Descriptor(64, 1, 1), 300, 300, 64},
      {Descriptor(128, 1, 4, 100), 600, 200, 33},  {Descriptor(80, 1, 2, 5, 4.0f), 400, 390, 9},
      {Descriptor(48, 1, 32, 300), 560, 50, 1000}, {Descriptor(16, 3, 7), 257, 257, 16}};
  for (const AttentionCase& c : cases) {
    const AttentionProblem problem(c);
    for (const AttentionKernel* kernel : CpuAttentionVariants()) {
      const std::vector<uint16_t> chunk = Bits(problem.Attend(*kernel, pool));
      std::vector<uint16_t> one_by_one;
      for (uint32_t i = 0; i < c.queries; ++i) {
        const std::vector<uint16_t> row = Bits(problem.Attend(*kernel, pool, i, 1));
        one_by_one.insert(one_by_one.end(), row.begin(), row.end());
      }
      ASSERT_EQ(chunk, one_by_one) << kernel->name() << " head_dim " << c.descriptor.head_dim;
    }
  }
}

TEST(AttentionInvarianceTest, AnyCutIntoChunksHasTheSameBits) {
  ThreadPool pool({.threads = 2});
  const AttentionCase c = {Descriptor(64, 3, 3), 800, 512, 70};
  const AttentionProblem problem(c);
  const std::vector<uint16_t> whole = Bits(problem.Attend(CpuAttention(), pool));
  for (const uint32_t chunk : {16u, 21u, 22u, 100u, 511u}) {
    std::vector<uint16_t> cut;
    for (uint32_t i = 0; i < c.queries; i += chunk) {
      const std::vector<uint16_t> rows =
          Bits(problem.Attend(CpuAttention(), pool, i, std::min(chunk, c.queries - i)));
      cut.insert(cut.end(), rows.begin(), rows.end());
    }
    ASSERT_EQ(cut, whole) << chunk;
  }
}

// The extents of tokens [first, first + count).
std::vector<Extent> Cut(absl::Span<const Extent> extents, uint32_t first, uint32_t count) {
  std::vector<Extent> cut;
  uint32_t at = 0;
  for (const Extent& extent : extents) {
    const uint32_t begin = std::max(first, at);
    const uint32_t end = std::min(first + count, at + extent.tokens);
    if (begin < end) {
      cut.push_back({.first_slot = extent.first_slot + begin - at, .tokens = end - begin});
    }
    at += extent.tokens;
  }
  return cut;
}

// One row's attention from the partials of spans of `span` tokens, merged as they come; a span that
// a window hides is an empty one.
std::vector<BFloat16> FromSpans(const AttentionProblem& problem, const AttentionKernel& kernel,
                                ThreadPool& pool, uint32_t tokens, uint32_t span) {
  const AttentionDescriptor& d = problem.descriptor();
  std::vector<PartialStack> stacks(d.query_heads, PartialStack(d.head_dim));
  const auto scratch = kernel.MakeScratch(d, 1, tokens, pool.threads());
  AttentionItem item = problem.Item(0, 1, nullptr);
  for (uint32_t first = 0; first < tokens; first += span) {
    const uint32_t count = std::min(span, tokens - first);
    const std::vector<Extent> extents = Cut(problem.Item(0, 1, nullptr).extents, first, count);
    std::vector<float> partial(d.query_heads * PartialWidth(d), 0.0f);
    const uint32_t seen = d.window != 0 && tokens > d.window ? tokens - d.window : 0;
    item.extents = extents;
    item.first_position = count - 1;
    item.first_seen = seen > first ? seen - first : 0;
    item.partial = partial.data();
    if (item.first_seen < count) {
      kernel.Attend(d, problem.kv(), {&item, 1}, *scratch, pool);
    } else {
      for (uint32_t head = 0; head < d.query_heads; ++head) {
        partial[(head + 1) * PartialWidth(d) - 1] = -std::numeric_limits<float>::infinity();
      }
    }
    for (uint32_t head = 0; head < d.query_heads; ++head) {
      const float* own = partial.data() + head * PartialWidth(d);
      stacks[head].Push(first / kBlockTokens, count == span ? span / kBlockTokens : 1, own,
                        own[d.head_dim]);
    }
  }
  std::vector<BFloat16> out;
  std::vector<float> folded(d.head_dim);
  for (uint32_t head = 0; head < d.query_heads; ++head) {
    float lse;
    stacks[head].Fold(folded.data(), &lse);
    const float share = d.sinks.empty() ? 1.0f : ShareWithSink(lse, d.sinks[head]);
    for (const float x : folded) {
      out.push_back(canonical::RoundOutput(share * x));
    }
  }
  return out;
}

TEST(AttentionInvarianceTest, PartialsOfSpansMergeToTheBitsOfTheWhole) {
  ThreadPool pool({.threads = 2});
  for (const uint32_t tokens : {1u, 255u, 256u, 257u, 700u, 1024u, 1600u, 2048u, 3333u}) {
    const AttentionProblem problem({Descriptor(64, 3, 3), tokens, 1, 200, tokens});
    const std::vector<uint16_t> whole = Bits(problem.Attend(ReferenceAttention(), pool));
    for (const AttentionKernel* kernel : AllKernels()) {
      for (const uint32_t blocks : {1u, 2u, 4u, 8u}) {
        ASSERT_EQ(Bits(FromSpans(problem, *kernel, pool, tokens, blocks * kBlockTokens)), whole)
            << kernel->name() << " " << tokens << " tokens in spans of " << blocks << " blocks";
      }
    }
  }
}

TEST(AttentionInvarianceTest, PartialsOfSpansWithAWindowAndSinksMergeToTheBitsOfTheWhole) {
  ThreadPool pool({.threads = 2});
  for (const uint32_t window : {1u, 100u, 256u, 300u, 1000u}) {
    for (const uint32_t tokens : {1u, 257u, 700u, 1024u, 2049u}) {
      const AttentionDescriptor d = WithSinks(Descriptor(32, 2, 3, window));
      const AttentionProblem problem({d, tokens, 1, 200, tokens});
      const std::vector<uint16_t> whole = Bits(problem.Attend(ReferenceAttention(), pool));
      for (const AttentionKernel* kernel : AllKernels()) {
        for (const uint32_t blocks : {1u, 2u, 4u}) {
          ASSERT_EQ(Bits(FromSpans(problem, *kernel, pool, tokens, blocks * kBlockTokens)), whole)
              << kernel->name() << " " << tokens << " tokens, window " << window << ", spans of "
              << blocks << " blocks";
        }
      }
    }
  }
}

TEST(ShareWithSinkTest, IsTheMergeWithAPartialOfZeros) {
  for (const float lse : {-50.0f, -1.5f, 0.0f, 3.0f, 80.0f}) {
    for (const float sink : {-200.0f, -1.0f, 0.0f, 3.0f, 90.0f}) {
      float out[2] = {1.0f, -2.75f};
      const float zeros[2] = {0.0f, 0.0f};
      float merged = lse;
      MergePartials(out, &merged, zeros, sink, 2);
      const float share = ShareWithSink(lse, sink);
      EXPECT_EQ(out[0], share);
      EXPECT_EQ(out[1], share * -2.75f);
    }
  }
}

TEST(AttentionInvarianceTest, LongContextsHaveTheReferenceBits) {
  ThreadPool pool({.threads = 1});
  for (const uint32_t tokens : {1024u, 2047u, 3841u, 5000u}) {
    const AttentionProblem problem({Descriptor(32, 1, 2), tokens, 2, 200, tokens});
    const std::vector<uint16_t> want = Bits(problem.Attend(ReferenceAttention(), pool));
    for (const AttentionKernel* kernel : CpuAttentionVariants()) {
      ASSERT_EQ(Bits(problem.Attend(*kernel, pool)), want) << kernel->name() << " " << tokens;
    }
  }
}

TEST(AttentionInvarianceTest, LongContextsWithAWindowHaveTheReferenceBits) {
  ThreadPool pool({.threads = 1});
  for (const uint32_t window : {1u, 255u, 257u, 1000u, 4999u}) {
    const AttentionProblem problem({Descriptor(32, 1, 2, window), 5000, 3, 200, window});
    const std::vector<uint16_t> want = Bits(problem.Attend(ReferenceAttention(), pool));
    for (const AttentionKernel* kernel : CpuAttentionVariants()) {
      ASSERT_EQ(Bits(problem.Attend(*kernel, pool)), want) << kernel->name() << " " << window;
    }
  }
}

// Items of many lengths in one call, on 1, 2, 3 and 5 threads, against each item alone.
TEST(AttentionInvarianceTest, BatchesAndThreadsDoNotShow) {
  const AttentionDescriptor d = Descriptor(64, 3, 3);
  const AttentionProblem problem({d, 900, 900, 90});
  std::vector<std::pair<uint32_t, uint32_t>> parts;  // First query, count.
  for (uint32_t first = 0, i = 0; first < 900; ++i) {
    const uint32_t count = std::min(900 - first, i % 3 == 0 ? 1u : i * 7 % 60 + 1);
    parts.emplace_back(first, count);
    first += count;
  }
  ThreadPool one({.threads = 1});
  const std::vector<uint16_t> want = Bits(problem.Attend(CpuAttention(), one));
  for (const AttentionKernel* kernel : AllKernels()) {
    for (const size_t threads : {1, 2, 3, 5}) {
      if (kernel == &ReferenceAttention() && threads != 2) {
        continue;  // It uses one thread of any pool: once is enough.
      }
      ThreadPool pool({.threads = threads});
      std::vector<BFloat16> out(size_t{900} * d.q_width());
      std::vector<AttentionItem> items;
      for (const auto& [first, count] : parts) {
        items.push_back(problem.Item(first, count, out.data() + size_t{first} * d.q_width()));
      }
      const auto scratch = kernel->MakeScratch(d, 60, 900, threads);
      kernel->Attend(d, problem.kv(), items, *scratch, pool);
      ASSERT_EQ(Bits(out), want) << kernel->name() << " threads " << threads;
    }
  }
}

TEST(AttentionInvarianceTest, NothingToDoIsDone) {
  const AttentionDescriptor d = Descriptor(64, 1, 2);
  ThreadPool pool({.threads = 2});
  for (const AttentionKernel* kernel : AllKernels()) {
    const auto scratch = kernel->MakeScratch(d, 4, 16, 2);
    kernel->Attend(d, KvView{}, {}, *scratch, pool);
    const AttentionItem empty = {.query_tokens = 0};
    kernel->Attend(d, KvView{}, {&empty, 1}, *scratch, pool);
  }
}

// Values that are no numbers reach the rows that see them, and no others.
TEST(AttentionInvarianceTest, InfinityAndNanOfALaterTokenDoNotReachEarlierRows) {
  const AttentionDescriptor d = Descriptor(32, 1, 2);
  constexpr uint32_t kTokens = 40;
  constexpr uint32_t kBad = 30;
  std::vector<BFloat16> k(WholeTiles(kTokens) * 32), v(k.size()), q(kTokens * 64);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (auto* values : {&k, &v, &q}) {
    for (BFloat16& x : *values) {
      x = ToBFloat16(normal(random));
    }
  }
  v[kBad * 32] = ToBFloat16(std::numeric_limits<float>::infinity());
  v[kBad * 32 + 1] = ToBFloat16(NAN);
  const Extent extent = {.first_slot = 0, .tokens = kTokens};
  ThreadPool pool({.threads = 1});
  std::vector<uint16_t> want;
  for (const AttentionKernel* kernel : AllKernels()) {
    std::vector<BFloat16> out(kTokens * 64);
    const AttentionItem item = {.extents = {&extent, 1},
                                .query_tokens = kTokens,
                                .q = q.data(),
                                .q_stride = 64,
                                .out = out.data(),
                                .out_stride = 64};
    const auto scratch = kernel->MakeScratch(d, kTokens, kTokens, 1);
    kernel->Attend(d, {.k = k.data(), .v = v.data(), .head_stride = k.size()}, {&item, 1}, *scratch,
                   pool);

    EXPECT_TRUE(std::isfinite(ToFloat(out[(kBad - 1) * 64])));
    EXPECT_TRUE(std::isinf(ToFloat(out[kBad * 64])));
    EXPECT_EQ(out[kBad * 64 + 1].bits, 0x7fc0u);
    want = want.empty() ? Bits(out) : want;
    ASSERT_EQ(Bits(out), want) << kernel->name();
  }
}

// Keys so large that scores overflow, and differences so small that products are subnormal.
TEST(AttentionInvarianceTest, ExtremeNumbersHaveTheReferenceBits) {
  const AttentionDescriptor d = Descriptor(48, 1, 3);
  constexpr uint32_t kTokens = 270;
  const Extent extent = {.first_slot = 0, .tokens = kTokens};
  ThreadPool pool({.threads = 1});
  for (const float scale_of_k : {1e-38f, 1e-20f, 1e18f, 1e37f}) {
    std::vector<BFloat16> k(WholeTiles(kTokens) * 48), v(k.size()), q(144);
    std::mt19937 random(6);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < k.size(); ++i) {
      k[i] = ToBFloat16(normal(random) * scale_of_k);
      v[i] = ToBFloat16(normal(random) * 1e-38f);
    }
    for (BFloat16& x : q) {
      x = ToBFloat16(normal(random) * 100.0f);
    }
    std::vector<uint16_t> want;
    for (const AttentionKernel* kernel : AllKernels()) {
      std::vector<BFloat16> out(144);
      const AttentionItem item = {.extents = {&extent, 1},
                                  .first_position = kTokens - 1,
                                  .q = q.data(),
                                  .q_stride = 144,
                                  .out = out.data(),
                                  .out_stride = 144};
      const auto scratch = kernel->MakeScratch(d, 1, kTokens, 1);
      kernel->Attend(d, {.k = k.data(), .v = v.data(), .head_stride = k.size()}, {&item, 1},
                     *scratch, pool);
      want = want.empty() ? Bits(out) : want;
      ASSERT_EQ(Bits(out), want) << kernel->name() << " " << scale_of_k;
    }
  }
}

TEST(AttentionDeathTest, RefusesExtentsThatDoNotCoverTheQueries) {
  const AttentionDescriptor d = Descriptor(32, 1, 1);
  std::vector<BFloat16> memory(32 * 32);
  const Extent extent = {.first_slot = 0, .tokens = 5};
  const AttentionItem item = {.extents = {&extent, 1},
                              .first_position = 5,
                              .q = memory.data(),
                              .q_stride = 32,
                              .out = memory.data(),
                              .out_stride = 32};
  ThreadPool pool({.threads = 1});
  for (const AttentionKernel* kernel : AllKernels()) {
    const auto scratch = kernel->MakeScratch(d, 1, 16, 1);
    EXPECT_DEATH(
        kernel->Attend(d, {memory.data(), memory.data(), 16 * 32}, {&item, 1}, *scratch, pool), "");
  }
}

TEST(AttentionDeathTest, RefusesHeadSizesThatAreNoMultipleOfSixteen) {
  const AttentionDescriptor d = Descriptor(24, 1, 1);
  ThreadPool pool({.threads = 1});
  for (const AttentionKernel* kernel : AllKernels()) {
    const auto scratch = kernel->MakeScratch(d, 1, 16, 1);
    EXPECT_DEATH(kernel->Attend(d, KvView{}, {}, *scratch, pool), "");
  }
}

TEST(StoreKvTest, PutsEachHeadOfEachTokenInItsSlot) {
  const AttentionDescriptor d = Descriptor(16, 2, 1);
  constexpr size_t kSlots = 32;
  constexpr size_t kStride = 40;  // Wider than a row: K and V may lie in [q | k | v].
  std::vector<BFloat16> k(3 * kStride), v(3 * kStride);
  for (size_t i = 0; i < k.size(); ++i) {
    k[i].bits = static_cast<uint16_t>(i);
    v[i].bits = static_cast<uint16_t>(1000 + i);
  }
  std::vector<BFloat16> arena_k(2 * kSlots * 16), arena_v(arena_k);
  const Extent extents[] = {{.first_slot = 15, .tokens = 2}, {.first_slot = 1, .tokens = 1}};

  StoreKv(d, k.data(), v.data(), kStride, extents, arena_k.data(), arena_v.data(), kSlots * 16);

  const size_t slots[] = {15, 16, 1};
  for (size_t token = 0; token < 3; ++token) {
    for (size_t head = 0; head < 2; ++head) {
      for (size_t i = 0; i < 16; ++i) {
        const size_t first = head * kSlots * 16;
        // A line of 32 for each pair of elements; in it, of four tokens the even ones first.
        const size_t tile = slots[token] / 16 * 256;
        const size_t in_tile =
            i / 2 * 32 + slots[token] % 16 / 4 * 8 + i % 2 * 4 + slots[token] % 4;
        ASSERT_EQ(arena_k[first + tile + in_tile].bits, token * kStride + head * 16 + i);
        ASSERT_EQ(arena_v[first + slots[token] * 16 + i].bits,
                  1000 + token * kStride + head * 16 + i);
      }
    }
  }
  EXPECT_EQ(arena_k[0].bits, 0u) << "other slots are left alone";
}

// Into tiles that lie alike, and into others; whole ones, and parts.
TEST(LoadKvTest, TokensLieAsIfTheyHadBeenStoredThere) {
  std::mt19937 random(3);
  for (const size_t head_dim : {16u, 48u, 64u, 128u}) {
    const AttentionDescriptor d = Descriptor(static_cast<uint32_t>(head_dim), 1, 1);
    constexpr uint32_t kTokens = 150;
    constexpr size_t kSlots = 512;
    std::vector<BFloat16> k(kTokens * head_dim), v(k);
    for (size_t i = 0; i < k.size(); ++i) {
      k[i].bits = static_cast<uint16_t>(random());
      v[i].bits = static_cast<uint16_t>(random());
    }
    const Extent extents[] = {{.first_slot = 32, .tokens = 70},
                              {.first_slot = 300, .tokens = 1},
                              {.first_slot = 163, .tokens = 47},
                              {.first_slot = 406, .tokens = 32}};
    std::vector<BFloat16> arena_k(kSlots * head_dim), arena_v(arena_k);
    StoreKv(d, k.data(), v.data(), head_dim, extents, arena_k.data(), arena_v.data(),
            kSlots * head_dim);
    for (const auto& [first, tokens] : std::vector<std::pair<uint32_t, uint32_t>>{
             {0, kTokens}, {0, 16}, {16, 100}, {64, 86}, {149, 1}, {20, 0}}) {
      std::vector<BFloat16> wanted_k(160 * head_dim), wanted_v(wanted_k), found_k(wanted_k),
          found_v(wanted_k);
      const Extent there = {.first_slot = first, .tokens = tokens};
      StoreKv(d, k.data() + first * head_dim, v.data() + first * head_dim, head_dim, {&there, 1},
              wanted_k.data(), wanted_v.data(), 160 * head_dim);
      LoadKv(head_dim, arena_k.data(), arena_v.data(), extents, first, tokens, found_k.data(),
             found_v.data());
      const auto same = [](const BFloat16& a, const BFloat16& b) { return a.bits == b.bits; };
      EXPECT_TRUE(std::equal(found_k.begin(), found_k.end(), wanted_k.begin(), same))
          << "head size " << head_dim << " tokens " << first << " + " << tokens;
      EXPECT_TRUE(std::equal(found_v.begin(), found_v.end(), wanted_v.begin(), same));
    }
  }
}

// Parts of tiles come from every place in a tile to every other, and leave alone what is there.
TEST(LoadKvTest, PartsOfTilesGoFromAnyPlaceToAnyOther) {
  std::mt19937 random(7);
  for (const size_t head_dim : {16u, 48u}) {
    const AttentionDescriptor d = Descriptor(static_cast<uint32_t>(head_dim), 1, 1);
    constexpr uint32_t kTokens = 56;
    constexpr size_t kSlots = 80;
    std::vector<BFloat16> k(kTokens * head_dim), v(k), there(kSlots * head_dim);
    for (std::vector<BFloat16>* plane : {&k, &v, &there}) {
      for (BFloat16& element : *plane) {
        element.bits = static_cast<uint16_t>(random());
      }
    }
    for (uint32_t place = 0; place < 16; ++place) {
      const Extent extent = {.first_slot = place, .tokens = kTokens};
      std::vector<BFloat16> arena_k(there), arena_v(there);
      StoreKv(d, k.data(), v.data(), head_dim, {&extent, 1}, arena_k.data(), arena_v.data(),
              kSlots * head_dim);
      for (uint32_t first = 0; first < 16; ++first) {
        for (const uint32_t tokens : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 11u, 12u, 15u, 16u, 17u, 39u}) {
          std::vector<BFloat16> wanted_k(there), wanted_v(there), found_k(there), found_v(there);
          const Extent to = {.first_slot = first, .tokens = tokens};
          StoreKv(d, k.data() + first * head_dim, v.data() + first * head_dim, head_dim, {&to, 1},
                  wanted_k.data(), wanted_v.data(), kSlots * head_dim);
          LoadKv(head_dim, arena_k.data(), arena_v.data(), {&extent, 1}, first, tokens,
                 found_k.data(), found_v.data());
          const auto same = [](const BFloat16& a, const BFloat16& b) { return a.bits == b.bits; };
          ASSERT_TRUE(std::equal(found_k.begin(), found_k.end(), wanted_k.begin(), same) &&
                      std::equal(found_v.begin(), found_v.end(), wanted_v.begin(), same))
              << "head size " << head_dim << " slot " << place + first << " to " << first << ", "
              << tokens << " tokens";
        }
      }
    }
  }
}

// What was brought out and comes back to other slots lies there as if it had been stored there;
// what is beside it stays.
TEST(UnloadKvTest, TokensLieAsIfTheyHadBeenStoredThere) {
  std::mt19937 random(5);
  for (const size_t head_dim : {16u, 48u, 64u, 128u}) {
    const AttentionDescriptor d = Descriptor(static_cast<uint32_t>(head_dim), 1, 1);
    constexpr uint32_t kTokens = 150;
    constexpr size_t kSlots = 512;
    std::vector<BFloat16> k(kTokens * head_dim), v(k);
    for (size_t i = 0; i < k.size(); ++i) {
      k[i].bits = static_cast<uint16_t>(random());
      v[i].bits = static_cast<uint16_t>(random());
    }
    std::vector<BFloat16> planes_k(160 * head_dim), planes_v(planes_k);
    const Extent whole = {.first_slot = 0, .tokens = kTokens};
    StoreKv(d, k.data(), v.data(), head_dim, {&whole, 1}, planes_k.data(), planes_v.data(),
            160 * head_dim);
    const Extent extents[] = {{.first_slot = 32, .tokens = 70},
                              {.first_slot = 300, .tokens = 1},
                              {.first_slot = 163, .tokens = 47},
                              {.first_slot = 406, .tokens = 32}};
    std::vector<BFloat16> before(kSlots * head_dim);
    for (BFloat16& element : before) {
      element.bits = static_cast<uint16_t>(random());
    }
    std::vector<BFloat16> wanted_k(before), wanted_v(before), found_k(before), found_v(before);
    StoreKv(d, k.data(), v.data(), head_dim, extents, wanted_k.data(), wanted_v.data(),
            kSlots * head_dim);
    for (const auto& [first, tokens] :
         std::vector<std::pair<uint32_t, uint32_t>>{{0, 16}, {16, 100}, {116, 33}, {149, 1}}) {
      UnloadKv(head_dim, planes_k.data(), planes_v.data(), extents, first, tokens, found_k.data(),
               found_v.data());
    }
    const auto same = [](const BFloat16& a, const BFloat16& b) { return a.bits == b.bits; };
    EXPECT_TRUE(std::equal(found_k.begin(), found_k.end(), wanted_k.begin(), same)) << head_dim;
    EXPECT_TRUE(std::equal(found_v.begin(), found_v.end(), wanted_v.begin(), same)) << head_dim;
  }
}

TEST(StoreKvDeathTest, RefusesSlotsBehindTheArena) {
  const AttentionDescriptor d = Descriptor(16, 1, 1);
  std::vector<BFloat16> memory(16 * 16);
  const Extent extent = {.first_slot = 16, .tokens = 1};

  EXPECT_DEATH(StoreKv(d, memory.data(), memory.data(), 16, {&extent, 1}, memory.data(),
                       memory.data(), 16 * 16),
               "");
}

// Lanes follow each other in a tile, each with its elements of every 32.
TEST(KTilesTest, PairsFollowInTheOrderOfLanes) {
  const auto places = [](size_t head_dim) {
    std::vector<size_t> pairs(head_dim / 2);
    for (size_t pair = 0; pair < pairs.size(); ++pair) {
      pairs.at(PlaceOfPair(pair, head_dim)) = pair;
    }
    return pairs;
  };
  EXPECT_EQ(places(16), (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(places(48), (std::vector<size_t>{0,  1,  2,  3,  16, 17, 18, 19, 4,  5,  6,  7,
                                             20, 21, 22, 23, 8,  9,  10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(places(64)[4], 16u);
  for (size_t head_dim = 16; head_dim <= 256; head_dim += 16) {
    std::vector<size_t> pairs = places(head_dim);
    std::sort(pairs.begin(), pairs.end());
    for (size_t i = 0; i < pairs.size(); ++i) {
      ASSERT_EQ(pairs[i], i) << head_dim;
    }
  }
}

}  // namespace
}  // namespace lamina::kernels
