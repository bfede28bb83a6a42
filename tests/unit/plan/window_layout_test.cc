// SPDX-License-Identifier: Apache-2.0
#include "plan/window_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <set>
#include <string>

#include "plan/fetch_pieces.h"

namespace lamina::plan {
namespace {

AttentionDescriptor Layer(uint32_t query_heads, uint32_t kv_heads, uint32_t head_dim) {
  return {.query_heads = query_heads, .kv_heads = kv_heads, .head_dim = head_dim};
}

std::vector<WindowShape> Shapes() {
  return {
      {.compute_nodes = 1,
       .memory_nodes = 1,
       .lanes = 1,
       .rows_max = 1,
       .layers = {Layer(1, 1, 16)}},
      {.compute_nodes = 1,
       .memory_nodes = 3,
       .lanes = 2,
       .rows_max = 16,
       .kv_rows_max = 512,
       .layers = {Layer(9, 3, 64), Layer(9, 3, 64)}},
      {.compute_nodes = 3,
       .memory_nodes = 2,
       .lanes = 4,
       .rows_max = 100,
       .kv_rows_max = 7,
       .layers = {Layer(4, 4, 16), Layer(8, 1, 256), Layer(2, 2, 128)}},
  };
}

TEST(WindowLayoutTest, SignalValuesGrowAndComeBackAsStepAndLayer) {
  for (const WindowShape& shape : Shapes()) {
    const WindowLayout layout(shape);
    uint64_t value = 0;
    for (uint64_t step = 1; step < 50; ++step) {
      for (uint32_t layer = 0; layer < layout.layer_count(); ++layer) {
        for (uint32_t chunk = 1; chunk <= kSubBatchesMax; ++chunk) {
          ++value;
          EXPECT_EQ(layout.StepOf(value), step);
          EXPECT_EQ(layout.LayerOf(value), layer);
        }
        EXPECT_EQ(layout.SignalValue(step, layer), value);
      }
    }
  }
}

// Windows as half-open byte ranges: inside the region, aligned, and apart from each other.
void ExpectApart(const std::vector<std::pair<size_t, size_t>>& windows, size_t region_bytes) {
  std::set<std::pair<size_t, size_t>> sorted(windows.begin(), windows.end());
  EXPECT_EQ(sorted.size(), windows.size());
  size_t end = 0;
  for (const auto& [first, last] : sorted) {
    EXPECT_GE(first, end);
    EXPECT_EQ(first % 64, 0u);
    end = last;
  }
  EXPECT_LE(end, region_bytes);
}

TEST(WindowLayoutTest, QueryWindowsNeverOverlap) {
  for (const WindowShape& shape : Shapes()) {
    const WindowLayout layout(shape);
    std::vector<std::pair<size_t, size_t>> windows;
    std::set<uint32_t> words;
    for (uint32_t node = 0; node < shape.compute_nodes; ++node) {
      for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
        words.insert(layout.query_word(node, lane));
        for (const uint64_t unit : {8u, 9u}) {
          const size_t first = layout.QueryWindow(node, lane, unit * kSubBatchesMax);
          windows.emplace_back(first, first + layout.query_window_bytes());
          EXPECT_EQ(layout.QueryWindow(node, lane, (unit - 1) * kSubBatchesMax + 1), first);
          EXPECT_EQ(layout.QueryWindow(node, lane, (unit + 2) * kSubBatchesMax), first);
        }
      }
    }
    ExpectApart(windows, layout.query_region_bytes());
    EXPECT_EQ(words.size(), layout.query_words());
    EXPECT_EQ(*words.rbegin() + 1, layout.query_words());
    for (uint32_t node = 0; node < shape.compute_nodes; ++node) {
      words.insert(layout.query_probe_word(node));
    }
    EXPECT_EQ(words.size(), layout.query_region_words());
    EXPECT_EQ(*words.rbegin() + 1, layout.query_region_words());
  }
}

TEST(WindowLayoutTest, ReplyWindowsAndThoseForKvNeverOverlap) {
  for (WindowShape shape : Shapes()) {
    shape.fetch_bytes = 5000;
    const WindowLayout layout(shape);
    std::vector<std::pair<size_t, size_t>> windows;
    std::set<uint32_t> words;
    for (uint32_t node = 0; node < shape.memory_nodes; ++node) {
      for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
        words.insert(layout.reply_word(node, lane));
        for (const uint64_t unit : {8u, 9u}) {
          const size_t first = layout.ReplyWindow(node, lane, unit * kSubBatchesMax);
          windows.emplace_back(first, first + layout.reply_window_bytes());
          const size_t fetched = layout.Window(WindowKind::kFetched, node, lane, unit);
          windows.emplace_back(fetched, fetched + FetchWindows(layout).window_bytes());
          EXPECT_EQ(layout.Window(WindowKind::kFetched, node, lane, unit + 2), fetched);
        }
      }
    }
    ExpectApart(windows, layout.reply_region_bytes());
    EXPECT_EQ(words.size(), layout.reply_words());
    EXPECT_EQ(*words.rbegin() + 1, layout.reply_words());
    for (uint32_t node = 0; node < shape.memory_nodes; ++node) {
      for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
        EXPECT_TRUE(words.insert(FetchWindows(layout).word(node, lane)).second);
      }
    }
  }
}

// With stages the context of prompt chunks moves on too, and their attention outputs.
TEST(WindowLayoutTest, WindowsOfReplicasAndStagesNeverOverlap) {
  std::vector<WindowShape> shapes = Shapes();
  for (WindowShape shape : Shapes()) {
    shape.context_chunk_rows = shape.kv_rows_max;
    shapes.push_back(shape);
    shape.shards = 3;
    shape.part_row_bytes = 1000;
    shapes.push_back(shape);
  }
  for (WindowShape shape : shapes) {
    shape.compute_nodes = 3;
    shape.plan_ahead = 2;
    shape.context_row_bytes = 2304;
    const WindowLayout layout(shape);
    size_t widest = 0;
    for (const AttentionDescriptor& layer : shape.layers) {
      widest = std::max(widest, size_t{2} * layer.q_width());
    }
    const size_t context = sizeof(WindowHeader) +
                           (shape.rows_max + shape.context_chunk_rows) * shape.context_row_bytes +
                           shape.context_chunk_rows * widest;
    const size_t tokens = sizeof(WindowHeader) + layout.token_rows_max() * sizeof(TokenEntry);
    std::vector<std::pair<size_t, size_t>> windows = {{0, layout.reply_region_bytes()}};
    std::set<uint32_t> words;
    for (uint32_t node = 0; node < shape.compute_nodes; ++node) {
      for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
        words.insert({layout.context_word(node, lane), layout.token_word(node, lane)});
        const size_t first = layout.ContextWindow(node, lane);
        windows.emplace_back(first, first + context);
        for (const uint64_t step : {6u, 7u}) {
          const size_t window = layout.TokenWindow(node, lane, step);
          windows.emplace_back(window, window + tokens);
        }
      }
    }
    const size_t part =
        sizeof(WindowHeader) + (shape.rows_max + shape.kv_rows_max) * shape.part_row_bytes;
    for (uint32_t shard = 0; shard < shape.shards && shape.shards > 1; ++shard) {
      for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
        words.insert(layout.part_word(shard, lane));
        for (const uint64_t count : {6u, 7u}) {
          const size_t window = layout.PartWindow(shard, lane, count);
          windows.emplace_back(window, window + part);
          EXPECT_EQ(layout.PartWindow(shard, lane, count + 2), window);
        }
      }
    }
    ExpectApart(windows, layout.compute_region_bytes());
    const uint32_t shards = shape.shards == 1 ? 0 : shape.shards;
    EXPECT_EQ(words.size(), (2 * shape.compute_nodes + shards) * shape.lanes);
    EXPECT_EQ(*words.begin(), layout.reply_words());
    for (uint32_t node = 0; node < shape.memory_nodes; ++node) {
      words.insert(layout.memory_probe_word(node));
    }
    for (uint32_t node = 0; node < shape.compute_nodes; ++node) {
      words.insert(layout.compute_probe_word(node));
    }
    EXPECT_EQ(words.size() + layout.reply_words(), layout.compute_region_words());
    EXPECT_EQ(*words.rbegin() + 1, layout.compute_region_words());
  }
}

TEST(WindowLayoutTest, OneReplicaHasReplyWindowsAndProbesAlone) {
  for (WindowShape shape : Shapes()) {
    shape.compute_nodes = 1;
    const WindowLayout layout(shape);
    EXPECT_EQ(layout.compute_region_bytes(), layout.reply_region_bytes());
    EXPECT_EQ(layout.memory_probe_word(0), layout.reply_words());
    EXPECT_EQ(layout.compute_region_words(), layout.reply_words() + shape.memory_nodes + 1);
  }
}

TEST(WindowLayoutTest, WindowsHoldAHeaderAndTheRowsOfTheWidestLayer) {
  for (const WindowShape& shape : Shapes()) {
    const WindowLayout layout(shape);
    for (const AttentionDescriptor& layer : shape.layers) {
      EXPECT_GE(layout.query_window_bytes(), sizeof(WindowHeader) +
                                                 shape.rows_max * layer.qkv_width() * 2 +
                                                 shape.kv_rows_max * 2 * layer.kv_width() * 2);
      EXPECT_GE(layout.reply_window_bytes(),
                sizeof(WindowHeader) + shape.rows_max * layer.q_width() * 2);
    }
  }
}

// The table of kinds: groups of one receiver lie one behind the other, bytes and words alike.
TEST(WindowLayoutTest, KindsShareARegionWithoutGaps) {
  for (WindowShape shape : Shapes()) {
    shape.compute_nodes = 3;
    shape.fetch_bytes = 3000;
    shape.shards = 3;
    shape.part_row_bytes = 1000;
    const WindowLayout layout(shape);
    for (const bool to_memory_node : {false, true}) {
      size_t bytes = 0;
      size_t words = 0;
      for (size_t kind = 0; kind < kWindowKinds; ++kind) {
        const WindowGroup& group = layout.group(static_cast<WindowKind>(kind));
        if (group.to_memory_node == to_memory_node) {
          EXPECT_EQ(group.first_byte, bytes);
          EXPECT_EQ(group.first_word, words);
          EXPECT_EQ(group.name.empty(), group.turns == 0);
          bytes = group.bytes_end();
          words = group.words_end();
        }
      }
      EXPECT_EQ(bytes,
                to_memory_node ? layout.query_region_bytes() : layout.compute_region_bytes());
      EXPECT_EQ(words,
                to_memory_node ? layout.query_region_words() : layout.compute_region_words());
    }
  }
}

// Regions of nodes of two versions must agree: where things lie is fixed.
TEST(WindowLayoutTest, OffsetsAreThoseThatNodesAgreeOn) {
  WindowShape shape = Shapes()[2];
  shape.plan_ahead = 2;
  shape.context_row_bytes = 2304;
  shape.shards = 3;
  shape.part_row_bytes = 1000;
  const WindowLayout layout(shape);
  const size_t query = (64 + 100 * 2560 * 2 + 7 * 512 * 2 + 4095) / 4096 * 4096;
  const size_t reply = (64 + 100 * 2048 * 2 + 4095) / 4096 * 4096;
  const size_t context = (64 + 100 * 2304 + 4095) / 4096 * 4096;
  const size_t token = (64 + 207 * 24 + 4095) / 4096 * 4096;
  const size_t part = (64 + 107 * 1000 + 4095) / 4096 * 4096;
  EXPECT_EQ(layout.QueryWindow(2, 3, 5 * kSubBatchesMax), (11 * 2 + 1) * query);
  EXPECT_EQ(layout.ReplyWindow(1, 2, 4 * kSubBatchesMax), 6 * 2 * reply);
  const size_t replies = 2 * 4 * 2 * reply;
  EXPECT_EQ(layout.ContextWindow(2, 1), replies + 9 * context);
  EXPECT_EQ(layout.TokenWindow(2, 1, 7), replies + 12 * context + (9 * 2 + 1) * token);
  EXPECT_EQ(layout.PartWindow(1, 2, 3),
            replies + 12 * context + 12 * 2 * token + (6 * 2 + 1) * part);
  EXPECT_EQ(layout.compute_region_bytes(), replies + 12 * context + 24 * token + 24 * part);
  EXPECT_EQ(layout.context_word(2, 1), 8u + 9u);
  EXPECT_EQ(layout.token_word(2, 1), 8u + 12u + 9u);
  EXPECT_EQ(layout.part_word(2, 1), 8u + 24u + 9u);
  EXPECT_EQ(layout.memory_probe_word(1), 8u + 24u + 12u + 1u);
  EXPECT_EQ(layout.compute_probe_word(1), 8u + 24u + 12u + 2u + 1u);
}

TEST(WindowLayoutTest, CheckRefusesZerosAndHugeWindows) {
  for (const WindowShape& shape : Shapes()) {
    EXPECT_TRUE(WindowLayout::Check(shape).ok());
  }
  const WindowShape good = Shapes()[1];
  std::vector<WindowShape> bad(5, good);
  bad[0].compute_nodes = 0;
  bad[1].memory_nodes = 0;
  bad[2].lanes = 0;
  bad[3].rows_max = 0;
  bad[4].layers.clear();
  for (const WindowShape& shape : bad) {
    EXPECT_EQ(WindowLayout::Check(shape).code(), absl::StatusCode::kInvalidArgument);
  }
  WindowShape huge = good;
  huge.rows_max = 20'000'000;
  const absl::Status status = WindowLayout::Check(huge);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("running_max"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("more than 64.0 GiB"));
  WindowShape partials = good;  // There are 16 spans, each as wide as 128 heads are.
  partials.memory_nodes = 16;
  partials.lanes = 8;
  partials.rows_max = 512;
  partials.layers = {Layer(128, 8, 128)};
  EXPECT_TRUE(WindowLayout::Check(partials).ok());
  partials.spans_max = 16;
  EXPECT_THAT(std::string(WindowLayout::Check(partials).message()),
              ::testing::HasSubstr("reply windows would take 129"));
  WindowShape wide = good;  // The context of 2 million chunk tokens, from each compute node.
  wide.compute_nodes = 4;
  wide.context_row_bytes = 16 << 10;
  wide.context_chunk_rows = 2 << 20;
  EXPECT_THAT(std::string(WindowLayout::Check(wide).message()),
              ::testing::HasSubstr("context windows between compute nodes"));
}

// --- Headers ---

constexpr WindowHeader kExpected{.lane = 1,
                                 .epoch = 7,
                                 .step = 20,
                                 .layer = 2,
                                 .rows = 3,
                                 .kv_rows = 16,
                                 .sender = 1,
                                 .reduction = 5};

absl::StatusCode Check(void (*change)(WindowHeader&)) {
  WindowHeader header = kExpected;
  change(header);
  return CheckHeader(header, kExpected).code();
}

TEST(WindowHeaderTest, OfTheUnitExpectedIsTaken) {
  EXPECT_EQ(Check([](WindowHeader&) {}), absl::StatusCode::kOk);
}

TEST(WindowHeaderTest, OfThePastIsAborted) {
  EXPECT_EQ(Check([](WindowHeader& h) { h.epoch = 6; }), absl::StatusCode::kAborted);
  EXPECT_EQ(Check([](WindowHeader& h) { h.step = 19; }), absl::StatusCode::kAborted);
  EXPECT_EQ(Check([](WindowHeader& h) { h.layer = 1; }), absl::StatusCode::kAborted);
  // It is an older epoch's, whatever else it says.
  EXPECT_EQ(Check([](WindowHeader& h) {
              h.epoch = 6;
              h.step = 99;
              h.lane = 0;
            }),
            absl::StatusCode::kAborted);
}

TEST(WindowHeaderTest, ThatDiffersOtherwiseIsAFaultOfTheSender) {
  using Change = void (*)(WindowHeader&);
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](WindowHeader& h) { h.magic = 0; }, "magic"},
      {[](WindowHeader& h) { h.epoch = 8; }, "epoch 8"},
      {[](WindowHeader& h) { h.lane = 0; }, "lane 0"},
      {[](WindowHeader& h) { h.step = 21; }, "step 21"},
      {[](WindowHeader& h) { h.layer = 3; }, "layer 3"},
      {[](WindowHeader& h) { h.rows = 4; }, "rows 4"},
      {[](WindowHeader& h) { h.kv_rows = 0; }, "kv_rows 0"},
      {[](WindowHeader& h) { h.sender = 0; }, "sender 0"},
      {[](WindowHeader& h) { h.reduction = 4; }, "reduction 4"},
  };
  for (const auto& [change, words] : changes) {
    WindowHeader header = kExpected;
    change(header);
    const absl::Status status = CheckHeader(header, kExpected);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << words;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(words));
  }
}

TEST(WindowHeaderTest, AsItWasSealedIsTaken) {
  WindowHeader header = kExpected;
  header.data_checksum = 0xfeed;
  Seal(header);
  EXPECT_TRUE(CheckSeal(header, kExpected).ok());
  EXPECT_TRUE(CheckHeader(header, kExpected).ok());
  header.kv_rows = 17;
  EXPECT_FALSE(CheckSeal(header, kExpected).ok());
  Seal(header);
  EXPECT_TRUE(CheckSeal(header, kExpected).ok());
}

TEST(WindowHeaderTest, EachBitThatChangedSinceItWasSealedIsFound) {
  WindowHeader sealed = kExpected;
  sealed.data_checksum = 0xfeed;
  Seal(sealed);
  for (size_t bit = 0; bit < 8 * sizeof(sealed); ++bit) {
    std::array<std::byte, sizeof(sealed)> bytes;
    std::memcpy(bytes.data(), &sealed, sizeof(sealed));
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    WindowHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const absl::Status status = CheckSeal(header, kExpected);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << bit;
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr("window of lane 1 step 20 layer 2: its header changed"));
  }
}

TEST(WindowHeaderTest, WithoutASealIsRefused) {
  EXPECT_EQ(CheckSeal(kExpected, kExpected).code(), absl::StatusCode::kInternal);
  const std::array<std::byte, sizeof(WindowHeader)> zeros = {};
  WindowHeader header;
  std::memcpy(&header, zeros.data(), sizeof(header));
  EXPECT_EQ(CheckSeal(header, kExpected).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace lamina::plan
