// SPDX-License-Identifier: Apache-2.0
//
// What every ComputeDevice does with K and V of its own (MakeKvDevice()): rows in its memory are
// stored in scattered slots and attended in its order, decode rows and chunks alike, with the bits
// of the reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/philox.h"
#include "kernels/kv_arena.h"
#include "kernels/kv_device.h"
#include "tests/unit/kernels/compute_device_suite.h"

namespace lamina::kernels {
namespace {

constexpr uint32_t kSlots = 1600;
constexpr uint32_t kLayers = 2;

struct KvCase {
  std::string name;
  AttentionDescriptor shape;
  // Each step's tokens of the first sequence, then of the second.
  std::vector<std::pair<uint32_t, uint32_t>> steps;
};

// A sequence's values, and where its tokens lie.
struct OneSequence {
  std::vector<BFloat16> rows;  // [tokens, q | k | v]
  std::vector<Extent> extents;
  std::vector<BFloat16> found;
  uint32_t done = 0;
};

class ComputeDeviceKv : public testing::TestWithParam<KvCase> {
 protected:
  void SetUp() override {
    device_ = SuiteComputeDevice(DType::kBF16, pool_);
    ASSERT_NE(device_, nullptr);
    ASSERT_TRUE(device_->Begin().ok());
    uint32_t tokens[2] = {};
    for (const auto& [first, second] : GetParam().steps) {
      tokens[0] += first;
      tokens[1] += second;
    }
    Prng random(7);
    uint32_t slot = 5;
    // Runs of 1 to 40 slots, one sequence's next to the other's.
    for (uint32_t allocated[2] = {}; allocated[0] < tokens[0] || allocated[1] < tokens[1];) {
      for (uint32_t s = 0; s < 2; ++s) {
        const uint32_t run =
            std::min(1 + static_cast<uint32_t>(random.Below(40)), tokens[s] - allocated[s]);
        if (run > 0) {
          sequences_[s].extents.push_back({.first_slot = slot, .tokens = run});
          slot += run + 1;
          allocated[s] += run;
        }
      }
    }
    ASSERT_LE(slot, kSlots);
    for (uint32_t s = 0; s < 2; ++s) {
      for (size_t i = 0; i < size_t{tokens[s]} * shape().qkv_width(); ++i) {
        sequences_[s].rows.push_back(
            ToBFloat16(static_cast<float>(random.Below(2001)) * 1e-3f - 1.0f));
      }
    }
  }

  static const AttentionDescriptor& shape() { return GetParam().shape; }

  static std::vector<Extent> SlotsOf(const OneSequence& sequence, uint32_t first, uint32_t tokens) {
    std::vector<Extent> slots;
    uint32_t at = 0;
    for (const Extent& extent : sequence.extents) {
      for (uint32_t i = 0; i < extent.tokens; ++i, ++at) {
        if (at >= first && at < first + tokens) {
          slots.push_back({.first_slot = extent.first_slot + i, .tokens = 1});
        }
      }
    }
    return slots;
  }

  // The bits of the reference over all tokens at once.
  std::vector<BFloat16> Expected(const OneSequence& sequence) {
    const auto tokens = static_cast<uint32_t>(sequence.rows.size() / shape().qkv_width());
    auto arena = KvArena::Create({&shape(), 1}, tokens);
    EXPECT_TRUE(arena.ok());
    const Extent all{.first_slot = 0, .tokens = tokens};
    const BFloat16* k = sequence.rows.data() + shape().q_width();
    StoreKv(shape(), k, k + shape().kv_width(), shape().qkv_width(), {&all, 1}, arena->k(0),
            arena->v(0), arena->head_stride(0));
    std::vector<BFloat16> out(size_t{tokens} * shape().q_width());
    const AttentionItem item{.extents = {&all, 1},
                             .query_tokens = tokens,
                             .q = sequence.rows.data(),
                             .q_stride = shape().qkv_width(),
                             .out = out.data(),
                             .out_stride = shape().q_width()};
    const auto scratch = ReferenceAttention().MakeScratch(shape(), tokens, tokens, 1);
    ReferenceAttention().Attend(shape(), arena->View(0), {&item, 1}, *scratch, pool_);
    return out;
  }

  // Steps of both sequences, whose rows are stored by the device's layers or by Store().
  void Run(bool by_layers);

  // Makes the rows again, of which nothing turns, and has them stored on the way.
  void StoreByLayers(const KvPlanes& planes, size_t rows, BFloat16* in_rows,
                     const uint32_t (&first_row)[2], const std::vector<Extent> (&slots)[2]) {
    const size_t width = shape().qkv_width();
    std::vector<BFloat16> halves(rows * width);
    device_->Copy(halves.data(), in_rows, halves.size() * sizeof(BFloat16));
    ASSERT_TRUE(device_->Synchronize().ok());
    std::vector<float> floats;
    for (const BFloat16 half : halves) {
      floats.push_back(ToFloat(half));
    }
    std::vector<uint32_t> of_row(rows, kNoSlot);
    for (uint32_t s = 0; s < 2; ++s) {
      for (size_t i = 0; i < slots[s].size(); ++i) {
        of_row[first_row[s] + i] = slots[s][i].first_slot;
      }
    }
    const auto x = MoveToDevice(floats, *device_);
    const auto numbers = MoveToDevice(of_row, *device_);
    ASSERT_TRUE(x.ok() && numbers.ok());
    const absl::Span<const uint32_t> on_device(reinterpret_cast<const uint32_t*>(numbers->data),
                                               rows);
    const KvRowStore store = {.kv_heads = shape().kv_heads,
                              .k = planes.k,
                              .v = planes.v,
                              .head_stride = planes.head_stride,
                              .slots = on_device};
    device_->dense().FinishQkv(Packed(reinterpret_cast<const float*>(x->data), rows, width),
                               {.heads = shape().query_heads + shape().kv_heads,
                                .head_dim = shape().head_dim,
                                .positions = on_device,
                                .store = &store},
                               {}, Packed(in_rows, rows, width));
    ASSERT_TRUE(device_->Synchronize().ok());  // Its inputs go.
  }

  ThreadPool pool_{{}};
  std::unique_ptr<ComputeDevice> device_;
  OneSequence sequences_[2];
};

void ComputeDeviceKv::Run(bool by_layers) {
  uint32_t widest = 0;
  for (const auto& [first, second] : GetParam().steps) {
    widest = std::max(widest, first + second);
  }
  constexpr uint32_t kGap = 1;  // A row of neither sequence between theirs.
  auto kv = device_->MakeKvDevice({.layers = {kLayers, shape()},
                                   .slots = kSlots,
                                   .context_tokens_max = 1024,
                                   .items_max = 2,
                                   .query_tokens_max = widest,
                                   .store_tokens_max = widest});
  ASSERT_TRUE(kv.ok()) << kv.status();
  ASSERT_GE((*kv)->query_tokens_max(), widest);
  EXPECT_EQ((*kv)->slots(), kSlots);
  EXPECT_GE((*kv)->bytes(), KvArena::SlotBytes(std::vector(kLayers, shape())) * kSlots);
  ASSERT_TRUE((*kv)->Begin().ok());
  if (by_layers && !(*kv)->Planes(0).has_value()) {
    GTEST_SKIP() << (*kv)->name() << " stores rows by Store() alone";
  }
  const size_t in_width = shape().qkv_width();
  const size_t out_width = shape().q_width();
  const auto qkv = device_->Allocate(size_t{widest + kGap} * in_width * sizeof(BFloat16));
  const auto out = device_->Allocate(size_t{widest + kGap} * out_width * sizeof(BFloat16));
  ASSERT_TRUE(qkv.ok() && out.ok());
  auto* const in_rows = reinterpret_cast<BFloat16*>(qkv->data);
  auto* const out_rows = reinterpret_cast<BFloat16*>(out->data);

  for (const auto& [first, second] : GetParam().steps) {
    const uint32_t tokens[2] = {first, second};
    const uint32_t first_row[2] = {0, first + kGap};
    std::vector<Extent> slots[2];
    std::vector<KvRows> stored;
    std::vector<AttentionItem> items;
    for (uint32_t s = 0; s < 2; ++s) {
      if (tokens[s] == 0) {
        continue;
      }
      const OneSequence& sequence = sequences_[s];
      BFloat16* const row = in_rows + first_row[s] * in_width;
      device_->Copy(row, sequence.rows.data() + size_t{sequence.done} * in_width,
                    tokens[s] * in_width * sizeof(BFloat16));
      slots[s] = SlotsOf(sequence, sequence.done, tokens[s]);
      stored.push_back({.k = row + out_width,
                        .v = row + out_width + shape().kv_width(),
                        .stride = in_width,
                        .slots = slots[s]});
      items.push_back({.extents = sequence.extents,
                       .first_position = sequence.done,
                       .query_tokens = tokens[s],
                       .q = row,
                       .q_stride = in_width,
                       .out = out_rows + first_row[s] * out_width,
                       .out_stride = out_width});
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {  // Both get the same.
      if (by_layers) {
        StoreByLayers(*(*kv)->Planes(layer), first + kGap + second, in_rows, first_row, slots);
      } else {
        ASSERT_TRUE((*kv)->Store(layer, AllHeads(shape()), stored).ok());
      }
      ASSERT_TRUE((*kv)->Attend(layer, AllHeads(shape()), items).ok());
    }
    std::vector<BFloat16> all(size_t{widest + kGap} * out_width);
    device_->Copy(all.data(), out_rows, all.size() * sizeof(BFloat16));
    ASSERT_TRUE(device_->Synchronize().ok());
    for (uint32_t s = 0; s < 2; ++s) {
      const auto from = all.begin() + static_cast<ptrdiff_t>(first_row[s] * out_width);
      sequences_[s].found.insert(sequences_[s].found.end(), from, from + tokens[s] * out_width);
      sequences_[s].done += tokens[s];
    }
  }

  for (const OneSequence& sequence : sequences_) {
    const std::vector<BFloat16> expected = Expected(sequence);
    ASSERT_EQ(sequence.found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(sequence.found[i].bits, expected[i].bits)
          << "sequence " << &sequence - sequences_ << " token " << i / out_width;
    }
  }
  EXPECT_TRUE((*kv)->usable());
}

TEST_P(ComputeDeviceKv, HasTheBitsOfTheReference) { Run(/*by_layers=*/false); }

TEST_P(ComputeDeviceKv, HasThemWhereLayersStoreTheRows) { Run(/*by_layers=*/true); }

// One after the other: GCC 12 takes the temporaries of a list for used before they are made.
std::vector<KvCase> KvCases() {
  std::vector<KvCase> cases;
  const auto add = [&cases](const char* name, const AttentionDescriptor& shape,
                            const std::vector<std::pair<uint32_t, uint32_t>>& steps) {
    cases.push_back({.name = name, .shape = shape, .steps = steps});
  };
  add("OneToken", {.query_heads = 2, .kv_heads = 2, .head_dim = 16}, {{1, 1}});
  add("ChunksWithDecode", {.query_heads = 6, .kv_heads = 2, .head_dim = 32, .scale = 0.2f},
      {{70, 0}, {1, 60}, {1, 60}, {1, 1}, {1, 1}});
  add("OverBlocks", {.query_heads = 4, .kv_heads = 1, .head_dim = 64, .scale = 0.125f},
      {{200, 1}, {100, 130}, {1, 200}, {1, 1}});
  add("Window", {.query_heads = 2, .kv_heads = 1, .head_dim = 48, .scale = 0.2f, .window = 100},
      {{150, 0}, {200, 20}, {1, 1}});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, ComputeDeviceKv, testing::ValuesIn(KvCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lamina::kernels
