// SPDX-License-Identifier: Apache-2.0
//
// Sums of three shards over networks of many seeds: the same bits on all, in the order of shards,
// whoever comes first; and parts that are late, missing or wrong.

#include "compute_node/shard_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "control/blame.h"
#include "model/shard.h"
#include "tests/unit/compute_node/exchange_nodes.h"

namespace lamina::compute_node {
namespace {

constexpr uint32_t kShards = 3;
constexpr uint32_t kSlice = 1;
constexpr uint32_t kRows = 3;

class ShardExchangeTest : public ::testing::Test {
 protected:
  ShardExchangeTest() {
    EXPECT_TRUE(whole_.executor().device().Begin().ok());
    const auto widths = *model::ShardWidthsOf(whole_.model().graph);
    const uint32_t columns = widths.columns / 4;
    parts_ = {{.index = 0, .count = 3, .first_head = 0, .heads = 2, .columns = 2 * columns},
              {.index = 1,
               .count = 3,
               .first_head = 2,
               .heads = 1,
               .first_column = 2 * columns,
               .columns = columns},
              {.index = 2,
               .count = 3,
               .first_head = 3,
               .heads = 1,
               .first_column = 3 * columns,
               .columns = columns}};
    for (const ShardPart& part : parts_) {
      graphs_.push_back(
          std::make_unique<model::Graph>(*model::ShardGraph(whole_.model().graph, part)));
      // No op runs: of the executor its buffers and sums count.
      executors_.push_back(*SliceExecutor::Create(
          *graphs_.back(), whole_.executor().weight_source(), whole_.executor().device(), 64));
    }
    for (const auto& executor : executors_) {
      reduce_.push_back(executor->NextReduce(kSlice, 0));  // Shard 0 has ops of its own.
    }
  }

  void Make(uint64_t seed) {
    plan::EpochConfig config = ExchangeNodes::ConfigFor(whole_.executor(), {"c0", "c1", "c2"});
    for (const ShardPart& part : parts_) {
      config.stages.push_back(
          {.layers = static_cast<uint32_t>(config.layers.size()), .shard = part});
    }
    const absl::Status checked = plan::CheckEpoch(config);
    ASSERT_TRUE(checked.ok()) << checked;
    plan::WindowShape shape = plan::WindowShapeOf(config);
    shape.part_row_bytes = whole_.model().config.width * sizeof(float);
    lanes_.clear();
    exchanges_.clear();
    nodes_ = std::make_unique<ExchangeNodes>(
        transport::FakeNetworkOptions{.seed = seed, .delay_steps_max = 7});
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      ExchangeNode& node = nodes_->Add(config, shape, *executors_[shard]);
      exchanges_.push_back(std::make_unique<ShardExchange>(node.context));
      ASSERT_TRUE(exchanges_.back()->RegisterSources().ok());
      lanes_.push_back(node.MakeLane(0));
      lanes_.back().slice = kSlice;
      lanes_.back().op = reduce_[shard];
      lanes_.back().positions.assign(kRows, 5);
    }
    nodes_->Connect();
  }

  // Elements of a part.
  size_t elements() const {
    return kRows * executors_[0]->sums().RowBytes(kSlice, reduce_[0]) / sizeof(float);
  }

  // Begins the next sum on the shard with a part drawn at random, and returns that.
  std::vector<float> BeginSum(uint32_t shard) {
    exchanges_[shard]->BeginSum(lanes_[shard], reduce_[shard]);
    std::vector<float> part(elements());
    std::generate(part.begin(), part.end(), [this] { return normal_(random_); });
    const model::ValueId value =
        executors_[shard]->program().OpAt(kSlice, reduce_[shard]).inputs[0];
    std::memcpy(lanes_[shard].buffers.placed(value), part.data(), part.size() * sizeof(float));
    return part;
  }

  // Progress of the network until the shard has summed.
  absl::StatusOr<bool> Take(uint32_t shard) {
    for (int step = 0; step < 1000; ++step) {
      absl::StatusOr<bool> taken = exchanges_[shard]->Take(lanes_[shard]);
      if (!taken.ok() || *taken) {
        return taken;
      }
      (*nodes_)[shard].transport->Progress();
    }
    return false;
  }

  std::vector<float> SumOf(uint32_t shard) {
    const model::ValueId out = executors_[shard]->program().OpAt(kSlice, reduce_[shard]).output;
    const auto rows = lanes_[shard].buffers.Floats(out, kRows);
    return {rows.row(0), rows.row(0) + elements()};
  }

  static std::vector<float> PlainSum(const std::vector<std::vector<float>>& parts) {
    std::vector<float> sum = parts[0];
    for (size_t shard = 1; shard < parts.size(); ++shard) {
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += parts[shard][i];
      }
    }
    return sum;
  }

  // A part of the next sum as shard 1 would not send it to shard 0.
  void PutWrongPart(void (*change)(plan::WindowHeader&)) {
    const WorkerContext& context = (*nodes_)[0].context;
    plan::WindowHeader header = context.HeaderOf(lanes_[0], kSlice, kRows, 1);
    header.reduction = 1;
    change(header);
    window_.resize(sizeof(header) + elements() * sizeof(float));
    std::memcpy(window_.data(), &header, sizeof(header));
    nodes_->PutAs((*nodes_)[1], 0, context.layout.PartWindow(1, 0, 1), window_,
                  {.word = context.layout.part_word(1, 0), .value = 1});
  }

  static test_support::RandomModelSpec WholeSpec() {
    return {.model_type = "llama", .seed = 5, .layers = 2, .vocabulary = 96};
  }

  Program whole_{WholeSpec(), DType::kBF16};
  std::vector<ShardPart> parts_;
  std::vector<std::unique_ptr<model::Graph>> graphs_;
  std::vector<std::unique_ptr<SliceExecutor>> executors_;
  std::vector<size_t> reduce_;  // [shards]
  std::mt19937 random_{5};
  std::normal_distribution<float> normal_{0.0f, 1.0f};
  std::vector<std::byte> window_;
  std::unique_ptr<ExchangeNodes> nodes_;
  std::vector<std::unique_ptr<ShardExchange>> exchanges_;
  std::vector<Lane> lanes_;
};

// Windows and the buffers that are put from take turns: several sums follow each other as fast as
// the shards allow.
TEST_F(ShardExchangeTest, AllHaveTheSumInTheOrderOfShards) {
  ASSERT_LT(reduce_[0], executors_[0]->OpsEnd(kSlice));
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Make(seed);
    std::vector<uint32_t> order = {0, 1, 2};
    for (int sum = 0; sum < 6; ++sum) {
      std::shuffle(order.begin(), order.end(), random_);
      std::vector<std::vector<float>> parts(kShards);
      for (const uint32_t shard : order) {
        parts[shard] = BeginSum(shard);
        ASSERT_TRUE(exchanges_[shard]->Send(lanes_[shard]).ok());
      }
      std::shuffle(order.begin(), order.end(), random_);
      for (const uint32_t shard : order) {
        const absl::StatusOr<bool> taken = Take(shard);
        ASSERT_TRUE(taken.ok()) << taken.status();
        ASSERT_TRUE(*taken);
        EXPECT_EQ(SumOf(shard), PlainSum(parts)) << "sum " << sum << " on shard " << shard;
      }
    }
  }
}

// A fast shard may have sent its next part before a slow one has looked at this one's.
TEST_F(ShardExchangeTest, AShardMayBeASumAheadOfAnother) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Make(seed);
    std::vector<std::vector<float>> first(kShards);
    std::vector<std::vector<float>> second(kShards);
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      first[shard] = BeginSum(shard);
      ASSERT_TRUE(exchanges_[shard]->Send(lanes_[shard]).ok());
    }
    for (const uint32_t fast : {1, 2}) {
      ASSERT_TRUE(Take(fast).value_or(false));
      second[fast] = BeginSum(fast);
      ASSERT_TRUE(exchanges_[fast]->Send(lanes_[fast]).ok());
    }
    nodes_->Settle();

    ASSERT_TRUE(Take(0).value_or(false));
    EXPECT_EQ(SumOf(0), PlainSum(first));
    second[0] = BeginSum(0);
    ASSERT_TRUE(exchanges_[0]->Send(lanes_[0]).ok());
    ASSERT_TRUE(Take(0).value_or(false));
    EXPECT_EQ(SumOf(0), PlainSum(second));
  }
}

TEST_F(ShardExchangeTest, TheSumWaitsForTheLastPartAndNamesWhoseIsMissing) {
  Make(1);
  const plan::WindowLayout& layout = (*nodes_)[0].context.layout;
  const auto expect_missing = [&](uint32_t shard) {
    const absl::StatusOr<bool> taken = exchanges_[0]->Take(lanes_[0]);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_FALSE(*taken);
    const AwaitedSignal signal = exchanges_[0]->NextSignal(lanes_[0]);
    EXPECT_EQ(signal.peer, ComputePeer(shard));
    EXPECT_EQ(signal.word, layout.part_word(shard, 0));
    EXPECT_EQ(signal.value, 1u);
  };
  BeginSum(0);
  expect_missing(1);
  BeginSum(1);
  ASSERT_TRUE(exchanges_[1]->Send(lanes_[1]).ok());
  nodes_->Settle();
  expect_missing(2);
  BeginSum(2);
  ASSERT_TRUE(exchanges_[2]->Send(lanes_[2]).ok());
  nodes_->Settle();

  // All are there: what is named has come.
  const AwaitedSignal signal = exchanges_[0]->NextSignal(lanes_[0]);
  EXPECT_GE((*nodes_)[0].region->LoadSignal(signal.word), signal.value);
  EXPECT_TRUE(exchanges_[0]->Take(lanes_[0]).value_or(false));
}

TEST_F(ShardExchangeTest, ShardsMeetWithoutRowsToo) {
  Make(1);
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    lanes_[shard].positions.clear();
    exchanges_[shard]->BeginEmptySum(lanes_[shard]);
    EXPECT_FALSE(exchanges_[shard]->Take(lanes_[shard]).value_or(true));
    ASSERT_TRUE(exchanges_[shard]->Send(lanes_[shard]).ok());
  }
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    EXPECT_TRUE(Take(shard).value_or(false));
  }
  EXPECT_EQ((*nodes_)[0].counters.bytes_sent.load(), 2 * sizeof(plan::WindowHeader));
  EXPECT_EQ((*nodes_)[0].counters.bytes_received.load(), 2 * sizeof(plan::WindowHeader));

  // The next sum, with rows, is the second one on all of them.
  std::vector<std::vector<float>> parts;
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    lanes_[shard].positions.assign(kRows, 5);
    parts.push_back(BeginSum(shard));
    ASSERT_TRUE(exchanges_[shard]->Send(lanes_[shard]).ok());
  }
  EXPECT_TRUE(Take(2).value_or(false));
  EXPECT_EQ(SumOf(2), PlainSum(parts));
}

TEST_F(ShardExchangeTest, PartsOfAnotherUnitOrSumAreRefused) {
  const struct {
    const char* reason;
    const char* says;
    void (*change)(plan::WindowHeader&);
  } wrong[] = {
      {"damaged", "magic 0", [](plan::WindowHeader& h) { h.magic = 0; }},
      {"stale", "epoch 6", [](plan::WindowHeader& h) { h.epoch = 6; }},
      {"epoch", "epoch 8", [](plan::WindowHeader& h) { h.epoch = 8; }},
      {"lane", "lane 1", [](plan::WindowHeader& h) { h.lane = 1; }},
      {"step", "step 2", [](plan::WindowHeader& h) { h.step = 2; }},
      {"stale", "step 1", [](plan::WindowHeader& h) { h.layer = 0; }},
      {"rows", "rows 4", [](plan::WindowHeader& h) { h.rows = 4; }},
      {"sender", "sender 2", [](plan::WindowHeader& h) { h.sender = 2; }},
      {"rows", "reduction 3", [](plan::WindowHeader& h) { h.reduction = 3; }},
  };
  for (const auto& [reason, says, change] : wrong) {
    SCOPED_TRACE(says);
    Make(1);
    BeginSum(0);
    BeginSum(2);
    ASSERT_TRUE(exchanges_[2]->Send(lanes_[2]).ok());
    PutWrongPart(change);

    const absl::StatusOr<bool> taken = Take(0);

    EXPECT_FALSE(taken.ok());
    EXPECT_THAT(std::string(taken.status().message()), ::testing::HasSubstr(says));
    EXPECT_EQ(control::BlamedIn(taken.status()), "c1");
    EXPECT_EQ((*nodes_)[0].counters.refusals.total(), 1u);
    EXPECT_EQ((*nodes_)[0].Refused(reason), 1u);
  }
}

TEST_F(ShardExchangeTest, ANodeWithAllOfEveryLayerIsTheOneShard) {
  const plan::EpochConfig config = ExchangeNodes::ConfigFor(whole_.executor(), {"c0"});
  ExchangeNodes nodes({});
  ExchangeNode& node = nodes.Add(config, plan::WindowShapeOf(config), whole_.executor());

  ShardExchange exchange(node.context);

  EXPECT_EQ(exchange.shard().count, 1u);
  EXPECT_EQ(exchange.shard().index, 0u);
  EXPECT_TRUE(exchange.RegisterSources().ok());
}

}  // namespace
}  // namespace lamina::compute_node
