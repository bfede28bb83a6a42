// SPDX-License-Identifier: Apache-2.0
//
// What every ComputeDevice does: copies in order, keeps what it is given, and attends prompts chunk
// by chunk with the bits of the reference. What runs on Dense has its own tests.

#include "tests/unit/kernels/compute_device_suite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "common/philox.h"
#include "kernels/kv_arena.h"
#include "kernels/sampling.h"

namespace lamina::kernels {
namespace {

class ComputeDeviceSuite : public testing::Test {
 protected:
  void SetUp() override {
    device_ = SuiteComputeDevice(DType::kBF16, pool_);
    ASSERT_NE(device_, nullptr);
    ASSERT_TRUE(device_->Begin().ok());
  }

  template <typename T>
  std::vector<T> Download(const void* from, size_t count) {
    std::vector<T> values(count);
    device_->Copy(values.data(), from, count * sizeof(T));
    const absl::Status waited = device_->Synchronize();
    EXPECT_TRUE(waited.ok()) << waited;
    return values;
  }

  ThreadPool pool_{{}};
  std::unique_ptr<ComputeDevice> device_;
};

TEST_F(ComputeDeviceSuite, SaysWhatItIs) {
  EXPECT_FALSE(device_->name().empty());
  EXPECT_EQ(device_->is_host(), device_->name() == "cpu");
  EXPECT_EQ(device_->dense().compute_type(), DType::kBF16);
}

TEST_F(ComputeDeviceSuite, TimesWhatIsCalledAndPassesItsErrors) {
  const auto buffer = device_->Allocate(1 << 20);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const std::vector<uint8_t> ones(1 << 20, 1);
  const absl::StatusOr<double> seconds = device_->SecondsOf([&] {
    device_->Copy(buffer->data, ones.data(), ones.size());
    return absl::OkStatus();
  });
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_GE(*seconds, 0);
  EXPECT_LT(*seconds, 60);
  EXPECT_EQ(Download<uint8_t>(buffer->data, ones.size()), ones);
  EXPECT_EQ(device_->SecondsOf([] { return absl::AbortedError("by the test"); }).status().code(),
            absl::StatusCode::kAborted);
}

TEST_F(ComputeDeviceSuite, MemoryBeginsAsZeros) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{257}, size_t{3} << 20}) {
    const auto device = device_->Allocate(bytes);
    const auto host = device_->AllocateHost(bytes);
    ASSERT_TRUE(device.ok()) << device.status();
    ASSERT_TRUE(host.ok()) << host.status();
    EXPECT_EQ(device->bytes, bytes);
    EXPECT_EQ(Download<uint8_t>(device->data, bytes), std::vector<uint8_t>(bytes, 0));
    EXPECT_EQ(Download<uint8_t>(host->data, bytes), std::vector<uint8_t>(bytes, 0));
    if (device_->is_host()) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(device->data) % 64, 0u) << bytes;
    }
  }
}

TEST_F(ComputeDeviceSuite, CopiesRunInOrder) {
  const auto a = device_->Allocate(4096);
  const auto b = device_->Allocate(4096);
  ASSERT_TRUE(a.ok() && b.ok());
  std::vector<uint8_t> first(4096, 1);
  std::vector<uint8_t> second(4096);
  std::iota(second.begin(), second.end(), 0);
  device_->Copy(a->data, first.data(), 4096);
  device_->Copy(b->data, a->data, 4096);
  device_->Copy(a->data, second.data(), 4096);
  device_->Copy(b->data + 100, a->data + 7, 1000);
  std::copy_n(second.begin() + 7, 1000, first.begin() + 100);
  EXPECT_EQ(Download<uint8_t>(b->data, 4096), first);
}

TEST_F(ComputeDeviceSuite, CopiesRowsAndLeavesWhatIsBetween) {
  constexpr size_t kBytes = 4096;
  struct Shape {
    size_t rows, row_bytes, to_stride, from_stride;
  };
  for (const Shape& s : {Shape{3, 100, 100, 100}, Shape{5, 7, 9, 300}, Shape{1, 64, 0, 0},
                         Shape{2, 1024, 2000, 1024}, Shape{0, 10, 10, 10}, Shape{4, 0, 8, 8}}) {
    const auto to = device_->Allocate(kBytes);
    ASSERT_TRUE(to.ok());
    std::vector<uint8_t> from(kBytes);
    std::iota(from.begin(), from.end(), 1);
    std::vector<uint8_t> expected(kBytes, 0);
    for (size_t row = 0; row < s.rows; ++row) {
      std::copy_n(from.begin() + static_cast<ptrdiff_t>(row * s.from_stride), s.row_bytes,
                  expected.begin() + static_cast<ptrdiff_t>(row * s.to_stride));
    }

    device_->CopyRows({.to = to->data,
                       .to_stride = s.to_stride,
                       .from = from.data(),
                       .from_stride = s.from_stride,
                       .row_bytes = s.row_bytes,
                       .rows = s.rows});

    EXPECT_EQ(Download<uint8_t>(to->data, kBytes), expected) << s.rows << " x " << s.row_bytes;
  }
}

TEST_F(ComputeDeviceSuite, KeepsWhatIsMovedThere) {
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.5f);
  const auto buffer = MoveToDevice(values, *device_);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(buffer->bytes, 4000u);
  EXPECT_EQ(Download<float>(buffer->data, 1000), values);
  const auto nothing = MoveToDevice(std::vector<float>(), *device_);
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_EQ(nothing->bytes, 0u);
}

// Two prompts share batches, and chunks end inside, at and behind blocks of 256 tokens.
struct ChunkCase {
  std::string name;
  AttentionDescriptor shape;
  std::vector<uint32_t> chunk_tokens;  // One for each prompt, one after the other.
};

class ComputeDeviceChunks : public ComputeDeviceSuite,
                            public testing::WithParamInterface<ChunkCase> {
 protected:
  static constexpr uint32_t kSlots = 1600;
  static constexpr uint32_t kFirstSlot[] = {3, 803};
  static constexpr uint32_t kLayers = 2;
  static constexpr uint32_t kRowsBefore = 5;  // Decode rows, which are no items.

  // The bits of the reference over all tokens of a prompt at once.
  std::vector<BFloat16> Expected(uint32_t prompt) {
    const AttentionDescriptor& shape = GetParam().shape;
    const std::vector<BFloat16>& rows = rows_[prompt];
    const auto tokens = static_cast<uint32_t>(rows.size() / shape.qkv_width());
    auto arena = KvArena::Create({&shape, 1}, tokens);
    EXPECT_TRUE(arena.ok());
    const Extent all{.first_slot = 0, .tokens = tokens};
    const BFloat16* k = rows.data() + shape.q_width();
    StoreKv(shape, k, k + shape.kv_width(), shape.qkv_width(), {&all, 1}, arena->k(0), arena->v(0),
            arena->head_stride(0));
    std::vector<BFloat16> out(size_t{tokens} * shape.q_width());
    const AttentionItem item{.extents = {&all, 1},
                             .query_tokens = tokens,
                             .q = rows.data(),
                             .q_stride = shape.qkv_width(),
                             .out = out.data(),
                             .out_stride = shape.q_width()};
    const auto scratch = ReferenceAttention().MakeScratch(shape, tokens, tokens, 1);
    ReferenceAttention().Attend(shape, arena->View(0), {&item, 1}, *scratch, pool_);
    return out;
  }

  std::vector<BFloat16> rows_[2];  // [tokens, q | k | v] of each prompt.
};

TEST_P(ComputeDeviceChunks, HaveTheBitsOfTheReference) {
  const AttentionDescriptor& shape = GetParam().shape;
  const std::vector<uint32_t>& chunks = GetParam().chunk_tokens;
  const uint32_t tokens = std::accumulate(chunks.begin(), chunks.end(), 0u);
  Prng random(7);
  for (std::vector<BFloat16>& rows : rows_) {
    for (size_t i = 0; i < size_t{tokens} * shape.qkv_width(); ++i) {
      rows.push_back(ToBFloat16(static_cast<float>(random.Below(2001)) * 1e-3f - 1.0f));
    }
  }
  const uint32_t widest = *std::max_element(chunks.begin(), chunks.end());
  const uint32_t batch = kRowsBefore + 2 * widest;
  auto attention = device_->MakeChunkAttention({.layers = {kLayers, shape},
                                                .slots = kSlots,
                                                .context_tokens_max = tokens,
                                                .query_tokens_max = 2 * widest});
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_GE((*attention)->bytes(), KvArena::SlotBytes(std::vector(kLayers, shape)) * kSlots);
  const auto qkv = device_->Allocate(batch * shape.qkv_width() * sizeof(BFloat16));
  const auto out = device_->Allocate(batch * shape.q_width() * sizeof(BFloat16));
  ASSERT_TRUE(qkv.ok() && out.ok());
  std::vector<BFloat16> found[2];
  uint32_t done = 0;
  for (const uint32_t count : chunks) {
    std::vector<ChunkItem> items;
    for (uint32_t prompt = 0; prompt < 2; ++prompt) {
      const uint32_t row = kRowsBefore + prompt * count;
      items.push_back({.sequence = {.first_slot = kFirstSlot[prompt], .tokens = done + count},
                       .first_position = done,
                       .tokens = count,
                       .first_row = row});
      device_->Copy(qkv->data + row * shape.qkv_width() * sizeof(BFloat16),
                    rows_[prompt].data() + size_t{done} * shape.qkv_width(),
                    count * shape.qkv_width() * sizeof(BFloat16));
    }
    const MatrixView<BFloat16> in =
        Packed(reinterpret_cast<BFloat16*>(qkv->data), kRowsBefore + 2 * count, shape.qkv_width());
    const MatrixView<BFloat16> to =
        Packed(reinterpret_cast<BFloat16*>(out->data), kRowsBefore + 2 * count, shape.q_width());
    for (uint32_t layer = 0; layer < kLayers; ++layer) {  // Both get the same.
      ASSERT_TRUE((*attention)->Attend(layer, items, in, to).ok());
    }
    const auto all = Download<BFloat16>(out->data, (kRowsBefore + 2 * count) * shape.q_width());
    for (size_t i = 0; i < kRowsBefore * shape.q_width(); ++i) {
      ASSERT_EQ(all[i].bits, 0) << "a row of no item was written";
    }
    for (uint32_t prompt = 0; prompt < 2; ++prompt) {
      const auto first = all.begin() + (kRowsBefore + prompt * count) * shape.q_width();
      found[prompt].insert(found[prompt].end(), first, first + count * shape.q_width());
    }
    done += count;
  }

  for (uint32_t prompt = 0; prompt < 2; ++prompt) {
    const std::vector<BFloat16> expected = Expected(prompt);
    ASSERT_EQ(found[prompt].size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(found[prompt][i].bits, expected[i].bits)
          << "prompt " << prompt << " token " << i / shape.q_width();
    }
  }
}

// One after the other: GCC 12 takes the temporaries of a list for used before they are made.
std::vector<ChunkCase> ChunkCases() {
  std::vector<ChunkCase> cases;
  const auto add = [&cases](const char* name, const AttentionDescriptor& shape,
                            const std::vector<uint32_t>& chunks) {
    cases.push_back({.name = name, .shape = shape, .chunk_tokens = chunks});
  };
  add("OneToken", {.query_heads = 2, .kv_heads = 2, .head_dim = 16}, {1});
  add("Grouped", {.query_heads = 6, .kv_heads = 2, .head_dim = 32, .scale = 0.2f}, {70, 1, 120});
  add("OverBlocks", {.query_heads = 4, .kv_heads = 1, .head_dim = 64, .scale = 0.125f},
      {200, 56, 130, 200});
  add("Window", {.query_heads = 2, .kv_heads = 1, .head_dim = 48, .scale = 0.2f, .window = 100},
      {150, 200});
  add("SoftCap", {.query_heads = 2, .kv_heads = 2, .head_dim = 16, .scale = 1.0f, .soft_cap = 3.0f},
      {33, 40});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, ComputeDeviceChunks, testing::ValuesIn(ChunkCases()),
                         [](const auto& test) { return test.param.name; });

// Draws are far from the borders between candidates, where a device may decide otherwise.
TEST_F(ComputeDeviceSuite, SamplesTheTokensOfTheHost) {
  constexpr uint32_t kVocabulary = 1000;
  constexpr uint32_t kRows = 5;
  auto sampler = device_->MakeSampler(
      {.vocabulary = kVocabulary, .rows_max = kRows, .sequence_tokens_max = 16});
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  EXPECT_EQ(*sampler == nullptr, device_->is_host());
  if (*sampler == nullptr) {
    return;  // The host samples.
  }
  const std::vector<TokenId> prompt = {3, 5, 3};
  const std::vector<TokenId> output = {7};
  const std::vector<SamplingParams> params = {
      {},
      {.temperature = 0.8f, .seed = 4},
      {.logprobs = 1},
      {.temperature = 1.2f, .top_k = 30, .top_p = 0.9f, .repetition_penalty = 1.3f, .seed = 5},
      {.logit_bias = {{11, 100.0f}}}};
  EXPECT_FALSE((*sampler)->Takes({.allowed_tokens = {11}}));
  Prng random(3);
  std::vector<float> logits;
  for (uint32_t i = 0; i < kRows * kVocabulary; ++i) {
    logits.push_back(static_cast<float>(random.Below(100000)) * 1e-4f);
  }
  const auto device_logits = MoveToDevice(logits, *device_);
  ASSERT_TRUE(device_logits.ok());
  std::vector<SampleRequest> rows(kRows);
  for (uint32_t i = 0; i < kRows; ++i) {
    EXPECT_EQ((*sampler)->Takes(params[i]), i != 2);
    rows[i] = {
        .params = i == 2 ? nullptr : &params[i], .prompt = prompt, .output = output, .position = 4};
  }

  const absl::Status sampled = (*sampler)->Sample(
      Packed(reinterpret_cast<const float*>(device_logits->data), kRows, kVocabulary), rows);

  ASSERT_TRUE(sampled.ok()) << sampled;
  ASSERT_TRUE(device_->Synchronize().ok());
  SampleScratch scratch;
  for (uint32_t i = 0; i < kRows; ++i) {
    const absl::Span<const float> row(logits.data() + i * kVocabulary, kVocabulary);
    if (i != 2) {
      EXPECT_EQ((*sampler)->tokens()[i],
                kernels::Sample(row, params[i], prompt, output, 4, scratch).token)
          << "row " << i;
    }
  }
}

// K and V of the others are stored all the same: the next chunk attends over them.
TEST_F(ComputeDeviceSuite, ChunksAttendForRowsThatAreReadAlone) {
  constexpr uint32_t kLayers = 2;
  constexpr uint32_t kRows = 30;
  const AttentionDescriptor shape = {
      .query_heads = 4, .kv_heads = 2, .head_dim = 32, .scale = 0.2f};
  auto attention = device_->MakeChunkAttention({.layers = {kLayers, shape},
                                                .slots = 2 * kRows,
                                                .context_tokens_max = 2 * kRows,
                                                .query_tokens_max = kRows});
  ASSERT_TRUE(attention.ok()) << attention.status();
  Prng random(9);
  std::vector<BFloat16> rows;
  for (size_t i = 0; i < size_t{2 * kRows} * shape.qkv_width(); ++i) {
    rows.push_back(ToBFloat16(static_cast<float>(random.Below(2001)) * 1e-3f - 1.0f));
  }
  const auto qkv = MoveToDevice(rows, *device_);
  ASSERT_TRUE(qkv.ok()) << qkv.status();
  const size_t outputs = size_t{kRows} * shape.q_width();
  const auto attend = [&](uint32_t layer, const ChunkItem& item) {
    const auto out = device_->Allocate(outputs * sizeof(BFloat16));
    EXPECT_TRUE(out.ok()) << out.status();
    auto* const first =
        reinterpret_cast<BFloat16*>(qkv->data) + size_t{item.first_position} * shape.qkv_width();
    const absl::Status attended =
        (*attention)
            ->Attend(layer, {&item, 1}, Packed(first, kRows, shape.qkv_width()),
                     Packed(reinterpret_cast<BFloat16*>(out->data), kRows, shape.q_width()));
    EXPECT_TRUE(attended.ok()) << attended;
    return Download<uint16_t>(out->data, outputs);
  };
  struct Read {
    uint32_t from, count;
  };
  for (const Read& read : {Read{12, 5}, Read{0, 0}, Read{29, 1}, Read{7, 100}}) {
    ChunkItem item{.sequence = {.first_slot = 0, .tokens = kRows}, .tokens = kRows};
    const std::vector<uint16_t> all = attend(0, item);
    item.read_from = read.from;
    item.read = read.count;
    const std::vector<uint16_t> some = attend(1, item);
    for (size_t i = 0; i < outputs; ++i) {
      const size_t row = i / shape.q_width();
      const bool is_read = row >= read.from && row < read.from + read.count;
      ASSERT_EQ(some[i], is_read ? all[i] : 0) << "row " << row << " from " << read.from;
    }
    const ChunkItem next{.sequence = {.first_slot = 0, .tokens = 2 * kRows},
                         .first_position = kRows,
                         .tokens = kRows};
    EXPECT_EQ(attend(1, next), attend(0, next)) << "from " << read.from;
  }
}

TEST_F(ComputeDeviceSuite, NoChunksAreNoWork) {
  const AttentionDescriptor shape = {.query_heads = 2, .kv_heads = 2, .head_dim = 16};
  auto attention = device_->MakeChunkAttention(
      {.layers = {shape}, .slots = 1, .context_tokens_max = 1, .query_tokens_max = 1});
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_TRUE((*attention)->Attend(0, {}, {}, {}).ok());
  EXPECT_TRUE(device_->Synchronize().ok());
}

}  // namespace
}  // namespace lamina::kernels
