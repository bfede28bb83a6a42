// SPDX-License-Identifier: Apache-2.0
//
// What every attention path owes the worker: random steps of decode rows and prompt chunks, in two
// lanes at once, have the outputs of plain attention over the whole sequences, bit by bit. Memory
// nodes are real workers on threads of their own, over a network that delays and reorders.

#include "compute_node/attention_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/compute_node/attention_path_cases.h"
#include "tests/unit/compute_node/attention_path_fixture.h"

namespace lamina::compute_node {
namespace {

TEST_P(AttentionPathTest, RowsAndChunksHaveTheBitsOfPlainAttention) {
  plan::StepPlan first;
  plan::StepPlan second;
  Join(1, 290, first);
  AddRows(1, 200, first);
  Join(2, 40, first);
  AddRows(2, 40, first);
  Join(3, 61, second);
  AddRows(3, 61, second);
  RunSteps({first, second});
  for (int step = 0; step < 6; ++step) {
    first = {};
    second = {};
    AddRows(1, 90, first);
    AddRows(2, 1, first);
    AddRows(3, 1, second);
    if (step == 1) {
      Join(4, 517, second);  // Over the borders of spans.
    }
    if (step >= 1) {
      AddRows(4, 259, second);
    }
    RunSteps({first, second});
  }
}

// Several in a step, where no scratch has those before them.
TEST_P(AttentionPathTest, RowsOfAPromptSeeAllTokensBeforeThem) {
  plan::StepPlan plan;
  Join(1, 131, plan);
  AddRows(1, 121, plan);
  RunSteps({plan});
  for (const uint32_t rows : {4u, 4u, 2u}) {  // The second ones fill a block of 64, and go on.
    plan = {};
    for (uint32_t i = 0; i < rows; ++i) {
      plan.rows.push_back({.sequence = 1, .position = done_[1]++});
    }
    RunSteps({plan});
  }
  for (int step = 0; step < 5; ++step) {
    plan = {};
    AddRows(1, 1, plan);
    RunSteps({plan});
  }
}

TEST_P(AttentionPathTest, AStepWithOneLaneAndOneRowRuns) {
  plan::StepPlan plan;
  Join(1, 1, plan);
  AddRows(1, 1, plan);
  RunSteps({plan});
  for (int step = 0; step < 3; ++step) {
    plan = {};
    AddRows(1, 1, plan);
    RunSteps({plan});
  }
}

class SpanBorderTest : public AttentionPathTest {
 protected:
  // The next tokens of the sequence's prompt as rows, four in each of three steps.
  void RunRows(plan::SequenceId id) {
    for (int step = 0; step < 3; ++step) {
      plan::StepPlan plan;
      for (int row = 0; row < 4; ++row) {
        plan.rows.push_back({.sequence = id, .position = done_[id]++});
      }
      RunSteps({plan});
    }
  }
};

// Some of a step's rows have their tokens in one span, and the others in the next.
TEST_P(SpanBorderTest, RowsOfAPromptAreOfTwoSpans) {
  plan::StepPlan plan;
  Join(1, 262, plan);
  AddRows(1, 247, plan);
  RunSteps({plan});
  RunRows(1);  // Tokens 247 to 258.
  plan = {};
  Join(2, 524, plan);
  AddRows(2, 300, plan);
  RunSteps({plan});
  plan = {};
  AddRows(2, 210, plan);
  RunSteps({plan});
  RunRows(2);  // Tokens 510 to 521.
}

class WindowDataTest : public AttentionPathTest {
 protected:
  // A prompt is there, and layer 0 of a step with one row of it has begun. Where blocks of INT8
  // stay, the prompt has more of them.
  void BeginRow() {
    const bool blocks_stay = GetParam().int8 && GetParam().resident_tokens > 0;
    const uint32_t tokens = blocks_stay ? 2 * kChunkTokens : 90;
    plan::StepPlan plan;
    Join(2, tokens, plan);
    for (AddRows(2, kChunkTokens, plan); done_[2] < tokens; AddRows(2, kChunkTokens, plan)) {
      RunSteps({plan});
      plan = {};
    }
    RunSteps({plan});
    plan = {};
    AddRows(2, 1, plan);
    BeginStep(0, plan);
    BeginLayer(lanes_[0], 0);
  }

  void ExpectFound(const std::string& what) {
    const auto found = paths_->Poll(lanes_[0]);
    EXPECT_TRUE(absl::IsInternal(found.status())) << found.status();
    EXPECT_THAT(std::string(found.status().message()), ::testing::HasSubstr(what));
  }

  // The first piece of node m0 has come into the lane's windows: where its data begin. Where heads
  // are spread those of the others have come too: parts of activations are taken together.
  std::byte* AwaitFirstPiece(uint32_t lane) {
    const plan::FetchWindows windows(context_->layout);
    const Nanos deadline = RealClock().Now() + kLong;
    const size_t nodes = ByHead(config_) ? config_.memory_nodes.size() : 1;
    for (uint32_t node = 0; node < nodes; ++node) {
      while (region_->LoadSignal(windows.word(node, lane)) < 1 && RealClock().Now() < deadline) {
        transport_->Progress();
      }
      EXPECT_GE(region_->LoadSignal(windows.word(node, lane)), 1u);
    }
    return region_->bytes().data() + windows.Window(0, lane, plan::FetchRing(), /*parts=*/1) +
           sizeof(plan::WindowHeader);
  }
};

// Whatever comes: K and V, or activations.
TEST_P(WindowDataTest, AByteThatChangedOnTheWayIsFound) {
  if (GetParam().int8 && GetParam().resident_tokens == kAllResidentInt8) {
    GTEST_SKIP() << "a header comes alone, of nothing that stays";
  }
  BeginRow();
  ChangeBytes(GetParam(), AwaitFirstPiece(0));
  ExpectFound("its data changed on the way");
  EXPECT_EQ(counters_.refusals.total(), 1u);
}

// In any build. A bit of each word, one after the other.
TEST_P(WindowDataTest, ABitOfTheHeaderThatChangedOnTheWayIsFound) {
  BeginRow();
  std::byte* const header = AwaitFirstPiece(0) - sizeof(plan::WindowHeader);
  uint64_t found = 0;
  for (size_t byte = 3; byte < sizeof(plan::WindowHeader); byte += sizeof(uint64_t)) {
    SCOPED_TRACE(byte);
    header[byte] ^= std::byte{16};
    ExpectFound("its header changed on the way");
    EXPECT_THAT(counters_.refusals.ByReason(),
                ::testing::Contains(::testing::Pair("damaged", ++found)));
    header[byte] ^= std::byte{16};
  }
  EXPECT_EQ(counters_.refusals.total(), found);
}

// Heads are spread over two memory nodes, of which m1 is early.
class EarlyNodeTest : public AttentionPathTest {
 protected:
  // Layer 0 of a row's step has begun, and the first piece of node m1 has come. Node m0 does not
  // know of the step.
  void BeginWithoutFirstNode() {
    plan::StepPlan plan;
    Join(1, 90, plan);
    AddRows(1, 90, plan);
    RunSteps({plan});
    plan = {};
    AddRows(1, 1, plan);
    const uint32_t word = plan::FetchWindows(context_->layout).word(1, 0);
    const uint64_t before = region_->LoadSignal(word);
    late_nodes_ = 1;
    BeginStep(0, plan);
    BeginLayer(lanes_[0], 0);
    const Nanos deadline = RealClock().Now() + kLong;
    while (region_->LoadSignal(word) == before && RealClock().Now() < deadline) {
      transport_->Progress();
    }
    ASSERT_GT(region_->LoadSignal(word), before);
  }

  // Looks once for what has come; returns how many bytes of it are taken.
  uint64_t TakeOnce() {
    const uint64_t before = counters_.bytes_received.load();
    const auto polled = paths_->Poll(lanes_[0]);
    EXPECT_TRUE(polled.ok()) << polled.status();
    EXPECT_FALSE(polled.value_or(true)) << "heads of node m0 are missing";
    return counters_.bytes_received.load() - before;
  }

  // Whether a piece of the memory node is waited for.
  bool Awaits(uint32_t node) const {
    std::vector<AwaitedSignal> awaited;
    paths_->AppendAwaited(lanes_[0], awaited);
    const uint32_t word = plan::FetchWindows(context_->layout).word(node, 0);
    return std::any_of(awaited.begin(), awaited.end(),
                       [word](const AwaitedSignal& signal) { return signal.word == word; });
  }

  // Node m0 hears of the step, which ends with the outputs of all heads.
  void EndWithAll() {
    Lane& lane = lanes_[0];
    memory_[0]->worker->PushPlan(lane.plan);
    EndLayer(lane, 0);
    for (uint32_t layer = 1; layer < config_.layers.size(); ++layer) {
      BeginLayer(lane, layer);
      EndLayer(lane, layer);
    }
    paths_->EndStep(lane);
  }
};

class HeadsInTurnTest : public EarlyNodeTest {};

// What softmax gave a token is added up over heads in their order: else sums, and with them the
// tokens that are chosen, would follow from who is early.
TEST_P(HeadsInTurnTest, ANodeThatIsEarlyWaitsForTheHeadsBeforeItsOwn) {
  ASSERT_NO_FATAL_FAILURE(BeginWithoutFirstNode());
  EXPECT_EQ(TakeOnce(), 0u) << "the piece of node m1 lies where it came";
  EXPECT_TRUE(Awaits(0));
  EXPECT_FALSE(Awaits(1)) << "what is here is not awaited";
  EndWithAll();
}

class HeadsAsTheyComeTest : public EarlyNodeTest {};

TEST_P(HeadsAsTheyComeTest, WhereNothingIsWeighedANodeThatIsEarlyWaitsForNone) {
  ASSERT_NO_FATAL_FAILURE(BeginWithoutFirstNode());
  EXPECT_GT(TakeOnce(), 0u);
  EXPECT_TRUE(Awaits(0));
  EndWithAll();
}

class MadeAheadTest : public AttentionPathTest {
 protected:
  // A step of one row, whose slices' weights come so late that the first layer's activations are
  // used before. Returns the tokens whose K and V were made, over all layers.
  uint64_t RunLateStep() {
    plan::StepPlan plan;
    AddRows(1, 1, plan);
    BeginStep(0, plan);
    Lane& lane = lanes_[0];
    lane.slice = 0;
    const uint64_t before = counters_.recomputed_tokens.load();
    const Nanos deadline = RealClock().Now() + kLong;
    while (counters_.recomputed_tokens.load() == before && RealClock().Now() < deadline) {
      transport_->Progress();
      EXPECT_TRUE(paths_->WhileWeightsCome(lane).ok());
    }
    EXPECT_GT(counters_.recomputed_tokens.load(), before) << "before the slice has run";
    for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
      BeginLayer(lane, layer);
      EndLayer(lane, layer);
    }
    paths_->EndStep(lane);
    return counters_.recomputed_tokens.load() - before;
  }
};

// Each once, however late the weights are.
TEST_P(MadeAheadTest, ActivationsAreUsedWhileWeightsCome) {
  plan::StepPlan plan;
  Join(1, 290, plan);
  AddRows(1, 290, plan);
  RunSteps({plan});
  const uint64_t made = RunLateStep();
  for (uint64_t step = 1; step <= 3; ++step) {
    const uint64_t again = RunLateStep();
    if (GetParam().recomputed == plan::kRecomputeUnit) {
      EXPECT_EQ(again, made + step * config_.layers.size()) << "the rows' own as well";
    } else if (GetParam().activation_share == 0) {
      EXPECT_EQ(again, made) << "of as many whole tiles";
    }
  }
  EXPECT_EQ(made % config_.layers.size(), 0u);
}

// 96 TiB.
TEST(FetchPathMakerTest, MoreThatStaysThanTheHostHasNamesTheKey) {
  ThreadPool pool{{}};
  const auto device = kernels::SuiteComputeDevice(DType::kBF16, pool);
  FetchPathMaker maker(plan::AttentionPath::kRecompute, "c0", *device, kernels::CpuAttention());
  plan::EpochConfig config;
  config.layers.resize(3);
  config.activation_width = 1 << 20;
  config.resident_tokens = 1 << 24;

  const absl::Status reserved = maker.Reserve(config, {.layers = 3});

  EXPECT_EQ(reserved.code(), absl::StatusCode::kResourceExhausted) << reserved;
  EXPECT_THAT(std::string(reserved.message()),
              ::testing::StartsWith("fetch.resident: no room for 96.0 TiB of KV"));
}

// All weights are here, and those that are held are counted.
class HeldWeightsCount final : public WeightSource {
 public:
  explicit HeldWeightsCount(const ModelWeights& weights) : weights_(weights) {}

  const ModelWeights& weights() const override { return weights_; }
  absl::StatusOr<WeightWait> Ask(uint32_t /*slice*/) override {
    ++held_;
    return WeightWait{};
  }
  bool KvHere(uint32_t /*slice*/, size_t /*first_column*/) override { return true; }
  void Release(uint32_t /*slice*/) override { --held_; }

  int held() const { return held_; }

 private:
  const ModelWeights& weights_;
  int held_ = 0;
};

class MadeAheadOfTheSliceTest : public MadeAheadTest {
 protected:
  void SetUp() override {
    weights_.emplace(program_.executor().weight_source().weights());
    auto executor = SliceExecutor::Create(program_.model().graph, *weights_,
                                          program_.executor().device(), /*head_columns=*/64);
    ASSERT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
    MadeAheadTest::SetUp();
  }
  void TearDown() override {
    MadeAheadTest::TearDown();
    paths_.reset();  // Before the executor.
  }
  SliceExecutor& executor() override { return *executor_; }

  std::optional<HeldWeightsCount> weights_;
  std::unique_ptr<SliceExecutor> executor_;
};

// All that comes and all that stays, so that others' weights may come while K and V do.
TEST_P(MadeAheadOfTheSliceTest, NothingIsLeftThatHoldsItsWeights) {
  plan::StepPlan plan;
  Join(1, 290, plan);
  AddRows(1, 290, plan);
  RunSteps({plan});
  const uint64_t of_layer = RunLateStep() / config_.layers.size();
  EXPECT_EQ(weights_->held(), 0);

  plan = {};
  AddRows(1, 1, plan);
  BeginStep(0, plan);
  Lane& lane = lanes_[0];
  lane.slice = 0;
  const uint64_t all = counters_.recomputed_tokens.load() + of_layer;
  const Nanos deadline = RealClock().Now() + Seconds(10);
  while (counters_.recomputed_tokens.load() < all && RealClock().Now() < deadline) {
    transport_->Progress();
    ASSERT_TRUE(paths_->WhileWeightsCome(lane).ok());
  }
  EXPECT_EQ(counters_.recomputed_tokens.load(), all);
  BeginLayer(lane, 0);
  EXPECT_EQ(weights_->held(), 0);
  EndLayer(lane, 0);
  for (uint32_t layer = 1; layer < config_.layers.size(); ++layer) {
    BeginLayer(lane, layer);
    EndLayer(lane, layer);
  }
  paths_->EndStep(lane);
  EXPECT_EQ(weights_->held(), 0);
}

using MadeBehindTheSliceTest = AttentionPathTest;

// The coordinator knows of it by itself.
TEST_P(MadeBehindTheSliceTest, IsNoPartOfTheSlicesTime) {
  plan::StepPlan plan;
  Join(1, 290, plan);
  AddRows(1, 290, plan);
  RunSteps({plan});
  plan = {};
  AddRows(1, 1, plan);
  BeginStep(0, plan);
  Lane& lane = lanes_[0];
  lane.slices_nanos = 0;
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    BeginLayer(lane, layer);
    EXPECT_LT(lane.slices_nanos, 0) << "layer " << layer;
    EndLayer(lane, layer);
  }
  paths_->EndStep(lane);
}

using LastLayerTest = AttentionPathTest;

// Outputs of prompts in chunks that nobody reads are left as they are.
TEST_P(LastLayerTest, ItAttendsForRowsThatAreReadAlone) {
  plan::StepPlan plan;
  Join(1, 90, plan);
  Join(2, 30, plan);
  AddRows(1, 40, plan);  // Its prompt goes on.
  AddRows(2, 30, plan);
  BeginStep(0, std::move(plan));
  Lane& lane = lanes_[0];
  const BFloat16 untouched = ToBFloat16(-77.0f);
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    const auto out = executor().AttentionRows(layer, lane.positions.size(), lane.buffers);
    for (size_t row = 0; row < out.rows; ++row) {
      *out.row(row) = untouched;
    }
    BeginLayer(lane, layer);
    EndLayer(lane, layer);
    for (size_t row = 0; row < out.rows; ++row) {
      EXPECT_EQ(out.row(row)->bits != untouched.bits, IsRead(lane, layer, row))
          << "layer " << layer << " row " << row;
    }
  }
  paths_->EndStep(lane);
}

// Those that neither choose tokens nor have heads that stream.
std::vector<Case> CasesOfPlainPrompts() {
  using plan::AttentionPath;
  std::vector<Case> cases = Cases();
  std::erase_if(cases, [](const Case& one) {
    return one.toy || one.kind == AttentionPath::kSparse || one.kind == AttentionPath::kStreaming;
  });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Paths, LastLayerTest, ::testing::ValuesIn(CasesOfPlainPrompts()),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(Paths, HeadsInTurnTest,
                         ::testing::ValuesIn(CasesChosenByHead(/*weighed=*/true)),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(Paths, HeadsAsTheyComeTest,
                         ::testing::ValuesIn(CasesChosenByHead(/*weighed=*/false)),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(Paths, MadeBehindTheSliceTest,
                         ::testing::ValuesIn(CasesBehindWhatIsHere()),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(Paths, MadeAheadOfTheSliceTest,
                         ::testing::ValuesIn(CasesAheadOfWhatIsHere()),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(Paths, MadeAheadTest, ::testing::ValuesIn(CasesAhead()),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(Paths, SpanBorderTest, ::testing::ValuesIn(CasesBySpan()),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(Paths, WindowDataTest, ::testing::ValuesIn(CasesThatFetch()),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(Paths, AttentionPathTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace lamina::compute_node
