// SPDX-License-Identifier: Apache-2.0
#include "model/stored_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/gguf/dequantize.h"
#include "model/model.h"
#include "model/shard.h"
#include "tests/support/random_model.h"

namespace lamina::model {
namespace {

using test_support::RandomModelSpec;
using testing::HasSubstr;

class StoredRowsTest : public testing::Test {
 protected:
  StoredRowsTest() {
    spec_.width = 128;
    spec_.ffn_width = 128;
    spec_.head_dim = 32;
  }
  ~StoredRowsTest() override { std::filesystem::remove_all(path_); }

  Model OpenQ8() {
    EXPECT_TRUE(test_support::WriteRandomGguf(spec_, path_, "Q8_0").ok());
    auto model = OpenModel(path_);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // That the rows found, dequantised, are those of ReadWeight().
  static void ExpectWeight(const Graph& graph, const WeightSource& source, WeightId id) {
    const Weight& weight = graph.weights[id];
    const absl::StatusOr<StoredRows> stored = FindStoredRows(graph, source, id);
    ASSERT_TRUE(stored.ok()) << stored.status();
    const GgufTensorType* type = FindGgufTensorType(stored->type);
    ASSERT_NE(type, nullptr);
    ASSERT_EQ(stored->rows.size(), weight.rows);
    std::vector<float> values(size_t{weight.rows} * weight.cols);
    ASSERT_TRUE(ReadWeight(graph, source, id, absl::MakeSpan(values)).ok());
    std::vector<float> block(type->block_elements);
    for (size_t row = 0; row < weight.rows; ++row) {
      for (size_t col = 0; col < weight.cols; ++col) {
        if (col % type->block_elements == 0) {
          type->dequantize(stored->rows[row] + col / type->block_elements * type->block_bytes,
                           block.data());
        }
        ASSERT_EQ(block[col % type->block_elements], values[row * weight.cols + col])
            << weight.name << " row " << row << ", column " << col;
      }
    }
  }

  RandomModelSpec spec_ = {.model_type = "llama", .layers = 2, .kv_heads = 4};
  const std::string path_ = absl::StrCat(testing::TempDir(), "/stored_rows_", getpid());
};

TEST_F(StoredRowsTest, AreTheFilesBlocks) {
  const Model model = OpenQ8();
  size_t matrices = 0;
  for (WeightId id = 0; id < model.graph.weights.size(); ++id) {
    if (model.graph.weights[id].rows > 1) {
      ExpectWeight(model.graph, *model.weights, id);
      ++matrices;
    }
  }
  EXPECT_GE(matrices, 7 * spec_.layers + 1);
}

TEST_F(StoredRowsTest, ShardsHaveTheirPieces) {
  const Model model = OpenQ8();
  const absl::StatusOr<Graph> shard = ShardGraph(
      model.graph,
      {.index = 1, .count = 2, .first_head = 3, .heads = 1, .first_column = 96, .columns = 32});
  ASSERT_TRUE(shard.ok()) << shard.status();
  size_t pieces = 0;
  for (WeightId id = 0; id < shard->weights.size(); ++id) {
    if (shard->weights[id].slice.has_value()) {
      ExpectWeight(*shard, *model.weights, id);
      ++pieces;
    }
  }
  EXPECT_EQ(pieces, 7 * spec_.layers);
}

TEST_F(StoredRowsTest, ColumnsThatBeginInsideABlockAreUnimplemented) {
  const Model model = OpenQ8();
  const absl::StatusOr<Graph> shard = ShardGraph(
      model.graph,
      {.index = 1, .count = 2, .first_head = 3, .heads = 1, .first_column = 100, .columns = 28});
  ASSERT_TRUE(shard.ok()) << shard.status();
  size_t refused = 0;
  for (WeightId id = 0; id < shard->weights.size(); ++id) {
    if (shard->weights[id].cols == 28 && shard->weights[id].rows > 1) {
      const absl::Status status = FindStoredRows(*shard, *model.weights, id).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("inside a block"));
      ++refused;
    }
  }
  EXPECT_EQ(refused, spec_.layers);  // It is the MLP's second layer.
}

TEST_F(StoredRowsTest, FilesWithoutBlocksAreUnimplemented) {
  std::filesystem::create_directories(path_);
  ASSERT_TRUE(test_support::WriteRandomModel(spec_, path_).ok());
  const absl::StatusOr<Model> model = OpenModel(path_);
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status status = FindStoredRows(model->graph, *model->weights, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("not stored in blocks"));
}

TEST_F(StoredRowsTest, AnOffsetOrAnotherOrderIsUnimplemented) {
  Model model = OpenQ8();
  model.graph.weights[0].offset = 1.0f;
  EXPECT_EQ(FindStoredRows(model.graph, *model.weights, 0).status().code(),
            absl::StatusCode::kUnimplemented);
  model.graph.weights[0].offset = 0.0f;
  model.graph.weights[0].order = WeightRows::kTransposed;
  EXPECT_EQ(FindStoredRows(model.graph, *model.weights, 0).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(StoredRowsTest, WhatIsNotThereIsNamed) {
  Model model = OpenQ8();
  EXPECT_EQ(FindStoredRows(model.graph, *model.weights, 100000).status().code(),
            absl::StatusCode::kInvalidArgument);
  model.graph.weights[0].name = "no.such.tensor";
  const absl::Status status = FindStoredRows(model.graph, *model.weights, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no.such.tensor"));
}

}  // namespace
}  // namespace lamina::model
