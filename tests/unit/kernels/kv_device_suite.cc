// SPDX-License-Identifier: Apache-2.0
//
// What every KvDevice does, against plain loops over a host's arena, bit for bit.

#include "tests/unit/kernels/kv_device_suite.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <string>

#include "kernels/kv_arena.h"

namespace lamina::kernels {
namespace {

struct Shape {
  std::vector<AttentionDescriptor> layers;
  std::string name;
};

AttentionDescriptor Layer(uint32_t head_dim, uint32_t kv_heads, uint32_t group, uint32_t window = 0,
                          float soft_cap = 0) {
  return {.query_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .window = window,
          .soft_cap = soft_cap};
}

AttentionDescriptor WithSinks(AttentionDescriptor layer) {
  for (uint32_t head = 0; head < layer.query_heads; ++head) {
    layer.sinks.push_back(static_cast<float>(head) - 1.5f);
  }
  return layer;
}

// Some sequences of unlike lengths that grow side by side, so that their slots are scattered.
class KvDeviceTest : public testing::TestWithParam<Shape> {
 protected:
  static constexpr uint32_t kSlots = 2048;
  static constexpr uint32_t kContext = 1024;
  static constexpr uint32_t kSequences = 3;

  struct Sequence {
    std::vector<Extent> extents;
    uint32_t tokens = 0;
  };

  void SetUp() override {
    const KvDeviceOptions options = {.layers = layers(),
                                     .slots = kSlots,
                                     .context_tokens_max = kContext,
                                     .items_max = 16,
                                     .store_tokens_max = 300};
    auto device = SuiteDevices(pool_)(options);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    ASSERT_TRUE(device_->Begin().ok());
    auto arena = KvArena::Create(layers(), kSlots);
    ASSERT_TRUE(arena.ok());
    arena_.emplace(*std::move(arena));
    sequences_.resize(kSequences);
  }

  const std::vector<AttentionDescriptor>& layers() const { return GetParam().layers; }

  std::vector<BFloat16> Normal(size_t count) {
    std::normal_distribution<float> normal(0.0f, 1.2f);
    std::vector<BFloat16> values(count);
    for (BFloat16& x : values) {
      x = ToBFloat16(normal(random_));
    }
    return values;
  }

  // Gives a sequence the next free slots.
  Extent Grow(Sequence& sequence, uint32_t tokens) {
    const Extent extent{.first_slot = next_slot_, .tokens = tokens};
    next_slot_ += tokens + 3;
    sequence.extents.push_back(extent);
    sequence.tokens += tokens;
    return extent;
  }

  // Stores random rows in all layers, in both.
  void Store(const std::vector<Extent>& slots, size_t padding) {
    for (uint32_t layer = 0; layer < layers().size(); ++layer) {
      const size_t width = layers()[layer].kv_width();
      const size_t stride = 2 * width + padding;
      std::vector<std::vector<BFloat16>> values;
      std::vector<KvRows> rows;
      for (const Extent& extent : slots) {
        values.push_back(Normal(extent.tokens * stride));
        rows.push_back({.k = values.back().data(),
                        .v = values.back().data() + width,
                        .stride = stride,
                        .slots = {&extent, 1}});
        StoreKv(layers()[layer], rows.back().k, rows.back().v, stride, rows.back().slots,
                arena_->k(layer), arena_->v(layer), arena_->head_stride(layer));
      }
      const absl::Status stored = device_->Store(layer, AllHeads(layers()[layer]), rows);
      ASSERT_TRUE(stored.ok()) << stored;
      for (std::vector<BFloat16>& used : values) {
        std::fill(used.begin(), used.end(), BFloat16{0x7fc0});  // May be overwritten from now on.
      }
    }
  }

  // Attends items on the device and by the reference; outputs must be equal to the bit.
  void Attend(const std::vector<AttentionItem>& items, const std::vector<bool>& parts) {
    for (uint32_t layer = 0; layer < layers().size(); ++layer) {
      const AttentionDescriptor& d = layers()[layer];
      const std::vector<BFloat16> q = Normal(items.size() * d.q_width());
      const size_t part = d.query_heads * PartialWidth(d);
      std::vector<BFloat16> out[2];
      std::vector<float> partial[2];
      for (int which = 0; which < 2; ++which) {
        out[which].assign(items.size() * d.q_width(), BFloat16{0x1234});
        partial[which].assign(items.size() * part, -7.0f);
        std::vector<AttentionItem> mine = items;
        for (size_t i = 0; i < mine.size(); ++i) {
          mine[i].q = q.data() + i * d.q_width();
          mine[i].q_stride = d.q_width();
          mine[i].out = parts[i] ? nullptr : out[which].data() + i * d.q_width();
          mine[i].out_stride = d.q_width();
          mine[i].partial = parts[i] ? partial[which].data() + i * part : nullptr;
        }
        if (which == 0) {
          const absl::Status attended = device_->Attend(layer, AllHeads(d), mine);
          ASSERT_TRUE(attended.ok()) << attended;
        } else {
          const auto scratch = ReferenceAttention().MakeScratch(d, 1, kContext, 1);
          ReferenceAttention().Attend(d, arena_->View(layer), mine, *scratch, pool_);
        }
      }
      EXPECT_EQ(std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(BFloat16)), 0)
          << "layer " << layer;
      EXPECT_EQ(std::memcmp(partial[0].data(), partial[1].data(), partial[0].size() * 4), 0)
          << "layer " << layer;
    }
  }

  static AttentionItem LastTokenOf(const Sequence& sequence) {
    return {.extents = sequence.extents, .first_position = sequence.tokens - 1};
  }

  ThreadPool pool_{{.threads = 2}};
  std::mt19937 random_{11};
  std::unique_ptr<KvDevice> device_;
  std::optional<KvArena> arena_;
  std::vector<Sequence> sequences_;
  uint32_t next_slot_ = 5;
};

TEST_P(KvDeviceTest, SaysWhatItIs) {
  EXPECT_EQ(device_->slots(), kSlots);
  EXPECT_GE(device_->bytes(), KvArena::SlotBytes(layers()) * kSlots);
  EXPECT_FALSE(device_->name().empty());
  EXPECT_TRUE(device_->usable());
}

// Prompts in pieces, then steps in which every sequence gets a token and attends.
TEST_P(KvDeviceTest, GrowingSequencesHaveTheBitsOfTheReference) {
  const uint32_t prompts[kSequences] = {1, 255, 290};
  for (uint32_t i = 0; i < kSequences; ++i) {
    Store({Grow(sequences_[i], prompts[i])}, 0);
  }
  for (int step = 0; step < 4; ++step) {
    std::vector<Extent> slots;
    for (Sequence& sequence : sequences_) {
      slots.push_back(Grow(sequence, 1));
    }
    Store(slots, 48);
    Attend({LastTokenOf(sequences_[0]), LastTokenOf(sequences_[1]), LastTokenOf(sequences_[2])},
           {false, false, false});
  }
}

// As rows whose queries came first, and spans of a cut sequence: parts with whole rows.
TEST_P(KvDeviceTest, PartsAreThoseOfTheReference) {
  Sequence& sequence = sequences_[0];
  for (const uint32_t tokens : {256u, 100u, 156u, 200u, 88u}) {
    Store({Grow(sequence, tokens)}, 0);
  }
  const std::vector<Extent> closed = {sequence.extents.begin(), sequence.extents.begin() + 3};
  const std::vector<Extent> open = {sequence.extents.begin() + 3, sequence.extents.end()};
  Attend({{.extents = closed, .first_position = 511},
          {.extents = open, .first_position = 287},
          {.extents = open, .first_position = 255},
          LastTokenOf(sequence)},
         {true, true, true, false});
  Attend({{.extents = closed, .first_position = 511}}, {true});
}

// Choices of one request share its prompt's slots: together they see more tokens than there are.
TEST_P(KvDeviceTest, ManyItemsShareSlots) {
  Sequence& prompt = sequences_[0];
  for (int i = 0; i < 4; ++i) {
    Store({Grow(prompt, 250)}, 0);
  }
  std::vector<Sequence> forks(16, prompt);
  std::vector<AttentionItem> items;
  for (Sequence& fork : forks) {
    Store({Grow(fork, 1)}, 0);
    items.push_back(LastTokenOf(fork));
  }
  Attend(items, std::vector<bool>(16, false));
  Attend(items, std::vector<bool>(16, true));
}

// More than one thread stores them: a prompt's piece that begins and ends inside tiles, in slots of
// two runs, next to single rows that share tiles with each other.
TEST_P(KvDeviceTest, ManyRowsOfOneCallAreStored) {
  Store({Grow(sequences_[0], 256)}, 0);
  std::vector<Sequence> rows(13);
  std::vector<Extent> slots;
  for (Sequence& row : rows) {
    slots.push_back(Grow(row, 1));
  }
  slots.push_back(Grow(sequences_[0], 141));
  slots.push_back(Grow(sequences_[0], 70));
  Store(slots, 32);
  std::vector<AttentionItem> items = {LastTokenOf(sequences_[0])};
  for (const Sequence& row : rows) {
    items.push_back(LastTokenOf(row));
  }
  Attend(items, std::vector<bool>(items.size(), false));
}

TEST_P(KvDeviceTest, SlotsAreOverwritten) {
  Sequence& sequence = sequences_[0];
  const Extent first = Grow(sequence, 200);
  Store({first}, 0);
  Attend({LastTokenOf(sequence)}, {false});
  Store({first}, 16);
  Attend({LastTokenOf(sequence)}, {false});
}

// Who puts whole tiles from where they lie sends what a copy of them would have.
TEST_P(KvDeviceTest, TilesThatLieAlikeAreWhatIsLoaded) {
  KvReads* const reads = device_->reads();
  if (reads == nullptr || reads->memory().empty()) {
    GTEST_SKIP() << "K and V of this device do not lie in the host's memory";
  }
  constexpr uint32_t kTokens = 48;
  const Extent slots{.first_slot = 1024, .tokens = kTokens};  // Whole tiles.
  Store({slots}, 0);
  const absl::Span<const std::byte> memory = reads->memory();
  for (uint32_t layer = 0; layer < layers().size(); ++layer) {
    const uint32_t head_dim = layers()[layer].head_dim;
    for (uint32_t head = 0; head < layers()[layer].kv_heads; ++head) {
      std::vector<BFloat16> k(kTokens * head_dim);
      std::vector<BFloat16> v(k.size());
      ASSERT_TRUE(reads->Load(layer, head, {&slots, 1}, 0, kTokens, k.data(), v.data()).ok());
      const std::optional<KvView> view = reads->View(layer, head);
      ASSERT_TRUE(view.has_value());
      const auto expect = [&](const BFloat16* plane, const std::vector<BFloat16>& loaded) {
        const auto* const there =
            reinterpret_cast<const std::byte*>(plane + size_t{slots.first_slot} * head_dim);
        const size_t bytes = loaded.size() * sizeof(BFloat16);
        EXPECT_EQ(std::memcmp(there, loaded.data(), bytes), 0) << "layer " << layer;
        EXPECT_GE(there, memory.data());
        EXPECT_LE(there + bytes, memory.data() + memory.size());
      };
      expect(view->k, k);
      expect(view->v, v);
    }
  }
}

// As rows that come in groups of heads: stored group by group, and attended so, whole and in part,
// they have the bits of all heads at once.
TEST_P(KvDeviceTest, HeadsByThemselvesAreAsAllTogether) {
  Sequence& sequence = sequences_[0];
  Store({Grow(sequence, 300)}, 0);
  const Extent token = Grow(sequence, 1);
  for (uint32_t layer = 0; layer < layers().size(); ++layer) {
    const AttentionDescriptor& d = layers()[layer];
    const std::vector<BFloat16> kv = Normal(2 * d.kv_width());
    StoreKv(d, kv.data(), kv.data() + d.kv_width(), 2 * d.kv_width(), {&token, 1}, arena_->k(layer),
            arena_->v(layer), arena_->head_stride(layer));
    const std::vector<BFloat16> q = Normal(d.q_width());
    const std::vector<Extent> closed = {
        {.first_slot = sequence.extents[0].first_slot, .tokens = kBlockTokens}};
    std::vector<BFloat16> out(d.q_width());
    std::vector<float> partial(d.query_heads * PartialWidth(d));
    for (uint32_t head = d.kv_heads; head-- > 0;) {
      const HeadRange heads = {.first = head, .count = 1};
      const size_t kv_first = size_t{head} * d.head_dim;
      const KvRows row = {.k = kv.data() + kv_first,
                          .v = kv.data() + d.kv_width() + kv_first,
                          .stride = 2 * d.kv_width(),
                          .slots = {&token, 1}};
      ASSERT_TRUE(device_->Store(layer, heads, {&row, 1}).ok());
      const size_t first = kv_first * d.group();
      const size_t stride = size_t{d.group()} * d.head_dim;
      AttentionItem item = LastTokenOf(sequence);
      item.q = q.data() + first;
      item.q_stride = stride;
      item.out = out.data() + first;
      item.out_stride = stride;
      ASSERT_TRUE(device_->Attend(layer, heads, {&item, 1}).ok());
      if (d.window > 0) {
        continue;
      }
      item.extents = closed;
      item.first_position = kBlockTokens - 1;
      item.first_seen = 77;
      item.partial = partial.data() + size_t{head} * d.group() * PartialWidth(d);
      ASSERT_TRUE(device_->Attend(layer, heads, {&item, 1}).ok());
    }
    std::vector<BFloat16> expected(d.q_width());
    std::vector<float> expected_partial(partial.size());
    AttentionItem whole = LastTokenOf(sequence);
    whole.q = q.data();
    whole.q_stride = d.q_width();
    whole.out = expected.data();
    whole.out_stride = d.q_width();
    const auto scratch = ReferenceAttention().MakeScratch(d, 1, kContext, 1);
    ReferenceAttention().Attend(d, arena_->View(layer), {&whole, 1}, *scratch, pool_);
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(BFloat16)), 0) << layer;
    if (d.window == 0) {
      whole.extents = closed;
      whole.first_position = kBlockTokens - 1;
      whole.first_seen = 77;
      whole.partial = expected_partial.data();
      ReferenceAttention().Attend(d, arena_->View(layer), {&whole, 1}, *scratch, pool_);
      EXPECT_EQ(std::memcmp(partial.data(), expected_partial.data(), partial.size() * 4), 0);
    }
  }
}

TEST_P(KvDeviceTest, TellsTheSecondsOfWhatItIsGiven) {
  bool called = false;
  const absl::StatusOr<double> seconds = device_->SecondsOf([&] {
    called = true;
    return device_->Attend(0, {.count = 1}, {});
  });
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_TRUE(called);
  EXPECT_GE(*seconds, 0);
  EXPECT_EQ(device_->SecondsOf([] { return absl::AbortedError("no"); }).status(),
            absl::AbortedError("no"));
}

TEST_P(KvDeviceTest, NothingToDoIsDone) {
  EXPECT_TRUE(device_->Store(0, {.count = 1}, {}).ok());
  EXPECT_TRUE(device_->Attend(0, {.count = 1}, {}).ok());
  EXPECT_TRUE(device_->usable());
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, KvDeviceTest,
    testing::Values(Shape{{Layer(64, 3, 3), Layer(64, 3, 3)}, "Grouped"},
                    Shape{{Layer(16, 2, 1), Layer(16, 2, 1, 100)}, "AWindowInOneLayer"},
                    Shape{{Layer(128, 1, 8, 0, 20.0f)}, "OneKvHeadAndACap"},
                    Shape{{WithSinks(Layer(32, 2, 3)), WithSinks(Layer(32, 2, 3, 70))}, "Sinks"}),
    [](const auto& test) { return test.param.name; });

TEST(KvDeviceMakerTest, RefusesAnArenaOfNothing) {
  ThreadPool pool({.threads = 1});
  EXPECT_FALSE(SuiteDevices(pool)({.layers = {Layer(64, 1, 1)}, .slots = 0}).ok());
  EXPECT_FALSE(SuiteDevices(pool)({.layers = {}, .slots = 16}).ok());
}

}  // namespace
}  // namespace lamina::kernels
