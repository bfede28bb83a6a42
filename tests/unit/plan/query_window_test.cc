// SPDX-License-Identifier: Apache-2.0
#include "plan/query_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace lamina::plan {
namespace {

using Random = std::mt19937;

uint32_t Draw(Random& random, uint32_t least, uint32_t most) {
  return std::uniform_int_distribution<uint32_t>(least, most)(random);
}

// A layer as a compute node has it, and what goes to one memory node.
struct Unit {
  AttentionDescriptor layer;
  HeadRange heads;
  QueryShape shape;
  std::vector<uint32_t> listed;  // Rows of the layer.
  std::vector<BFloat16> values;  // [layer rows, q | k | v], all different.

  LayerRows rows() const {
    return {.layer = layer, .data = values.data(), .stride = layer.qkv_width()};
  }
  RowSelection selected() const { return {.listed = listed}; }
};

constexpr uint32_t kLayerRows = 24;

Unit RandomUnit(Random& random) {
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
  unit.shape = {.part = PartOf(unit.layer, unit.heads),
                .pieces = PiecesOf(cut, rows, unit.heads.count),
                .own_rows = Draw(random, 0, 1) == 0 ? rows : Draw(random, 0, rows),
                .prompt_tokens = Draw(random, 0, 5)};
  for (uint32_t row = 0; row < rows; ++row) {
    unit.listed.push_back(Draw(random, 0, kLayerRows - 1));
  }
  unit.values.resize(size_t{kLayerRows} * unit.layer.qkv_width());
  for (size_t i = 0; i < unit.values.size(); ++i) {
    unit.values[i].bits = static_cast<uint16_t>(i % 0xfffe + 1);
  }
  return unit;
}

// The bytes behind the header, as docs and headers describe them, written one element after the
// other.
std::vector<uint16_t> Described(const Unit& unit) {
  const AttentionDescriptor& layer = unit.layer;
  const RowPieces& pieces = unit.shape.pieces;
  std::vector<uint16_t> out;
  const auto append = [&](uint32_t row, size_t from, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      out.push_back(unit.values[row * size_t{layer.qkv_width()} + from + i].bits);
    }
  };
  for (uint32_t chunk = 0; chunk < pieces.chunks; ++chunk) {
    const size_t head = unit.heads.first + pieces.Heads(chunk).first;
    const size_t heads = pieces.Heads(chunk).count;
    const auto q = [&](uint32_t row) {
      append(row, head * layer.group() * layer.head_dim, heads * layer.group() * layer.head_dim);
    };
    const auto kv = [&](uint32_t row) {
      append(row, layer.q_width() + head * layer.head_dim, heads * layer.head_dim);
      append(row, layer.q_width() + layer.kv_width() + head * layer.head_dim,
             heads * layer.head_dim);
    };
    const bool apart = pieces.query_first && chunk == 0;
    for (uint32_t i = pieces.FirstRow(chunk); i < pieces.RowsEnd(chunk); ++i) {
      q(unit.listed[i]);
      if (!apart && i < unit.shape.own_rows) {
        kv(unit.listed[i]);
      }
    }
    for (uint32_t i = 0; apart && i < std::min(pieces.RowsEnd(0), unit.shape.own_rows); ++i) {
      kv(unit.listed[i]);
    }
  }
  return out;
}

std::vector<uint16_t> Bits(const std::vector<BFloat16>& values) {
  std::vector<uint16_t> bits;
  for (const BFloat16 value : values) {
    bits.push_back(value.bits);
  }
  return bits;
}

TEST(QueryWindowTest, RowsLieAsDescribed) {
  Random random(20);
  for (int round = 0; round < 2000; ++round) {
    const Unit unit = RandomUnit(random);
    const QueryWindowWriter writer(unit.shape, unit.heads.first);

    std::vector<BFloat16> staged(writer.staged_elements());
    writer.Gather(unit.rows(), unit.selected(), staged.data());

    ASSERT_EQ(Bits(staged), Described(unit)) << "round " << round;
  }
}

TEST(QueryWindowTest, PiecesFollowEachOtherAndPromptsComeLast) {
  Random random(21);
  for (int round = 0; round < 2000; ++round) {
    const Unit unit = RandomUnit(random);
    const QueryWindowWriter writer(unit.shape, unit.heads.first);
    const RowPieces& pieces = unit.shape.pieces;
    size_t next = sizeof(WindowHeader);
    for (uint32_t piece = 0; piece < pieces.count(); ++piece) {
      ASSERT_EQ(writer.Piece(piece).begin, next);
      ASSERT_GE(writer.Piece(piece).end, next);
      next = writer.Piece(piece).end;
    }
    EXPECT_EQ(next, sizeof(WindowHeader) + 2 * writer.staged_elements());
    EXPECT_EQ(writer.Prompts().begin, next);
    EXPECT_EQ(writer.Prompts().size(), 2 * writer.prompt_elements());
    EXPECT_EQ(writer.bytes(), writer.Prompts().end);
    if (pieces.query_first) {  // The first piece is the queries of the first chunk alone.
      EXPECT_EQ(writer.Piece(0).size(),
                2 * pieces.RowsEnd(0) * PartOf(unit.shape.part, pieces.Heads(0)).q_width());
    }
  }
}

// What is put piece by piece into a window is read again, row by row.
TEST(QueryWindowTest, WhatIsWrittenIsRead) {
  Random random(22);
  for (int round = 0; round < 2000; ++round) {
    const Unit unit = RandomUnit(random);
    const QueryWindowWriter writer(unit.shape, unit.heads.first);
    std::vector<BFloat16> staged(writer.staged_elements());
    std::vector<BFloat16> prompts(writer.prompt_elements());
    writer.Gather(unit.rows(), unit.selected(), staged.data());
    for (uint32_t token = 0; token < unit.shape.prompt_tokens; ++token) {
      writer.GatherPrompt(unit.rows(), /*row=*/token, token, prompts.data());
    }
    std::vector<std::byte> window(writer.bytes());
    for (uint32_t piece = 0; piece < unit.shape.pieces.count(); ++piece) {
      const absl::Span<const BFloat16> part = writer.StagedPiece(staged.data(), piece);
      ASSERT_EQ(part.size() * 2, writer.Piece(piece).size());
      std::copy_n(reinterpret_cast<const std::byte*>(part.data()), part.size() * 2,
                  window.data() + writer.Piece(piece).begin);
    }
    std::copy_n(reinterpret_cast<const std::byte*>(prompts.data()), prompts.size() * 2,
                window.data() + writer.Prompts().begin);

    const QueryWindowReader reader(unit.shape, window.data());

    const AttentionDescriptor& layer = unit.layer;
    const size_t kv = unit.shape.part.kv_width();
    for (uint32_t index = 0; index < unit.shape.pieces.chunks; ++index) {
      const QueryChunk chunk = reader.Chunk(index);
      const size_t head = unit.heads.first + chunk.heads().first;
      for (uint32_t i = chunk.first_row(); i < chunk.rows_end(); ++i) {
        const BFloat16* row = unit.rows().row(unit.listed[i]);
        const BFloat16* q = row + head * layer.group() * layer.head_dim;
        const BFloat16* k = row + layer.q_width() + head * layer.head_dim;
        for (size_t e = 0; e < chunk.q_width(); ++e) {
          ASSERT_EQ(reader.At(chunk.q(i))[e].bits, q[e].bits);
        }
        for (size_t e = 0; e < chunk.kv_width() && chunk.own(i); ++e) {
          ASSERT_EQ(reader.At(chunk.k(i))[e].bits, k[e].bits);
          ASSERT_EQ(reader.At(chunk.v(i))[e].bits, k[layer.kv_width() + e].bits);
        }
      }
    }
    for (uint32_t token = 0; token < unit.shape.prompt_tokens; ++token) {
      const BFloat16* k =
          unit.rows().row(token) + layer.q_width() + unit.heads.first * layer.head_dim;
      for (size_t e = 0; e < kv; ++e) {
        ASSERT_EQ(reader.Prompt(token)[e].bits, k[e].bits);
        ASSERT_EQ(reader.Prompt(token)[kv + e].bits, k[layer.kv_width() + e].bits);
      }
    }
  }
}

TEST(QueryWindowTest, RowsOfAllHeadsInOrderNeedNoGathering) {
  const AttentionDescriptor layer = {.query_heads = 4, .kv_heads = 2, .head_dim = 16};
  const auto lie_as_in = [&](HeadRange heads, Chunking cut, uint32_t own, size_t stride) {
    const QueryWindowWriter writer(
        {.part = PartOf(layer, heads), .pieces = PiecesOf(cut, 6, heads.count), .own_rows = own},
        heads.first);
    return writer.LieAsIn({.layer = layer, .stride = stride});
  };
  EXPECT_TRUE(lie_as_in(AllHeads(layer), {}, 6, layer.qkv_width()));
  EXPECT_TRUE(lie_as_in(AllHeads(layer), {.chunks = 3}, 6, layer.qkv_width()));
  EXPECT_FALSE(lie_as_in({.count = 1}, {}, 6, layer.qkv_width()));
  EXPECT_FALSE(lie_as_in(AllHeads(layer), {.chunks = 2, .by_heads = true}, 6, layer.qkv_width()));
  EXPECT_FALSE(lie_as_in(AllHeads(layer), {.query_first = true}, 6, layer.qkv_width()));
  EXPECT_FALSE(lie_as_in(AllHeads(layer), {}, 5, layer.qkv_width()));
  EXPECT_FALSE(lie_as_in(AllHeads(layer), {}, 6, layer.qkv_width() + 1));
}

TEST(QueryWindowTest, SelectsConsecutiveRowsOrThoseListed) {
  const std::vector<uint32_t> listed = {4, 2};
  EXPECT_EQ((RowSelection{.first = 3})[2], 5u);
  EXPECT_EQ((RowSelection{.listed = listed})[1], 2u);
}

TEST(QueryWindowTest, WithoutRowsIsAHeaderAndPrompts) {
  const AttentionDescriptor layer = {.query_heads = 4, .kv_heads = 2, .head_dim = 16};
  const QueryWindow window({.part = layer,
                            .pieces = PiecesOf({.chunks = 4, .query_first = true}, 0, 2),
                            .prompt_tokens = 3});
  EXPECT_EQ(window.shape().pieces.count(), 1u);
  EXPECT_EQ(window.Piece(0), (ByteRange{sizeof(WindowHeader), sizeof(WindowHeader)}));
  EXPECT_EQ(window.Prompts(),
            (ByteRange{sizeof(WindowHeader), sizeof(WindowHeader) + 3 * 2 * 2 * 2 * 16}));
}

}  // namespace
}  // namespace lamina::plan
