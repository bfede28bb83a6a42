// SPDX-License-Identifier: Apache-2.0
//
// What plans move to a spill tier and back, while the data thread is away.

#include "memory_node/spill_source.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "common/kv_form.h"
#include "common/thread_beat.h"
#include "kernels/k_tiles.h"
#include "memory_node/spill_file.h"
#include "memory_node/spill_form.h"
#include "memory_node/spill_pass.h"
#include "memory_node/spill_tier.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "plan/slot_tables.h"
#include "plan/spill_blocks.h"
#include "plan/step_plan.h"
#include "tests/support/memory_spill_disk.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

using plan::SlotMove;
using test_support::MemorySpillDisk;

constexpr uint32_t kTokens = 200;  // Three blocks and a part of one.

// Any thread adds to them.
class Reports {
 public:
  void Add(const plan::SpillReport& report) {
    const std::lock_guard lock(mutex_);
    reports_.push_back(report);
    came_.notify_all();
  }
  // Waits for it; nothing if none comes.
  std::optional<plan::SpillReport> Next() {
    std::unique_lock lock(mutex_);
    came_.wait_for(lock, std::chrono::nanoseconds(UnitCluster::kLong),
                   [this] { return !reports_.empty(); });
    if (reports_.empty()) {
      return std::nullopt;
    }
    const plan::SpillReport report = reports_.front();
    reports_.pop_front();
    return report;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<plan::SpillReport> reports_;
};

class SpillSourceTest : public ::testing::Test {
 protected:
  explicit SpillSourceTest(const UnitClusterOptions& options = {}) : cluster_(options) {}

  void Make(MemorySpillDisk::Faults faults = {}) {
    auto file = SpillFile::Create(std::make_unique<MemorySpillDisk>(std::move(faults)),
                                  uint64_t{1} << 20, "tier");
    ASSERT_TRUE(file.ok()) << file.status();
    tier_ = std::make_unique<SpillTier>(*std::move(file), SpillSpeed{});
    source_ = std::make_unique<SpillSource>(
        epoch(), meter_, *tier_, [this](const plan::SpillReport& report) { reports_.Add(report); });
    meter_.Start();
    ASSERT_TRUE(source_->Open().ok());
  }
  void TearDown() override {
    if (source_ != nullptr) {
      source_->Close();
    }
  }

  const NodeEpoch& epoch() { return cluster_.worker().epoch(); }

  // K and V of all layers and heads in these slots.
  std::vector<uint16_t> KvIn(const std::vector<Extent>& slots) {
    std::vector<uint16_t> all;
    for (uint32_t layer = 0; layer < epoch().layers.size(); ++layer) {
      const size_t plane = kernels::WholeTiles(kTokens) * epoch().layers[layer].head_dim;
      for (uint32_t head = 0; head < epoch().layers[layer].kv_heads; ++head) {
        std::vector<BFloat16> k(plane), v(plane);
        EXPECT_TRUE(
            epoch().device.reads()->Load(layer, head, slots, 0, kTokens, k.data(), v.data()).ok());
        for (const std::vector<BFloat16>& one : {k, v}) {
          for (const BFloat16 element : one) {
            all.push_back(element.bits);
          }
        }
      }
    }
    return all;
  }
  // Other values in each element.
  void Fill(const std::vector<Extent>& slots) {
    uint16_t next = 1;
    for (uint32_t layer = 0; layer < epoch().layers.size(); ++layer) {
      const size_t plane = kernels::WholeTiles(kTokens) * epoch().layers[layer].head_dim;
      for (uint32_t head = 0; head < epoch().layers[layer].kv_heads; ++head) {
        std::vector<BFloat16> k(plane), v(plane);
        for (size_t i = 0; i < plane; ++i) {
          k[i] = {next++};
          v[i] = {next++};
        }
        ASSERT_TRUE(epoch()
                        .device.writes()
                        ->Unload(layer, head, k.data(), v.data(), slots, 0, kTokens)
                        .ok());
      }
    }
  }
  void Take(SlotMove::Kind kind, uint64_t spill, std::vector<Extent> slots, Extent tail = {}) {
    const SlotMove move{.kind = kind, .spill = spill, .slots = std::move(slots), .tail = tail};
    ASSERT_TRUE(source_->Take({move}).ok());
  }
  void ExpectReport(uint64_t spill, bool ok) {
    const std::optional<plan::SpillReport> report = reports_.Next();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->epoch, UnitCluster::kEpoch);
    EXPECT_EQ(report->spill, spill);
    EXPECT_EQ(report->ok, ok);
  }
  // The data thread comes back when there is work for it.
  void LookWhenDue() {
    const Nanos now = RealClock().Now();
    while (source_->LookAt(now) > now) {
      std::this_thread::yield();
    }
    ASSERT_TRUE(source_->Look().ok());
  }

  UnitCluster cluster_;
  UnitMeter meter_{cluster_.worker().epoch()};
  Reports reports_;
  std::unique_ptr<SpillTier> tier_;
  std::unique_ptr<SpillSource> source_;
};

TEST_F(SpillSourceTest, MovesBeginWithTheirPlanAndAreReportedWithoutTheDataThread) {
  Make();
  const std::vector<Extent> from = {{.first_slot = 16, .tokens = kTokens}};
  const std::vector<Extent> to = {{.first_slot = 1024, .tokens = 150},
                                  {.first_slot = 2051, .tokens = kTokens - 150}};
  Fill(from);
  const std::vector<uint16_t> kv = KvIn(from);

  Take(SlotMove::Kind::kOut, 5, from);
  ExpectReport(5, true);
  Take(SlotMove::Kind::kIn, 5, to);
  ExpectReport(5, true);

  EXPECT_EQ(KvIn(to), kv);
  LookWhenDue();
  const telemetry::SpillCount count = tier_->Count();
  EXPECT_EQ(count.sequences_out, 1u);
  EXPECT_EQ(count.sequences_in, 1u);
  EXPECT_GT(count.used_bytes, 0u);
  Take(SlotMove::Kind::kDrop, 5, {});
  EXPECT_EQ(tier_->Count().used_bytes, 0u);
}

// The disk is at the first one's only block.
TEST_F(SpillSourceTest, NoMoveWaitsForTheOneBefore) {
  std::atomic<bool> go = false;
  Make([&go](bool, uint64_t number) {
    if (number == 0) {
      go.wait(false);
    }
    return MemorySpillDisk::Fault{};
  });

  Take(SlotMove::Kind::kOut, 1, {{.first_slot = 0, .tokens = 64}});
  Take(SlotMove::Kind::kOut, 2, {{.first_slot = 64, .tokens = 64}});
  // One of the two is held up, whichever comes to the disk first.
  const std::optional<plan::SpillReport> first = reports_.Next();
  go = true;
  go.notify_all();

  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(first->ok);
  ExpectReport(3 - first->spill, true);
}

TEST_F(SpillSourceTest, WhatCouldNotBeWrittenIsReportedAndLeavesNoBlocks) {
  Make([](bool write, uint64_t number) {
    return MemorySpillDisk::Fault{.error = write && number == 1 ? EIO : 0};
  });

  Take(SlotMove::Kind::kOut, 1, {{.first_slot = 0, .tokens = kTokens}});
  LookWhenDue();
  ExpectReport(1, false);

  EXPECT_EQ(tier_->file().blocks_free(), tier_->file().blocks());
  EXPECT_EQ(tier_->Count().failures, 1u);
  EXPECT_EQ(tier_->Count().sequences_out, 0u);
}

TEST_F(SpillSourceTest, WhatHasOtherBytesIsReportedAndStays) {
  Make([](bool write, uint64_t number) {
    return MemorySpillDisk::Fault{.flips = !write && number == 2};
  });
  const std::vector<Extent> slots = {{.first_slot = 0, .tokens = kTokens}};
  Fill(slots);
  const std::vector<uint16_t> kv = KvIn(slots);
  Take(SlotMove::Kind::kOut, 1, slots);
  ExpectReport(1, true);

  const std::vector<Extent> to = {{.first_slot = 512, .tokens = kTokens}};
  Take(SlotMove::Kind::kIn, 1, to);
  LookWhenDue();
  ExpectReport(1, false);

  EXPECT_EQ(tier_->Count().failures, 1u);
  Take(SlotMove::Kind::kIn, 1, to);
  ExpectReport(1, true);
  EXPECT_EQ(KvIn(to), kv);
}

// A sequence that gave up its slots last comes back first. Blocks of the cache do not come by
// themselves.
TEST_F(SpillSourceTest, FirstBlocksOfWhatWentOutLastAreReadAhead) {
  std::atomic<uint32_t> reads = 0;
  Make([&reads](bool write, uint64_t) {
    if (!write) {
      ++reads;
      reads.notify_all();
    }
    return MemorySpillDisk::Fault{};
  });
  const auto await = [&](uint32_t count) {
    for (uint32_t now = reads; now < count; now = reads) {
      reads.wait(now);
    }
  };
  const auto taken_note_of = [&](uint64_t spill) {
    ExpectReport(spill, true);
    LookWhenDue();
  };
  const std::vector<Extent> first = {{.first_slot = 0, .tokens = kTokens}};
  const std::vector<Extent> second = {{.first_slot = 512, .tokens = kTokens}};
  const std::vector<Extent> to = {{.first_slot = 1024, .tokens = kTokens}};
  Fill(first);
  Fill(second);
  const std::vector<uint16_t> kv = KvIn(second);
  const uint32_t blocks = plan::SpillBlocksOf(kTokens);

  Take(SlotMove::Kind::kOut, 1, first);
  taken_note_of(1);
  await(blocks);
  Take(SlotMove::Kind::kOut, 2, second);
  taken_note_of(2);
  await(2 * blocks);
  const SlotMove copy{.kind = SlotMove::Kind::kOut,
                      .spill = 3,
                      .of_blocks = true,
                      .slots = {{.first_slot = 2048, .tokens = 64}}};
  ASSERT_TRUE(source_->Take({copy}).ok());
  taken_note_of(3);

  Take(SlotMove::Kind::kIn, 2, to);
  taken_note_of(2);
  EXPECT_EQ(KvIn(to), kv);
  const telemetry::SpillReads parts = tier_->Count().reads;
  EXPECT_GE(parts.ahead_bytes, (blocks - 1) * tier_->file().block_bytes());
  EXPECT_LE(parts.queued_seconds + parts.reading_seconds + parts.behind_seconds,
            tier_->Count().seconds_in + 1e-9);
  await(3 * blocks);  // Those of the first one again.
  Take(SlotMove::Kind::kDrop, 2, {});
  Take(SlotMove::Kind::kIn, 1, to);
  taken_note_of(1);
  EXPECT_EQ(reads.load(), 3 * blocks);
}

// A disk that retries a block for long is no data thread that hangs.
TEST_F(SpillSourceTest, TheEndOfAnEpochWaitsForTheDiskWithABeat) {
  std::atomic<bool> at_it = false;
  std::atomic<bool> go = false;
  Make([&](bool, uint64_t) {
    at_it = true;
    at_it.notify_all();
    go.wait(false);
    return MemorySpillDisk::Fault{};
  });
  Take(SlotMove::Kind::kOut, 1, {{.first_slot = 0, .tokens = 64}});
  at_it.wait(false);
  const ThreadBeat& beat = epoch().counters.beat;
  const uint64_t before = beat.beats();

  std::atomic<bool> closed = false;
  std::thread closing([&] {
    source_->Close();
    closed = true;
  });
  const Nanos end = RealClock().Now() + UnitCluster::kLong;
  while (beat.beats() < before + 2 && RealClock().Now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GE(beat.beats(), before + 2);
  EXPECT_FALSE(closed.load());
  go = true;
  go.notify_all();
  closing.join();
}

class Int8SpillSourceTest : public SpillSourceTest {
 protected:
  Int8SpillSourceTest() : SpillSourceTest({.int8_tails = 4}) {}

  // The bytes of closed blocks.
  std::vector<std::byte> ClosedIn(const std::vector<Extent>& slots, uint32_t blocks) {
    const size_t block_bytes = form_->block_bytes();
    std::vector<std::byte> all(block_bytes * blocks);
    for (uint32_t block = 0; block < blocks; ++block) {
      const auto part = plan::SlotTables::Part(slots, blocks * kInt8BlockTokens,
                                               block * kInt8BlockTokens, kInt8BlockTokens);
      EXPECT_TRUE(part.ok()) << part.status();
      SpillPass pass(absl::MakeSpan(all).subspan(block_bytes * block, block_bytes));
      EXPECT_TRUE(form_->Load(*part, 0, kInt8BlockTokens, pass).ok());
    }
    return all;
  }
  void FillClosed(Extent block, uint8_t value) {
    std::vector<std::byte> bytes(form_->block_bytes(), std::byte{value});
    SpillPass pass(absl::MakeSpan(bytes));
    ASSERT_TRUE(form_->Unload(pass, {&block, 1}, 0, kInt8BlockTokens).ok());
  }

  // Calls `copy` with (layer, head, K plane, V plane) of a tail's 64 slots.
  template <typename Copy>
  void ForEachTailPlane(const Copy& copy) {
    for (uint32_t layer = 0; layer < epoch().layers.size(); ++layer) {
      const size_t plane = size_t{kInt8BlockTokens} * epoch().layers[layer].head_dim;
      for (uint32_t head = 0; head < epoch().layers[layer].kv_heads; ++head) {
        std::vector<BFloat16> k(plane);
        std::vector<BFloat16> v(plane);
        copy(layer, head, k, v);
      }
    }
  }
  // K and V of the first tokens of a tail.
  std::vector<uint16_t> TailIn(uint32_t tail, uint32_t tokens) {
    const Extent slots{.first_slot = tail * kInt8BlockTokens, .tokens = kInt8BlockTokens};
    std::vector<uint16_t> all;
    ForEachTailPlane([&](uint32_t layer, uint32_t head, auto& k, auto& v) {
      EXPECT_TRUE(epoch()
                      .device.reads()
                      ->Load(layer, head, {&slots, 1}, 0, tokens, k.data(), v.data())
                      .ok());
      for (const std::vector<BFloat16>& one : {k, v}) {
        for (const BFloat16 element : one) {
          all.push_back(element.bits);
        }
      }
    });
    return all;
  }
  void FillTail(uint32_t tail, uint16_t first) {
    const Extent slots{.first_slot = tail * kInt8BlockTokens, .tokens = kInt8BlockTokens};
    ForEachTailPlane([&](uint32_t layer, uint32_t head, auto& k, auto& v) {
      for (size_t i = 0; i < k.size(); ++i) {
        k[i] = {first++};
        v[i] = {first++};
      }
      ASSERT_TRUE(epoch()
                      .device.writes()
                      ->Unload(layer, head, k.data(), v.data(), {&slots, 1}, 0, kInt8BlockTokens)
                      .ok());
    });
  }

  const std::unique_ptr<SpillForm> form_ = SpillFormOf(epoch().layers, epoch().device);
};

// Tails are others' meanwhile.
TEST_F(Int8SpillSourceTest, OpenBlocksGoAndComeWithClosedOnes) {
  Make();
  std::vector<uint64_t> ended;
  source_->SetEnded([&ended](uint64_t spill) { ended.push_back(spill); });
  const std::vector<Extent> from = {{.first_slot = 16, .tokens = 128}};
  const std::vector<Extent> to = {{.first_slot = 1024, .tokens = 100},
                                  {.first_slot = 2051, .tokens = 28}};
  uint64_t spill = 0;
  for (const uint32_t open : {0u, 1u, 32u, 33u, 63u}) {
    ++spill;
    FillClosed({.first_slot = 16, .tokens = 64}, static_cast<uint8_t>(10 + spill));
    FillClosed({.first_slot = 80, .tokens = 64}, static_cast<uint8_t>(20 + spill));
    FillTail(1, static_cast<uint16_t>(100 * spill));
    const std::vector<std::byte> closed = ClosedIn(from, 2);
    const std::vector<uint16_t> tail = TailIn(1, open);
    const std::vector<uint16_t> others = TailIn(2, kInt8BlockTokens);

    Take(SlotMove::Kind::kOut, spill, from, {.first_slot = 64, .tokens = open});
    ExpectReport(spill, true);
    EXPECT_EQ(tier_->file().blocks() - tier_->file().blocks_free(), 2 + (open + 31) / 32);
    FillTail(1, 7);
    FillTail(3, 9);
    FillClosed({.first_slot = 16, .tokens = 64}, 1);
    Take(SlotMove::Kind::kIn, spill, to, {.first_slot = 192, .tokens = open});
    ExpectReport(spill, true);
    LookWhenDue();

    EXPECT_EQ(ClosedIn(to, 2), closed) << open;
    EXPECT_EQ(TailIn(3, open), tail) << open;
    EXPECT_EQ(TailIn(2, kInt8BlockTokens), others) << open;
    EXPECT_EQ(ended, (std::vector<uint64_t>{spill, spill}));
    ended.clear();
    Take(SlotMove::Kind::kDrop, spill, {});
    EXPECT_EQ(tier_->Count().used_bytes, 0u);
  }
}

// A sequence of one token.
TEST_F(Int8SpillSourceTest, AnOpenBlockOfOtherBytesIsReported) {
  Make([](bool write, uint64_t number) {
    return MemorySpillDisk::Fault{.flips = !write && number == 0};
  });
  std::vector<uint64_t> ended;
  source_->SetEnded([&ended](uint64_t spill) { ended.push_back(spill); });
  FillTail(0, 5);
  const std::vector<uint16_t> tail = TailIn(0, 1);
  Take(SlotMove::Kind::kOut, 1, {}, {.first_slot = 0, .tokens = 1});
  ExpectReport(1, true);

  const Extent to = {.first_slot = 64, .tokens = 1};
  Take(SlotMove::Kind::kIn, 1, {}, to);
  LookWhenDue();
  ExpectReport(1, false);
  EXPECT_EQ(ended, (std::vector<uint64_t>{1, 1}));
  EXPECT_EQ(tier_->Count().failures, 1u);

  Take(SlotMove::Kind::kIn, 1, {}, to);
  ExpectReport(1, true);
  EXPECT_EQ(TailIn(1, 1), tail);
}

TEST_F(Int8SpillSourceTest, WhatThereIsNoRoomForEnds) {
  Make();
  std::vector<uint64_t> ended;
  source_->SetEnded([&ended](uint64_t spill) { ended.push_back(spill); });
  ASSERT_TRUE(tier_->file().Take(tier_->file().blocks_free() - 1).ok());
  Take(SlotMove::Kind::kOut, 1, {}, {.first_slot = 0, .tokens = 33});
  ExpectReport(1, false);
  EXPECT_EQ(ended, std::vector<uint64_t>{1});
  Take(SlotMove::Kind::kOut, 2, {}, {.first_slot = 0, .tokens = 32});
  ExpectReport(2, true);
}

// The plan of a join follows from the report of a move that had the only tail.
TEST(StepFeedTest, MovesThatAreOverHaveEndedBeforeTheNextPlan) {
  UnitCluster cluster({.int8_tails = 1});
  StepFeed& feed = cluster.worker().feed();
  bool over = false;
  feed.SetMover([&](const std::vector<SlotMove>& moves) {
    if (over) {
      feed.EndMove(3);
    }
    return moves.empty() || moves[0].tail == Extent{.first_slot = 0, .tokens = 1}
               ? absl::OkStatus()
               : absl::InternalError("another tail");
  });
  plan::StepPlan next{.epoch = UnitCluster::kEpoch, .step = 1};
  next.joins = {{.id = 1, .tokens = std::vector<TokenId>(66, 1)}};
  next.allocations = {{.sequence = 1, .extent = {.first_slot = 128, .tokens = 65}}};
  feed.PushPlan(next);
  next = {.epoch = UnitCluster::kEpoch, .step = 2};
  next.spills_out = {{.spill = 3, .sequence = 1, .tokens = 65}};
  next.leaves = {{.id = 1}};
  feed.PushPlan(next);
  ASSERT_TRUE(feed.TakePlans().ok());

  over = true;
  next = {.epoch = UnitCluster::kEpoch, .step = 3};
  next.joins = {{.id = 2, .tokens = std::vector<TokenId>(66, 1)}};
  feed.PushPlan(next);
  const absl::Status taken = feed.TakePlans();
  EXPECT_TRUE(taken.ok()) << taken;
}

// A step is under way when the plan of the next one comes.
TEST(StepFeedTest, WhatIsReadBackDoesNotWaitForItsStep) {
  UnitCluster cluster(UnitClusterOptions{});
  StepFeed& feed = cluster.worker().feed();
  std::vector<SlotMove> moves;
  feed.SetMover([&moves](const std::vector<SlotMove>& of_plan) {
    moves.insert(moves.end(), of_plan.begin(), of_plan.end());
    return absl::OkStatus();
  });
  feed.PushPlan(cluster.MakeStep({.step = 1, .prompts = {{0, 40}}}).plan);
  ASSERT_TRUE(feed.TakePlans().ok());
  ASSERT_EQ(feed.lanes()[0].step, 1u);

  constexpr plan::SequenceId kBack = 9999;
  plan::StepPlan next{.epoch = UnitCluster::kEpoch, .step = 2};
  next.joins = {{.id = kBack, .tokens = std::vector<TokenId>(kTokens, 1)}};
  next.allocations = {{.sequence = kBack, .extent = {.first_slot = 4096, .tokens = kTokens}}};
  next.spills_in = {{.spill = 3, .sequence = kBack, .tokens = kTokens - 1}};
  feed.PushPlan(next);
  ASSERT_TRUE(feed.TakePlans().ok());
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].kind, SlotMove::Kind::kIn);
  EXPECT_EQ(moves[0].spill, 3u);
  EXPECT_EQ(moves[0].slots, (std::vector<Extent>{{.first_slot = 4096, .tokens = kTokens - 1}}));
  EXPECT_EQ(feed.tables().Find(kBack), nullptr) << "its step has begun";

  ASSERT_TRUE(feed.EndStep(feed.lanes()[0]).ok());
  EXPECT_NE(feed.tables().Find(kBack), nullptr);
  EXPECT_EQ(moves.size(), 1u) << "it is read twice";
}

}  // namespace
}  // namespace lamina::memory_node
