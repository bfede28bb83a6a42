// SPDX-License-Identifier: Apache-2.0
//
// What compute nodes tell each other, over networks of many seeds: contexts and tokens arrive with
// the bits that left, late and early ones are told apart, and no wrong window is taken.

#include "compute_node/replica_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "control/blame.h"
#include "tests/unit/compute_node/exchange_nodes.h"
#include "transport/put_all.h"

namespace lamina::compute_node {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kVocabulary = 96;

class ReplicaExchangeTest : public ::testing::Test {
 protected:
  ReplicaExchangeTest() { EXPECT_TRUE(executor().device().Begin().ok()); }

  SliceExecutor& executor() { return program_.executor(); }
  uint32_t last_slice() { return executor().slice_count() - 1; }

  plan::EpochConfig Replicas(std::vector<std::string> names) {
    return ExchangeNodes::ConfigFor(executor(), std::move(names));
  }

  void Make(const plan::EpochConfig& config, uint64_t seed = 1) {
    const absl::Status checked = plan::CheckEpoch(config);
    ASSERT_TRUE(checked.ok()) << checked;
    plan::WindowShape shape = plan::WindowShapeOf(config);
    shape.context_row_bytes = executor().program().ContextRowBytesMax();
    exchanges_.clear();
    nodes_ = std::make_unique<ExchangeNodes>(
        transport::FakeNetworkOptions{.seed = seed, .delay_steps_max = 7});
    for (uint32_t node = 0; node < config.compute_nodes.size(); ++node) {
      ExchangeNode& added = nodes_->Add(config, shape, executor());
      exchanges_.push_back(
          std::make_unique<ReplicaExchange>(added.context, added.sequences, kVocabulary));
      ASSERT_TRUE(exchanges_.back()->RegisterSources().ok());
    }
    nodes_->Connect();
  }

  // A lane of the node with so many rows, before `slice`.
  Lane LaneBefore(uint32_t node, uint32_t index, uint32_t slice, uint32_t rows) {
    Lane lane = (*nodes_)[node].MakeLane(index);
    lane.slice = slice;
    lane.decode_rows = rows;
    lane.rows_from_elsewhere = rows;
    lane.token_ids.assign(rows, 1);
    lane.positions.assign(rows, 5);
    return lane;
  }

  // All that crosses the attention behind `slice`; `fill` draws it anew.
  std::vector<std::byte> ContextOf(Lane& lane, uint32_t slice, bool fill) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < executor().context_count(slice); ++i) {
      const auto rows = executor().ContextRows(slice, i, lane.positions.size(), lane.buffers);
      if (fill) {
        std::generate(rows.begin(), rows.end(), [this] { return std::byte(random_()); });
      }
      bytes.insert(bytes.end(), rows.begin(), rows.end());
    }
    return bytes;
  }

  // Progress of the network until the node takes what it waits for, at most so many steps.
  static absl::StatusOr<bool> Await(ExchangeNode& node,
                                    const std::function<absl::StatusOr<bool>()>& take) {
    for (int step = 0; step < 1000; ++step) {
      absl::StatusOr<bool> taken = take();
      if (!taken.ok() || *taken) {
        return taken;
      }
      node.transport->Progress();
    }
    return false;
  }

  absl::StatusOr<bool> TakeContext(uint32_t node, Lane& lane) {
    return Await((*nodes_)[node], [&] { return exchanges_[node]->TakeContext(lane); });
  }
  absl::StatusOr<bool> TakeTokens(uint32_t node, Lane& lane) {
    return Await((*nodes_)[node], [&] { return exchanges_[node]->TakeTokens(lane); });
  }

  // Sequences 1, 2, ... with three tokens each.
  void Join(uint32_t node, uint32_t sequences) {
    plan::StepPlan plan;
    for (plan::SequenceId id = 1; id <= sequences; ++id) {
      plan.joins.push_back({.id = id, .tokens = {3, 5, 8}, .prompt_tokens = 3, .tokens_max = 64});
    }
    ASSERT_TRUE((*nodes_)[node].sequences.Apply(plan, kVocabulary).ok());
  }

  // The node's view of a step whose last slice has run, on it or elsewhere.
  Lane LaneAtTail(uint32_t node, uint32_t index, uint64_t step) {
    Lane lane = LaneBefore(node, index, last_slice(), 1);
    lane.plan.step = step;
    return lane;
  }

  std::vector<TokenId> TokensOf(uint32_t node, plan::SequenceId id) {
    const Sequence* const sequence = (*nodes_)[node].sequences.Find(id);
    return sequence == nullptr ? std::vector<TokenId>() : sequence->tokens;
  }

  // A header with entries, as a token window has them.
  static std::vector<std::byte> TokenWindow(const plan::WindowHeader& header,
                                            const std::vector<plan::TokenEntry>& entries) {
    const absl::Span<const std::byte> head = transport::AsBytes(&header, 1);
    const absl::Span<const std::byte> tail = transport::AsBytes(entries.data(), entries.size());
    std::vector<std::byte> window(head.begin(), head.end());
    window.insert(window.end(), tail.begin(), tail.end());
    return window;
  }

  Program program_{Spec("llama"), DType::kBF16};
  std::mt19937 random_{5};
  std::unique_ptr<ExchangeNodes> nodes_;
  std::vector<std::unique_ptr<ReplicaExchange>> exchanges_;
};

// --- Contexts ---

TEST_F(ReplicaExchangeTest, AContextIsAwaitedWhereAnotherNodeRanTheSliceBefore) {
  plan::EpochConfig config = Replicas({"c0", "c1"});
  Make(config);
  EXPECT_TRUE(exchanges_[1]->AwaitContext(LaneBefore(1, 0, 1, 1)));
  EXPECT_TRUE(exchanges_[0]->AwaitContext(LaneBefore(0, 0, 2, 1)));

  config.mode = PipelineMode::kFixed;
  Make(config);
  EXPECT_FALSE(exchanges_[0]->AwaitContext(LaneBefore(0, 0, 1, 1)));
  EXPECT_FALSE(exchanges_[1]->AwaitContext(LaneBefore(1, 1, 1, 1)));
}

TEST_F(ReplicaExchangeTest, AContextArrivesWithItsBitsSliceAfterSlice) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Make(Replicas({"c0", "c1"}), seed);
    std::vector<Lane> lanes;
    lanes.push_back(LaneBefore(0, 0, 0, 3));
    lanes.push_back(LaneBefore(1, 0, 0, 3));
    // Rotating, slice k is run by node k mod 2.
    for (uint32_t slice = 0; slice < last_slice(); ++slice) {
      const uint32_t from = slice % 2;
      const uint32_t to = 1 - from;
      lanes[from].slice = slice;
      lanes[to].slice = slice + 1;
      const std::vector<std::byte> sent = ContextOf(lanes[from], slice, /*fill=*/true);
      ASSERT_FALSE(sent.empty());

      ASSERT_TRUE(exchanges_[from]->SendContext(lanes[from]).ok());
      const absl::StatusOr<bool> taken = TakeContext(to, lanes[to]);

      ASSERT_TRUE(taken.ok()) << taken.status();
      EXPECT_TRUE(*taken);
      EXPECT_EQ(ContextOf(lanes[to], slice, /*fill=*/false), sent) << "slice " << slice;
    }
  }
}

TEST_F(ReplicaExchangeTest, LanesDoNotMixTheirContexts) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    plan::EpochConfig config = Replicas({"c0", "c1", "c2"});
    config.lanes = 3;
    Make(config, seed);
    // Slice 0 of lane 0 is node 0's, and slice 0 of lane 1 node 1's; both go on at the next one.
    Lane first = LaneBefore(0, 0, 0, 2);
    Lane second = LaneBefore(1, 1, 0, 4);
    const std::vector<std::byte> of_first = ContextOf(first, 0, /*fill=*/true);
    const std::vector<std::byte> of_second = ContextOf(second, 0, /*fill=*/true);
    ASSERT_TRUE(exchanges_[0]->SendContext(first).ok());
    ASSERT_TRUE(exchanges_[1]->SendContext(second).ok());

    Lane at_one = LaneBefore(1, 0, 1, 2);
    Lane at_two = LaneBefore(2, 1, 1, 4);
    EXPECT_TRUE(TakeContext(2, at_two).value_or(false));
    EXPECT_TRUE(TakeContext(1, at_one).value_or(false));

    EXPECT_EQ(ContextOf(at_one, 0, /*fill=*/false), of_first);
    EXPECT_EQ(ContextOf(at_two, 0, /*fill=*/false), of_second);
  }
}

TEST_F(ReplicaExchangeTest, AContextThatHasNotComeIsNotTaken) {
  Make(Replicas({"c0", "c1"}));
  Lane lane = LaneBefore(1, 0, 1, 2);
  const std::vector<std::byte> before = ContextOf(lane, 0, /*fill=*/true);

  const absl::StatusOr<bool> taken = exchanges_[1]->TakeContext(lane);

  ASSERT_TRUE(taken.ok());
  EXPECT_FALSE(*taken);
  EXPECT_EQ(ContextOf(lane, 0, /*fill=*/false), before);
  const AwaitedSignal signal = exchanges_[1]->ContextSignal(lane);
  EXPECT_EQ(signal.peer, ComputePeer(0));
  EXPECT_EQ(signal.word, (*nodes_)[1].context.layout.context_word(0, 0));
  EXPECT_EQ(signal.value, (*nodes_)[1].context.layout.SignalValue(1, 0));
}

TEST_F(ReplicaExchangeTest, TheContextOfAnEarlierSliceIsNotTakenForTheNext) {
  Make(Replicas({"c0", "c1"}));
  Lane from = LaneBefore(0, 0, 0, 2);
  ContextOf(from, 0, /*fill=*/true);
  ASSERT_TRUE(exchanges_[0]->SendContext(from).ok());
  nodes_->Settle();
  Lane lane = LaneBefore(1, 0, 3, 2);  // Behind slice 2, which node 0 runs too.

  const absl::StatusOr<bool> taken = exchanges_[1]->TakeContext(lane);

  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_FALSE(*taken);
}

TEST_F(ReplicaExchangeTest, BytesAreCountedAtBothEnds) {
  Make(Replicas({"c0", "c1"}));
  Lane from = LaneBefore(0, 0, 0, 2);
  Lane to = LaneBefore(1, 0, 1, 2);
  const size_t bytes = sizeof(plan::WindowHeader) + ContextOf(from, 0, /*fill=*/true).size();

  ASSERT_TRUE(exchanges_[0]->SendContext(from).ok());
  ASSERT_TRUE(TakeContext(1, to).value_or(false));

  EXPECT_EQ((*nodes_)[0].counters.bytes_sent.load(), bytes);
  EXPECT_EQ((*nodes_)[0].LinkTo("c1").bytes, bytes);
  EXPECT_EQ((*nodes_)[1].counters.bytes_received.load(), bytes);
}

// Two stages: a step with chunks goes on too, whose outputs are made where the slice before ran.
TEST_F(ReplicaExchangeTest, OutputsOfChunksGoWithTheContextOfAStage) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    plan::EpochConfig config = Replicas({"c0", "c1"});
    config.stages = {{.first_layer = 0, .layers = 1}, {.first_layer = 1, .layers = 2}};
    Make(config, seed);
    Lane from = LaneBefore(0, 0, 0, 5);
    Lane to = LaneBefore(1, 0, 1, 5);
    for (Lane* const lane : {&from, &to}) {
      lane->pinned = true;
      lane->decode_rows = 2;
      lane->rows_from_elsewhere = 2;
    }
    const std::vector<std::byte> sent = ContextOf(from, 0, /*fill=*/true);
    const auto out = executor().AttentionRows(0, 5, from.buffers);
    const auto taken_out = executor().AttentionRows(0, 5, to.buffers);
    for (size_t row = 0; row < 5; ++row) {
      std::generate_n(out.row(row), out.cols, [this] { return ToBFloat16(float(random_() % 97)); });
      std::fill_n(taken_out.row(row), out.cols, ToBFloat16(-1.0f));
    }

    ASSERT_TRUE(exchanges_[0]->SendContext(from).ok());
    const absl::StatusOr<bool> taken = TakeContext(1, to);

    ASSERT_TRUE(taken.ok()) << taken.status();
    ASSERT_TRUE(*taken);
    EXPECT_EQ(ContextOf(to, 0, /*fill=*/false), sent);
    const size_t row_bytes = out.cols * sizeof(BFloat16);
    for (size_t row = 2; row < 5; ++row) {
      EXPECT_EQ(std::memcmp(taken_out.row(row), out.row(row), row_bytes), 0) << "row " << row;
    }
    // Those of decode rows come from memory nodes, and perhaps came before.
    EXPECT_EQ(taken_out.row(1)[0].bits, ToBFloat16(-1.0f).bits);
  }
}

class WrongContextTest : public ReplicaExchangeTest,
                         public ::testing::WithParamInterface<WrongHeader> {};

TEST_P(WrongContextTest, IsRefused) {
  Make(Replicas({"c0", "c1"}));
  Lane lane = LaneBefore(1, 0, 1, 2);
  lane.plan.step = 3;
  lane.pinned = false;
  // Step 3 of lane 0 begins behind two steps of three attentions each.
  const uint32_t sender = (*nodes_)[1].context.NodeOf(lane, 0);
  ASSERT_EQ(sender, 0u);
  const std::vector<std::byte> before = ContextOf(lane, 0, /*fill=*/true);
  plan::WindowHeader header = (*nodes_)[1].context.HeaderOf(lane, 0, 2, sender);
  GetParam().change(header);
  const plan::WindowLayout& layout = (*nodes_)[1].context.layout;
  const std::vector<std::byte> window = TokenWindow(header, {});
  nodes_->PutAs((*nodes_)[0], 1, layout.ContextWindow(0, 0), window,
                {.word = layout.context_word(0, 0), .value = layout.SignalValue(3, 0)});

  const absl::StatusOr<bool> taken = exchanges_[1]->TakeContext(lane);

  EXPECT_EQ(taken.status().code(), GetParam().code) << taken.status();
  EXPECT_THAT(std::string(taken.status().message()), ::testing::HasSubstr(GetParam().says));
  EXPECT_EQ(control::BlamedIn(taken.status()), "c0");
  EXPECT_EQ((*nodes_)[1].Refused(GetParam().reason), 1u);
  EXPECT_EQ(ContextOf(lane, 0, /*fill=*/false), before) << "nothing of it is taken";
}

std::vector<WrongHeader> WrongHeaders() {
  using Header = plan::WindowHeader;
  return {
      {"Magic", "damaged", "magic 0", [](Header& h) { h.magic = 0; }},
      {"OlderEpoch", "stale", "epoch 6", [](Header& h) { h.epoch = 6; },
       absl::StatusCode::kAborted},
      {"LaterEpoch", "epoch", "epoch 8", [](Header& h) { h.epoch = 8; }},
      {"Lane", "lane", "lane 1", [](Header& h) { h.lane = 1; }},
      {"OlderStep", "stale", "step 2", [](Header& h) { h.step = 2; }, absl::StatusCode::kAborted},
      {"LaterStep", "step", "step 4", [](Header& h) { h.step = 4; }},
      {"Slice", "layer", "layer 5", [](Header& h) { h.layer = 5; }},
      {"Rows", "rows", "rows 1000", [](Header& h) { h.rows = 1000; }},
      {"Sender", "sender", "sender 1", [](Header& h) { h.sender = 1; }}};
}

INSTANTIATE_TEST_SUITE_P(Headers, WrongContextTest, ::testing::ValuesIn(WrongHeaders()),
                         [](const auto& test) { return test.param.name; });

// --- Tokens ---

// Three replicas. With three layers the tail of step 1 of lane 0 is node 0's.
class TokenExchangeTest : public ReplicaExchangeTest {
 protected:
  void SetUp() override {
    plan::EpochConfig config = Replicas({"c0", "c1", "c2"});
    config.lanes = 3;
    Make(config);
    for (uint32_t node = 0; node < 3; ++node) {
      Join(node, 2);
    }
  }

  uint32_t TailNode(const Lane& lane) { return (*nodes_)[0].context.TailNodeOf(lane); }

  // Entries that node 0 would not send, as its tokens of step 1.
  absl::StatusOr<bool> TakeFromNode0(const std::vector<plan::TokenEntry>& entries,
                                     const std::function<void(plan::WindowHeader&)>& change) {
    Lane lane = LaneAtTail(1, 0, 1);
    EXPECT_EQ(TailNode(lane), 0u);
    const WorkerContext& context = (*nodes_)[1].context;
    plan::WindowHeader header =
        context.HeaderOf(lane, last_slice(), static_cast<uint32_t>(entries.size()), 0);
    change(header);
    const std::vector<std::byte> window = TokenWindow(header, entries);
    nodes_->PutAs((*nodes_)[0], 1, context.layout.TokenWindow(0, 0, 1), window,
                  {.word = context.layout.token_word(0, 0), .value = 1});
    return exchanges_[1]->TakeTokens(lane);
  }
};

TEST_F(TokenExchangeTest, TokensOfAStepReachAllOtherNodes) {
  Lane own = LaneAtTail(0, 0, 1);
  ASSERT_EQ(TailNode(own), 0u);
  const plan::StepResult result{
      .step = 1,
      .tokens = {
          {.sequence = 1, .position = 3, .token = 44},
          {.sequence = 2, .position = 3, .token = 95, .finish = plan::FinishReason::kLength}}};

  ASSERT_TRUE(exchanges_[0]->SendTokens(own, result).ok());

  for (const uint32_t node : {2, 1}) {
    Lane lane = LaneAtTail(node, 0, 1);
    const absl::StatusOr<bool> taken = TakeTokens(node, lane);
    ASSERT_TRUE(taken.ok()) << taken.status();
    ASSERT_TRUE(*taken);
    EXPECT_THAT(TokensOf(node, 1), ElementsAre(3, 5, 8, 44));
    EXPECT_THAT(TokensOf(node, 2), ElementsAre(3, 5, 8, 95));
    EXPECT_FALSE((*nodes_)[node].sequences.Find(1)->finished);
    EXPECT_TRUE((*nodes_)[node].sequences.Find(2)->finished);
    EXPECT_EQ((*nodes_)[node].counters.bytes_received.load(),
              sizeof(plan::WindowHeader) + 2 * sizeof(plan::TokenEntry));
  }
  EXPECT_THAT(TokensOf(0, 1), ElementsAre(3, 5, 8)) << "who samples appends them itself";
}

TEST_F(TokenExchangeTest, AStepWithoutTokensEndsOnTheOthersToo) {
  Lane own = LaneAtTail(0, 0, 1);
  ASSERT_TRUE(exchanges_[0]->SendTokens(own, {.step = 1}).ok());

  Lane lane = LaneAtTail(1, 0, 1);
  EXPECT_TRUE(TakeTokens(1, lane).value_or(false));
  EXPECT_THAT(TokensOf(1, 1), ElementsAre(3, 5, 8));
}

TEST_F(TokenExchangeTest, TokensThatHaveNotComeAreNotTaken) {
  Lane lane = LaneAtTail(1, 0, 1);

  const absl::StatusOr<bool> taken = exchanges_[1]->TakeTokens(lane);

  ASSERT_TRUE(taken.ok());
  EXPECT_FALSE(*taken);
  const AwaitedSignal signal = exchanges_[1]->TokenSignal(lane);
  EXPECT_EQ(signal.peer, ComputePeer(0));
  EXPECT_EQ(signal.word, (*nodes_)[1].context.layout.token_word(0, 0));
  EXPECT_EQ(signal.value, 1u);
}

// Steps that are planned ahead: the tokens of both are on their way at a time.
TEST_F(TokenExchangeTest, StepsPlannedAheadDoNotOverwriteEachOther) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    plan::EpochConfig config = Replicas({"c0", "c1"});
    config.mode = PipelineMode::kFixed;
    Make(config, seed);
    Join(1, 1);
    for (const uint64_t step : {1, 2}) {
      Lane own = LaneAtTail(0, 0, step);
      const plan::StepResult result{.step = step,
                                    .tokens = {{.sequence = 1,
                                                .position = static_cast<uint32_t>(2 + step),
                                                .token = static_cast<TokenId>(10 * step)}}};
      ASSERT_TRUE(exchanges_[0]->SendTokens(own, result).ok());
    }
    for (const uint64_t step : {1, 2}) {
      Lane lane = LaneAtTail(1, 0, step);
      const absl::StatusOr<bool> taken = TakeTokens(1, lane);
      ASSERT_TRUE(taken.ok()) << taken.status();
      ASSERT_TRUE(*taken);
    }
    EXPECT_THAT(TokensOf(1, 1), ElementsAre(3, 5, 8, 10, 20));
  }
}

TEST_F(TokenExchangeTest, ANodeForPromptsHearsOfNoOtherLane) {
  plan::EpochConfig config = Replicas({"c0", "c1", "p0"});
  config.lanes = 3;
  config.prefill_nodes = 1;
  config.prefill_lanes = 1;
  Make(config);
  const plan::WindowLayout& layout = (*nodes_)[0].context.layout;
  Lane decode = LaneAtTail(0, 0, 1);
  const uint32_t sampler = TailNode(decode);
  ASSERT_LT(sampler, 2u);
  Lane of_sampler = LaneAtTail(sampler, 0, 1);

  ASSERT_TRUE(exchanges_[sampler]->SendTokens(of_sampler, {.step = 1}).ok());
  Lane prompts = LaneAtTail(2, 2, 1);
  ASSERT_EQ(TailNode(prompts), 2u);
  ASSERT_TRUE(exchanges_[2]->SendTokens(prompts, {.step = 1}).ok());
  nodes_->Settle();

  const auto loaded = [&](uint32_t node, uint32_t sender, uint32_t lane) {
    return (*nodes_)[node].region->LoadSignal(layout.token_word(sender, lane));
  };
  EXPECT_EQ(loaded(1 - sampler, sampler, 0), 1u);
  EXPECT_EQ(loaded(2, sampler, 0), 0u) << "it keeps no table of the lane's sequences";
  EXPECT_EQ(loaded(0, 2, 2), 1u);
  EXPECT_EQ(loaded(1, 2, 2), 1u);
}

TEST_F(TokenExchangeTest, ANodeByItselfSendsNothing) {
  Make(Replicas({"c0"}));
  Lane own = LaneAtTail(0, 0, 1);

  ASSERT_TRUE(
      exchanges_[0]
          ->SendTokens(own, {.step = 1, .tokens = {{.sequence = 1, .position = 3, .token = 4}}})
          .ok());

  EXPECT_EQ((*nodes_)[0].counters.bytes_sent.load(), 0u);
}

TEST_F(TokenExchangeTest, MoreTokensThanAWindowHoldsAreNotSent) {
  Lane own = LaneAtTail(0, 0, 1);
  plan::StepResult result{.step = 1};
  result.tokens.resize((*nodes_)[0].context.layout.token_rows_max() + 1);

  const absl::Status sent = exchanges_[0]->SendTokens(own, result);

  EXPECT_EQ(sent.code(), absl::StatusCode::kInternal) << sent;
  EXPECT_EQ(sent.message(), "step 1 of lane 0 samples 13 tokens; at most 12 fit");
  nodes_->Settle();
  EXPECT_EQ((*nodes_)[1].region->LoadSignal((*nodes_)[0].context.layout.token_word(0, 0)), 0u);
}

TEST_F(TokenExchangeTest, TokensThatDoNotFollowFromTheTablesAreBlamedOnTheSender) {
  (*nodes_)[1].sequences.Find(2)->finished = true;
  const struct {
    const char* what;
    plan::TokenEntry entry;
  } wrong[] = {
      {"an unknown sequence", {.sequence = 9, .position = 3, .token = 4}},
      {"one that has ended", {.sequence = 2, .position = 3, .token = 4}},
      {"a token before the last", {.sequence = 1, .position = 2, .token = 4}},
      {"a gap", {.sequence = 1, .position = 4, .token = 4}},
      {"a negative token", {.sequence = 1, .position = 3, .token = -1}},
      {"a token behind the vocabulary", {.sequence = 1, .position = 3, .token = kVocabulary}},
  };
  for (const auto& [what, entry] : wrong) {
    SCOPED_TRACE(what);
    SetUp();  // Words only grow.
    (*nodes_)[1].sequences.Find(2)->finished = true;

    const absl::StatusOr<bool> taken = TakeFromNode0({entry}, [](plan::WindowHeader&) {});

    EXPECT_EQ(taken.status().code(), absl::StatusCode::kInternal) << taken.status();
    EXPECT_THAT(std::string(taken.status().message()),
                ::testing::HasSubstr("does not follow from the tables"));
    EXPECT_EQ(control::BlamedIn(taken.status()), "c0");
    EXPECT_THAT(TokensOf(1, 1), ElementsAre(3, 5, 8));
    EXPECT_THAT(TokensOf(1, 2), ElementsAre(3, 5, 8));
  }
}

TEST_F(TokenExchangeTest, MoreTokensThanAWindowHoldsAreRefused) {
  const absl::StatusOr<bool> taken =
      TakeFromNode0({}, [](plan::WindowHeader& header) { header.rows = 1u << 30; });

  EXPECT_EQ(taken.status().code(), absl::StatusCode::kInternal) << taken.status();
  EXPECT_EQ(control::BlamedIn(taken.status()), "c0");
  EXPECT_EQ((*nodes_)[1].Refused("rows"), 1u);
}

TEST_F(TokenExchangeTest, TokensOfAnotherUnitAreRefused) {
  const struct {
    const char* reason;
    void (*change)(plan::WindowHeader&);
  } wrong[] = {
      {"damaged", [](plan::WindowHeader& h) { h.magic = 1; }},
      {"stale", [](plan::WindowHeader& h) { h.epoch = 6; }},
      {"step", [](plan::WindowHeader& h) { h.step = 2; }},
      {"stale", [](plan::WindowHeader& h) { h.layer = 0; }},
      {"lane", [](plan::WindowHeader& h) { h.lane = 2; }},
      {"sender", [](plan::WindowHeader& h) { h.sender = 2; }},
  };
  for (const auto& [reason, change] : wrong) {
    SCOPED_TRACE(reason);
    SetUp();

    const absl::StatusOr<bool> taken =
        TakeFromNode0({{.sequence = 1, .position = 3, .token = 4}}, change);

    EXPECT_FALSE(taken.ok());
    EXPECT_EQ(control::BlamedIn(taken.status()), "c0");
    EXPECT_EQ((*nodes_)[1].Refused(reason), 1u);
    EXPECT_THAT(TokensOf(1, 1), ElementsAre(3, 5, 8));
  }
}

}  // namespace
}  // namespace lamina::compute_node
