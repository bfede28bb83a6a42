// SPDX-License-Identifier: Apache-2.0
#include "plan/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <set>
#include <tuple>
#include <vector>

#include "common/philox.h"
#include "plan/slice_order.h"

namespace lamina::plan {
namespace {

constexpr uint32_t kReplicasMax = 8;

// An event simulation of replicas that follow a SliceOrder and one pool that serves attentions in
// the order of their coming. Times are integers.
class Pipeline {
 public:
  struct Unit {
    uint32_t lane = 0;
    uint64_t unit = 0;
    uint64_t start = 0;
    uint64_t end = 0;
    uint64_t ready = 0;  // Since then it could have run.
  };
  using Time = std::function<uint64_t(uint32_t lane)>;

  Pipeline(PipelineMode mode, uint32_t replicas, uint32_t lanes, uint32_t layers, Time slice,
           Time attention)
      : Pipeline(PipelineSchedule(mode, replicas, layers), replicas, lanes, layers,
                 std::move(slice), std::move(attention)) {
    for (uint32_t replica = 0; replica < replicas; ++replica) {
      turns_.push_back(std::make_unique<FewestSlicesFirst>(lanes));
    }
  }
  // Replicas of several nodes.
  Pipeline(absl::Span<const Stage> nodes, uint32_t lanes, uint32_t layers, Time slice,
           Time attention)
      : Pipeline(PipelineSchedule(PipelineMode::kRotational, nodes, layers),
                 static_cast<uint32_t>(nodes.size()), lanes, layers, std::move(slice),
                 std::move(attention)) {
    for (size_t node = 0; node < nodes.size(); ++node) {
      turns_.push_back(std::make_unique<OldestVisitFirst>(lanes));
    }
  }

  // When that unit of the lane began.
  uint64_t StartOf(uint32_t lane, uint64_t unit) const {
    for (const auto& units : ran) {
      for (const Unit& one : units) {
        if (one.lane == lane && one.unit == unit) {
          return one.start;
        }
      }
    }
    ADD_FAILURE() << "unit " << unit << " of lane " << lane << " did not run";
    return 0;
  }

 private:
  Pipeline(PipelineSchedule schedule, uint32_t replicas, uint32_t lanes, uint32_t layers,
           Time slice, Time attention)
      : schedule_(std::move(schedule)),
        layers_(layers),
        slice_(std::move(slice)),
        attention_(std::move(attention)),
        free_(replicas, 0),
        unit_(lanes, 0),
        ready_(lanes, 0),
        ran(replicas) {}

 public:
  // Lane j's first unit is ready at first_ready(j).
  void Run(const Time& first_ready, uint64_t until) {
    for (uint32_t lane = 0; lane < unit_.size(); ++lane) {
      for (const auto& turns : turns_) {
        turns->Begin(lane);
      }
      events_.push({first_ready(lane), ++count_, lane});
    }
    while (!events_.empty() && std::get<0>(events_.top()) <= until) {
      const uint64_t now = std::get<0>(events_.top());
      // Everything of this moment first: then choose.
      while (!events_.empty() && std::get<0>(events_.top()) == now) {
        const uint32_t lane = std::get<2>(events_.top());
        events_.pop();
        if (lane < unit_.size()) {
          ready_[lane] = now;
          const uint32_t node = NodeOf(lane, unit_[lane]);
          if (unit_[lane] % layers_ == 0 || NodeOf(lane, unit_[lane] - 1) != node) {
            turns_[node]->BeginVisit(lane);
          }
          turns_[node]->SetReady(lane);
        }
      }
      for (uint32_t replica = 0; replica < turns_.size(); ++replica) {
        Dispatch(replica, now);
      }
    }
  }

 private:
  uint32_t NodeOf(uint32_t lane, uint64_t unit) const {
    return schedule_.NodeOf(lane, unit / layers_ + 1, static_cast<uint32_t>(unit % layers_), false);
  }

  void Dispatch(uint32_t replica, uint64_t now) {
    if (free_[replica] > now) {
      return;
    }
    const auto lane = turns_[replica]->Next();
    if (!lane) {
      return;
    }
    const uint64_t end = now + slice_(*lane);
    ran[replica].push_back(
        {.lane = *lane, .unit = unit_[*lane], .start = now, .end = end, .ready = ready_[*lane]});
    free_[replica] = end;
    const uint64_t attention = std::max(end, pool_free_);
    pool_free_ = attention + attention_(*lane);
    pool.push_back(
        {.lane = *lane, .unit = unit_[*lane], .start = attention, .end = pool_free_, .ready = end});
    ++unit_[*lane];
    events_.push({pool_free_, ++count_, *lane});
    events_.push({end, ++count_, UINT32_MAX});  // The replica is free again.
  }

  const PipelineSchedule schedule_;
  const uint32_t layers_;
  const Time slice_;
  const Time attention_;
  std::vector<std::unique_ptr<SliceOrder>> turns_;  // [nodes]
  std::vector<uint64_t> free_;
  std::vector<uint64_t> unit_;
  std::vector<uint64_t> ready_;
  uint64_t pool_free_ = 0;
  uint64_t count_ = 0;
  using Event = std::tuple<uint64_t, uint64_t, uint32_t>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;

 public:
  std::vector<std::vector<Unit>> ran;  // By replica, in order.
  std::vector<Unit> pool;
};

uint64_t IdleBetween(const std::vector<Pipeline::Unit>& units, uint64_t from, uint64_t to) {
  uint64_t busy = 0;
  for (const Pipeline::Unit& unit : units) {
    busy += std::min(unit.end, to) - std::min(std::max(unit.start, from), std::min(unit.end, to));
  }
  return to - from - busy;
}

TEST(PipelineScheduleTest, EveryMomentStartsOneUnitAndEveryReplicaOneEveryRMoments) {
  for (uint32_t replicas = 1; replicas <= kReplicasMax; ++replicas) {
    SCOPED_TRACE(replicas);
    const uint32_t layers = 5;
    const PipelineSchedule schedule(PipelineMode::kRotational, replicas, layers);
    std::set<uint64_t> starts;
    const uint64_t units = 7 * layers;
    for (uint32_t lane = 0; lane <= replicas; ++lane) {
      for (uint64_t unit = 0; unit < units; ++unit) {
        const uint64_t start = schedule.StartOf(lane, unit);
        EXPECT_TRUE(starts.insert(start).second);
        const auto slice = static_cast<uint32_t>(unit % layers);
        EXPECT_EQ(schedule.ReplicaOf(lane, unit / layers + 1, slice, false), start % replicas);
      }
    }
    EXPECT_EQ(*starts.rbegin(), starts.size() - 1);  // No gap.
  }
}

TEST(PipelineScheduleTest, TheTailOfAStepRunsWhereTheNextStepBegins) {
  for (const PipelineMode mode :
       {PipelineMode::kRotational, PipelineMode::kFixed, PipelineMode::kSequential}) {
    for (uint32_t replicas = 1; replicas <= kReplicasMax; ++replicas) {
      const PipelineSchedule schedule(mode, replicas, 3);
      for (uint32_t lane = 0; lane < 9; ++lane) {
        for (uint64_t step = 1; step < 20; ++step) {
          EXPECT_EQ(schedule.ReplicaOf(lane, step, 3, false),
                    schedule.ReplicaOf(lane, step + 1, 0, false));
        }
      }
    }
  }
}

TEST(PipelineScheduleTest, APinnedStepStaysAtHome) {
  const PipelineSchedule schedule(PipelineMode::kRotational, 3, 4);
  for (uint32_t lane = 0; lane < 5; ++lane) {
    for (uint32_t slice = 0; slice <= 4; ++slice) {
      EXPECT_EQ(schedule.ReplicaOf(lane, 7, slice, true), lane % 3);
    }
  }
}

TEST(PipelineScheduleTest, WithStagesEverySliceRunsWhereItsLayerIs) {
  Prng random(9);
  for (uint32_t replicas = 1; replicas <= 3; ++replicas) {
    const uint32_t layers = 7;
    std::vector<Stage> nodes;
    for (uint32_t replica = 0; replica < replicas; ++replica) {
      for (uint32_t first = 0; first < layers;) {  // Other stages in every replica.
        const auto count = static_cast<uint32_t>(1 + random.Below(layers - first));
        nodes.push_back({.replica = replica, .first_layer = first, .layers = count});
        first += count;
      }
    }
    std::reverse(nodes.begin(), nodes.end());
    ASSERT_TRUE(CheckStages(nodes, layers).ok());
    for (const PipelineMode mode : {PipelineMode::kRotational, PipelineMode::kFixed}) {
      const PipelineSchedule schedule(mode, nodes, layers);
      const PipelineSchedule whole(mode, replicas, layers);
      EXPECT_EQ(schedule.replicas(), replicas);
      for (uint32_t lane = 0; lane < 5; ++lane) {
        for (uint64_t step = 1; step < 9; ++step) {
          for (const bool pinned : {false, true}) {
            for (uint32_t slice = 0; slice <= layers; ++slice) {
              const Stage& node = nodes[schedule.NodeOf(lane, step, slice, pinned)];
              EXPECT_EQ(node.replica, whole.NodeOf(lane, step, slice, pinned));
              const uint32_t layer = std::min(slice, layers - 1);  // The tail is the last stage's.
              EXPECT_LE(node.first_layer, layer);
              EXPECT_LT(layer, node.first_layer + node.layers);
            }
          }
        }
      }
    }
  }
}

// Every shard of a stage runs its slices, for the nodes of its own index; shard 0 has the head.
TEST(PipelineScheduleTest, ShardsRunTheSameSlices) {
  const uint32_t layers = 5;
  std::vector<Stage> nodes;
  for (const uint32_t replica : {0u, 1u}) {
    for (const uint32_t first : {0u, 3u}) {
      for (const uint32_t shard : {0u, 1u, 2u}) {
        nodes.push_back({.replica = replica,
                         .first_layer = first,
                         .layers = first == 0 ? 3u : 2u,
                         .shard = {.index = shard, .count = 3, .first_head = shard, .heads = 1}});
      }
    }
  }
  ASSERT_TRUE(CheckStages(nodes, layers).ok());
  const PipelineSchedule first(PipelineMode::kRotational, nodes, layers, 0);
  for (const uint32_t shard : {0u, 1u, 2u}) {
    const PipelineSchedule schedule(PipelineMode::kRotational, nodes, layers, shard);
    for (uint32_t lane = 0; lane < 4; ++lane) {
      for (uint64_t step = 1; step < 5; ++step) {
        for (uint32_t slice = 0; slice <= layers; ++slice) {
          const uint32_t node = schedule.NodeOf(lane, step, slice, false);
          EXPECT_EQ(nodes[node].shard.index, shard);
          EXPECT_EQ(node, first.NodeOf(lane, step, slice, false) + shard);
        }
        EXPECT_EQ(schedule.HeadNodeOf(lane, step, false), first.NodeOf(lane, step, layers, false));
        EXPECT_EQ(schedule.HeadNodeOf(lane, step, true), first.NodeOf(lane, step, layers, true));
      }
    }
  }
  const PipelineSchedule plain(PipelineMode::kRotational, 3, layers);
  EXPECT_EQ(plain.HeadNodeOf(1, 2, false), plain.NodeOf(1, 2, layers, false));
}

// Layers spread as evenly as can be, over one replica.
std::vector<Stage> EvenStages(uint32_t stages, uint32_t layers) {
  std::vector<Stage> nodes;
  for (uint32_t i = 0; i < stages; ++i) {
    const uint32_t first = i * layers / stages;
    nodes.push_back({.first_layer = first, .layers = (i + 1) * layers / stages - first});
  }
  return nodes;
}

// One replica of several stages, lanes of one kind. No schedule takes less than the busiest of
// stages, pool, and one lane by itself; with two lanes for each stage it takes just that.
TEST(PipelineScheduleTest, StagesReachTheirBound) {
  using Times = std::pair<uint64_t, uint64_t>;
  for (uint32_t stages = 1; stages <= 4; ++stages) {
    const uint32_t layers = 8;
    const std::vector<Stage> nodes = EvenStages(stages, layers);
    uint64_t most = 0;
    for (const Stage& node : nodes) {
      most = std::max<uint64_t>(most, node.layers);
    }
    for (const auto& [slice, attention] :
         {Times{3, 1}, Times{9, 1}, Times{5, 2}, Times{4, 4}, Times{2, 3}, Times{1, 3}}) {
      for (uint32_t lanes = 1; lanes <= 8; ++lanes) {
        SCOPED_TRACE(testing::Message() << stages << " stages, " << lanes << " lanes, slices of "
                                        << slice << ", attentions of " << attention);
        Pipeline pipeline(
            nodes, lanes, layers, [slice = slice](uint32_t) { return slice; },
            [attention = attention](uint32_t) { return attention; });
        const uint64_t bound = std::max(
            {lanes * most * slice, lanes * layers * attention, layers * (slice + attention)});
        constexpr uint64_t kFirst = 20;  // Lanes that start together have fallen into it by then.
        constexpr uint64_t kSteps = 40;
        pipeline.Run([](uint32_t) { return 0; }, (kFirst + kSteps + 1) * 2 * bound);
        for (uint32_t lane = 0; lane < lanes; ++lane) {
          const auto taken =
              static_cast<double>(pipeline.StartOf(lane, (kFirst + kSteps) * layers) -
                                  pipeline.StartOf(lane, kFirst * layers));
          const double ratio = taken / static_cast<double>(kSteps * bound);
          EXPECT_GE(ratio, 1 - 1.0 / kSteps);
          EXPECT_LE(ratio, lanes >= 2 * stages ? 1 + 1.0 / kSteps : 1.75);
        }
      }
    }
  }
}

TEST(PipelineScheduleTest, UnequalLanesAreAllServedOnStagesAndTheOldestVisitFirst) {
  Prng random(7);
  for (uint32_t stages = 2; stages <= 4; ++stages) {
    for (uint32_t lanes = 1; lanes <= 8; ++lanes) {
      SCOPED_TRACE(testing::Message() << stages << " stages, " << lanes << " lanes");
      const uint32_t layers = 7;
      std::vector<uint64_t> slices;
      std::vector<uint64_t> attentions;
      for (uint32_t lane = 0; lane < lanes; ++lane) {
        slices.push_back(1 + random.Below(9));
        attentions.push_back(1 + random.Below(9));
      }
      const std::vector<Stage> nodes = EvenStages(stages, layers);
      Pipeline pipeline(
          nodes, lanes, layers, [&](uint32_t lane) { return slices[lane]; },
          [&](uint32_t lane) { return attentions[lane]; });
      pipeline.Run([](uint32_t) { return 0; }, 6000);

      std::vector<uint64_t> next(lanes, 0);
      for (size_t node = 0; node < nodes.size(); ++node) {
        const auto& units = pipeline.ran[node];
        for (size_t i = 0; i < units.size(); ++i) {
          const uint64_t layer = units[i].unit % layers;
          EXPECT_GE(layer, nodes[node].first_layer);
          EXPECT_LT(layer, nodes[node].first_layer + nodes[node].layers);
          uint64_t passed = 0;  // Units of others that began while it was ready.
          for (size_t before = i; before-- > 0 && units[before].start >= units[i].ready;) {
            ++passed;
          }
          EXPECT_LE(passed, uint64_t{lanes - 1} * nodes[node].layers);
          next[units[i].lane] = std::max(next[units[i].lane], units[i].unit);
        }
      }
      EXPECT_GT(*std::min_element(next.begin(), next.end()), 20u * layers / lanes);
    }
  }
}

TEST(PipelineScheduleTest, BalancedLanesFollowTheScheduleWithoutConflictOrBubble) {
  for (uint32_t replicas = 1; replicas <= kReplicasMax; ++replicas) {
    SCOPED_TRACE(replicas);
    Pipeline pipeline(
        PipelineMode::kRotational, replicas, replicas + 1, 5, [=](uint32_t) { return replicas; },
        [](uint32_t) { return 1; });
    const uint64_t until = 400;
    pipeline.Run([](uint32_t lane) { return lane; }, until);
    const PipelineSchedule schedule(PipelineMode::kRotational, replicas, 5);
    for (const auto& units : pipeline.ran) {
      for (const Pipeline::Unit& unit : units) {
        EXPECT_EQ(unit.start, schedule.StartOf(unit.lane, unit.unit));
      }
      EXPECT_EQ(IdleBetween(units, replicas, until), 0u);
    }
    for (const Pipeline::Unit& unit : pipeline.pool) {
      EXPECT_EQ(unit.start, unit.ready);  // Nobody waits for the pool ...
    }
    EXPECT_EQ(IdleBetween(pipeline.pool, replicas, until), 0u);  // ... and it waits for nobody.
  }
}

// Nobody staggers the lanes at the start: the order of readiness does it.
TEST(PipelineScheduleTest, LanesThatStartTogetherFallIntoTheSchedule) {
  for (uint32_t replicas = 1; replicas <= kReplicasMax; ++replicas) {
    SCOPED_TRACE(replicas);
    Pipeline pipeline(
        PipelineMode::kRotational, replicas, replicas + 1, 5, [=](uint32_t) { return replicas; },
        [](uint32_t) { return 1; });
    const uint64_t from = 200 * replicas;
    const uint64_t until = 400 * replicas;
    pipeline.Run([](uint32_t) { return 0; }, until);
    for (const auto& units : pipeline.ran) {
      EXPECT_EQ(IdleBetween(units, from, until), 0u);
    }
    EXPECT_EQ(IdleBetween(pipeline.pool, from, until), 0u);
  }
}

TEST(PipelineScheduleTest, UnbalancedLanesAreAllServedAndKeepTheirOrder) {
  Prng random(5);
  for (const PipelineMode mode : {PipelineMode::kRotational, PipelineMode::kFixed}) {
    for (uint32_t replicas = 1; replicas <= kReplicasMax; ++replicas) {
      for (uint32_t lanes = 1; lanes <= 10; ++lanes) {
        SCOPED_TRACE(testing::Message() << replicas << " replicas, " << lanes << " lanes");
        std::vector<uint64_t> slices;
        std::vector<uint64_t> attentions;
        for (uint32_t lane = 0; lane < lanes; ++lane) {
          slices.push_back(1 + random.Below(9));
          attentions.push_back(1 + random.Below(9));
        }
        Pipeline pipeline(
            mode, replicas, lanes, 5, [&](uint32_t lane) { return slices[lane]; },
            [&](uint32_t lane) { return attentions[lane]; });
        pipeline.Run([](uint32_t) { return 0; }, 4000);

        std::vector<std::vector<Pipeline::Unit>> of_lane(lanes);
        for (const auto& units : pipeline.ran) {
          for (size_t i = 0; i < units.size(); ++i) {
            of_lane[units[i].lane].push_back(units[i]);
            EXPECT_TRUE(i == 0 || units[i - 1].end <= units[i].start);
            uint64_t passed = 0;  // Units of others that began while it was ready.
            for (size_t before = i; before-- > 0 && units[before].start >= units[i].ready;) {
              ++passed;
            }
            EXPECT_LE(passed, 2 * (lanes - 1));
          }
        }
        for (std::vector<Pipeline::Unit>& units : of_lane) {
          std::sort(units.begin(), units.end(),
                    [](const auto& a, const auto& b) { return a.start < b.start; });
          EXPECT_GT(units.size(), 20u);
          for (size_t i = 0; i < units.size(); ++i) {
            EXPECT_EQ(units[i].unit, i);
          }
        }
      }
    }
  }
}

TEST(PipelineScheduleTest, PrefillLanesStayOnTheirNodesAndTheOthersRotateWithoutThem) {
  for (uint32_t replicas = 1; replicas <= kReplicasMax; ++replicas) {
    const uint32_t lanes = replicas + 1;
    const PipelineSchedule plain(PipelineMode::kRotational, replicas, 5);
    const PipelineSchedule schedule(PipelineMode::kRotational, replicas, 5, lanes);
    for (uint64_t step = 1; step <= 4; ++step) {
      for (uint32_t slice = 0; slice <= 5; ++slice) {
        for (uint32_t lane = 0; lane < lanes; ++lane) {
          EXPECT_EQ(schedule.ReplicaOf(lane, step, slice, false),
                    plain.ReplicaOf(lane, step, slice, false));
        }
        EXPECT_EQ(schedule.ReplicaOf(lanes, step, slice, true), replicas);
        EXPECT_EQ(schedule.ReplicaOf(lanes + 1, step, slice, true), replicas + 1);
      }
    }
    EXPECT_TRUE(schedule.Runs(replicas, lanes));
    EXPECT_FALSE(schedule.Runs(0, lanes));
    EXPECT_FALSE(schedule.Runs(replicas, 0));
    EXPECT_TRUE(schedule.TakesPart(0, lanes));  // It keeps the tables of all lanes.
    EXPECT_FALSE(schedule.TakesPart(replicas + 1, lanes));
    EXPECT_FALSE(schedule.TakesPart(replicas, lanes - 1));
  }
}

// Two replicas decode, of two shards each; prompts have one of two stages and a whole one, with two
// lanes each.
TEST(PipelineScheduleTest, ApartEachReplicaKeepsItsOwnLanesAlone) {
  const PipelineSchedule whole(PipelineMode::kApart, 3, 4);
  for (uint32_t lane = 0; lane < 6; ++lane) {
    for (uint32_t node = 0; node < 3; ++node) {
      EXPECT_EQ(whole.Runs(node, lane), node == lane % 3);
      EXPECT_EQ(whole.TakesPart(node, lane), node == lane % 3);
    }
    for (uint32_t slice = 0; slice <= 4; ++slice) {
      EXPECT_EQ(whole.NodeOf(lane, /*step=*/5, slice, /*pinned=*/false), lane % 3);
    }
  }
  const std::vector<Stage> nodes = {{.replica = 0, .first_layer = 0, .layers = 1},
                                    {.replica = 0, .first_layer = 1, .layers = 3},
                                    {.replica = 1, .first_layer = 0, .layers = 4}};
  const PipelineSchedule stages(PipelineMode::kApart, nodes, 4);
  for (uint32_t node = 0; node < 3; ++node) {
    EXPECT_EQ(stages.TakesPart(node, 2), node < 2);
    EXPECT_EQ(stages.TakesPart(node, 3), node == 2);
  }
  EXPECT_EQ(stages.NodeOf(2, 5, 0, false), 0u);
  EXPECT_EQ(stages.NodeOf(2, 5, 3, false), 1u);
  EXPECT_EQ(stages.HeadNodeOf(1, 5, false), 2u);
}

TEST(PipelineScheduleTest, PrefillLanesGoThroughTheStagesOfTheirReplica) {
  constexpr uint32_t kLayers = 5;
  constexpr uint32_t kLanes = 3;
  const auto shard = [](uint32_t replica, uint32_t index) {
    return Stage{.replica = replica, .layers = kLayers, .shard = {.index = index, .count = 2}};
  };
  const std::vector<Stage> nodes = {shard(0, 0),
                                    shard(0, 1),
                                    shard(1, 0),
                                    shard(1, 1),
                                    {.replica = 2, .layers = 2},
                                    {.replica = 2, .first_layer = 2, .layers = 3},
                                    {.replica = 3, .layers = kLayers}};
  const PipelineSchedule::Prefill prefill = {.lane = kLanes, .lanes = {.replicas = 2, .each = 2}};
  for (uint32_t index = 0; index < 2; ++index) {
    const PipelineSchedule schedule(PipelineMode::kRotational, nodes, kLayers, index, prefill);
    const PipelineSchedule alone(PipelineMode::kRotational, absl::MakeConstSpan(nodes).first(4),
                                 kLayers, index);
    EXPECT_EQ(schedule.replicas(), 2u);
    for (uint32_t slice = 0; slice <= kLayers; ++slice) {
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        EXPECT_EQ(schedule.NodeOf(lane, 7, slice, false), alone.NodeOf(lane, 7, slice, false));
      }
      for (const uint32_t lane : {3u, 4u}) {
        EXPECT_EQ(schedule.NodeOf(lane, 7, slice, true), slice < 2 ? 4u : 5u);
        EXPECT_EQ(schedule.HeadNodeOf(lane, 7, true), 5u);
      }
      for (const uint32_t lane : {5u, 6u}) {
        EXPECT_EQ(schedule.NodeOf(lane, 7, slice, true), 6u);
      }
    }
    for (uint32_t lane = 0; lane < 7; ++lane) {
      EXPECT_EQ(schedule.IsPrefillLane(lane), lane >= kLanes);
      for (uint32_t node = 0; node < nodes.size(); ++node) {
        const bool own = node == 6 ? lane >= 5 : node >= 4 ? lane == 3 || lane == 4 : lane < kLanes;
        EXPECT_EQ(schedule.Runs(node, lane), own) << node << " " << lane;
        EXPECT_EQ(schedule.TakesPart(node, lane), own || node < 4) << node << " " << lane;
      }
    }
  }
}

}  // namespace
}  // namespace lamina::plan
