// SPDX-License-Identifier: Apache-2.0
#include "plan/reply_window.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace lamina::plan {
namespace {

using Random = std::mt19937;

uint32_t Draw(Random& random, uint32_t least, uint32_t most) {
  return std::uniform_int_distribution<uint32_t>(least, most)(random);
}

struct Unit {
  AttentionDescriptor layer;
  HeadRange heads;
  ReplyShape shape;
  std::vector<uint32_t> first_partial;  // [rows + 1]
};

Unit RandomUnit(Random& random, bool spans) {
  Unit unit;
  unit.layer.kv_heads = Draw(random, 1, 5);
  unit.layer.query_heads = unit.layer.kv_heads * Draw(random, 1, 3);
  unit.layer.head_dim = 16;
  unit.heads.first = Draw(random, 0, unit.layer.kv_heads - 1);
  unit.heads.count = Draw(random, 1, unit.layer.kv_heads - unit.heads.first);
  const uint32_t rows = Draw(random, 0, 3) == 0 ? 0 : Draw(random, 1, 16);
  const Chunking cut = {.chunks = Draw(random, 1, 6),
                        .by_heads = Draw(random, 0, 1) == 1,
                        .query_first = Draw(random, 0, 1) == 1};
  unit.first_partial = {0};
  for (uint32_t row = 0; row < rows; ++row) {
    unit.first_partial.push_back(unit.first_partial.back() + Draw(random, 1, 4));
  }
  unit.shape = {.part = PartOf(unit.layer, unit.heads),
                .pieces = PiecesOf(cut, rows, unit.heads.count),
                .partial_width = spans ? 17u : 0u,
                .partials = spans ? unit.first_partial.back() : 0};
  return unit;
}

TEST(ReplyWindowTest, ChunksOfWholeRowsFollowEachOther) {
  Random random(30);
  for (int round = 0; round < 2000; ++round) {
    const Unit unit = RandomUnit(random, /*spans=*/false);
    const ReplyWindow window(unit.shape);
    size_t next = sizeof(WindowHeader);
    for (uint32_t index = 0; index < unit.shape.pieces.chunks; ++index) {
      const ReplyChunk chunk = window.Chunk(index);
      ASSERT_EQ(chunk.Rows().begin, next);
      ASSERT_EQ(chunk.Rows().size(),
                size_t{2} * (chunk.rows_end() - chunk.first_row()) *
                    PartOf(unit.shape.part, unit.shape.pieces.Heads(index)).q_width());
      next = chunk.Rows().end;
    }
    EXPECT_EQ(window.bytes(), next);
    EXPECT_EQ(next, sizeof(WindowHeader) +
                        size_t{2} * unit.shape.pieces.rows * unit.shape.part.q_width());
  }
}

TEST(ReplyWindowTest, ChunksOfPartialsFollowEachOther) {
  Random random(31);
  for (int round = 0; round < 2000; ++round) {
    const Unit unit = RandomUnit(random, /*spans=*/true);
    const ReplyWindow window(unit.shape);
    size_t next = sizeof(WindowHeader);
    for (uint32_t index = 0; index < unit.shape.pieces.chunks; ++index) {
      const ReplyChunk chunk = window.Chunk(index);
      const ByteRange range = chunk.Partials(unit.first_partial[chunk.first_row()],
                                             unit.first_partial[chunk.rows_end()]);
      ASSERT_EQ(range.begin, next);
      next = range.end;
    }
    EXPECT_EQ(window.bytes(), next);
    EXPECT_EQ(next, sizeof(WindowHeader) +
                        size_t{4} * unit.shape.partials * unit.shape.part.query_heads * 17);
  }
}

// Whole rows: written where the writer says, they come to their heads' columns of all rows.
TEST(ReplyWindowTest, WhatIsWrittenIsScattered) {
  Random random(32);
  for (int round = 0; round < 2000; ++round) {
    const Unit unit = RandomUnit(random, /*spans=*/false);
    const size_t group = unit.layer.group();
    const auto value = [&](uint32_t row, size_t head, size_t element) {
      return static_cast<uint16_t>(1 + (row * unit.layer.query_heads + head) * 16 + element);
    };
    std::vector<std::byte> bytes(ReplyWindow(unit.shape).bytes());
    const ReplyWindowWriter writer(unit.shape, bytes.data());
    for (uint32_t index = 0; index < unit.shape.pieces.chunks; ++index) {
      const ReplyChunk chunk = writer.Chunk(index);
      for (uint32_t row = chunk.first_row(); row < chunk.rows_end(); ++row) {
        for (size_t e = 0; e < chunk.width(); ++e) {
          const size_t head = unit.heads.first * group + chunk.first_query_head() + e / 16;
          writer.Row(chunk, row)[e].bits = value(row, head, e % 16);
        }
      }
    }

    const size_t stride = unit.layer.q_width() + Draw(random, 0, 1) * 16;
    std::vector<BFloat16> out(unit.shape.pieces.rows * stride);
    ReplyWindowReader(unit.shape, bytes.data())
        .Scatter(out.data() + unit.heads.first * group * 16, stride);

    for (uint32_t row = 0; row < unit.shape.pieces.rows; ++row) {
      for (size_t e = 0; e < stride; ++e) {
        const size_t head = e / 16;
        const bool here = head >= unit.heads.first * group &&
                          head < (unit.heads.first + unit.heads.count) * group;
        ASSERT_EQ(out[row * stride + e].bits, here ? value(row, head, e % 16) : 0);
      }
    }
  }
}

TEST(ReplyWindowTest, PartialsAreReadByHead) {
  Random random(33);
  for (int round = 0; round < 1000; ++round) {
    const Unit unit = RandomUnit(random, /*spans=*/true);
    std::vector<float> bytes(ReplyWindow(unit.shape).bytes() / sizeof(float));
    const ReplyWindowWriter writer(unit.shape, reinterpret_cast<std::byte*>(bytes.data()));
    for (uint32_t index = 0; index < unit.shape.pieces.chunks; ++index) {
      const ReplyChunk chunk = writer.Chunk(index);
      for (uint32_t p = unit.first_partial[chunk.first_row()];
           p < unit.first_partial[chunk.rows_end()]; ++p) {
        for (size_t e = 0; e < chunk.width(); ++e) {
          writer.Partial(chunk, p)[e] =
              static_cast<float>(p * 1000 + chunk.first_query_head() + e / 17);
        }
      }
    }

    const ReplyWindowReader reader(unit.shape, reinterpret_cast<const std::byte*>(bytes.data()));

    for (uint32_t index = 0; index < unit.shape.pieces.chunks; ++index) {
      const ReplyChunk chunk = reader.Chunk(index);
      for (uint32_t p = unit.first_partial[chunk.first_row()];
           p < unit.first_partial[chunk.rows_end()]; ++p) {
        for (uint32_t head = 0; head < chunk.query_heads(); ++head) {
          const float expected = static_cast<float>(p * 1000 + chunk.first_query_head() + head);
          ASSERT_EQ(reader.Partial(chunk, p, head)[0], expected);
          ASSERT_EQ(reader.Partial(chunk, p, head)[16], expected);
        }
      }
    }
  }
}

TEST(ReplyWindowTest, WithoutRowsIsAHeader) {
  const AttentionDescriptor layer = {.query_heads = 4, .kv_heads = 2, .head_dim = 16};
  for (const uint32_t width : {0u, 17u}) {
    const ReplyWindow window(
        {.part = layer, .pieces = PiecesOf({.chunks = 4}, 0, 2), .partial_width = width});
    EXPECT_EQ(window.bytes(), sizeof(WindowHeader));
  }
}

}  // namespace
}  // namespace lamina::plan
