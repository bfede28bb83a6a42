// SPDX-License-Identifier: Apache-2.0
//
// Sums over shards where the device is the host, and where it is not.

#include "compute_node/part_sums.h"

#include <gtest/gtest.h>

#include "common/philox.h"
#include "compute_node/slice_slots.h"
#include "model/shard.h"
#include "tests/unit/compute_node/counting_device.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

constexpr size_t kRows = 3;

class PartSumsTest : public ::testing::Test {
 protected:
  static model::Graph Shard(const model::Graph& graph) {
    const auto widths = *model::ShardWidthsOf(graph);
    return *model::ShardGraph(
        graph, {.count = 2, .heads = widths.heads / 2, .columns = widths.columns / 2});
  }

  // In the order of shards: the bits of a sum depend on it.
  std::vector<float> PlainSum(absl::Span<const std::vector<float>> parts) const {
    std::vector<float> sum = parts[0];
    for (size_t shard = 1; shard < parts.size(); ++shard) {
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += parts[shard][i];
      }
    }
    return sum;
  }

  void ExpectSums(kernels::ComputeDevice& device) {
    const PartSums sums(program_, device);
    ValueBuffers buffers =
        *ValueBuffers::Make(program_, BodySlots(program_, device.is_host()), kRows, device);
    const size_t width = sums.RowBytes(1, reduce_) / sizeof(float);
    Prng random(3);
    std::vector<std::vector<float>> parts(4, std::vector<float>(kRows * width));
    std::vector<const float*> pointers;
    for (std::vector<float>& part : parts) {
      for (float& value : part) {
        value = static_cast<float>(random.Below(100000)) / 777.0f;
      }
      pointers.push_back(part.data());
    }
    for (size_t shards = 2; shards <= parts.size(); ++shards) {
      const auto first = absl::MakeConstSpan(pointers).first(shards);

      sums.Sum(1, reduce_, first, kRows, buffers);

      const auto out = buffers.Floats(program_.OpAt(1, reduce_).output, kRows);
      const std::vector<float> found(out.row(0), out.row(0) + kRows * width);
      EXPECT_EQ(found, PlainSum(absl::MakeConstSpan(parts).first(shards))) << shards << " shards";
    }
  }

  Program model_{Spec("llama"), DType::kBF16};
  ThreadPool pool_{{}};
  const model::Graph graph_ = Shard(model_.model().graph);
  const SliceProgram program_ = *SliceProgram::Create(graph_, DType::kBF16);
  const size_t reduce_ = program_.NextReduce(1, 0);
};

TEST_F(PartSumsTest, PartsAreSummedInTheOrderOfShards) {
  ASSERT_LT(reduce_, program_.OpsEnd(1));
  CountingDevice apart(pool_);
  ExpectSums(apart);
  ExpectSums(*kernels::MakeCpuComputeDevice(kernels::MakeReferenceDense(DType::kBF16),
                                            kernels::CpuAttention(), pool_));
}

TEST_F(PartSumsTest, TheOwnPartComesToItsPlaceInOneCopy) {
  CountingDevice device(pool_);
  const PartSums sums(program_, device);
  ValueBuffers buffers = *ValueBuffers::Make(program_, BodySlots(program_, false), kRows, device);
  const model::ValueId part = program_.OpAt(1, reduce_).inputs[0];
  std::fill_n(buffers.data(part), kRows * sums.RowBytes(1, reduce_), std::byte{5});
  std::vector<std::byte> place(kRows * sums.RowBytes(1, reduce_));
  sums.Place(1, reduce_, place.data(), buffers);

  ASSERT_TRUE(sums.ToHost(1, reduce_, 2, buffers).ok());

  EXPECT_EQ(device.TakeCopies(), std::vector<size_t>{2 * sums.RowBytes(1, reduce_)});
  EXPECT_EQ(device.synchronized(), 1);
  EXPECT_EQ(place.front(), std::byte{5});
  EXPECT_EQ(place.back(), std::byte{0});
}

// The transport reads it there; no copy is made.
TEST_F(PartSumsTest, OnTheProcessorThePartIsMadeInItsPlace) {
  const auto device = kernels::MakeCpuComputeDevice(kernels::MakeReferenceDense(DType::kBF16),
                                                    kernels::CpuAttention(), pool_);
  const PartSums sums(program_, *device);
  ValueBuffers buffers = *ValueBuffers::Make(program_, BodySlots(program_, true), kRows, *device,
                                             /*tile_rows=*/2);
  const model::ValueId part = program_.OpAt(1, reduce_).inputs[0];
  std::vector<std::byte> place(kRows * sums.RowBytes(1, reduce_));

  sums.Place(1, reduce_, place.data(), buffers);

  EXPECT_EQ(buffers.data(part), place.data());
  const std::vector<uint32_t> ids(kRows, 0);
  ASSERT_TRUE(buffers.SetRows({.token_ids = ids, .positions = ids}).ok());
  size_t rows = 0;
  buffers.InTiles([&] {
    EXPECT_EQ(buffers.data(part), place.data() + rows * sums.RowBytes(1, reduce_));
    rows += buffers.rows().positions.size();
  });
  EXPECT_EQ(rows, kRows);
}

}  // namespace
}  // namespace lamina::compute_node
