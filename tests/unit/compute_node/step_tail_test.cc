// SPDX-License-Identifier: Apache-2.0
//
// The end of a step: logits of the rows that count, in blocks of rows and chunks of columns, are
// those that each row has by itself; and what comes of them.

#include "compute_node/step_tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/compute_node/counting_device.h"
#include "tests/unit/compute_node/exchange_nodes.h"
#include "tests/unit/compute_node/random_body.h"

namespace lamina::compute_node {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kVocabulary = 96;  // Two chunks of columns.
constexpr uint32_t kRowsMax = 80;     // More than a block of rows.

// Grammars of one token, by the number that is the form's text.
class OneTokenState final : public model::GrammarState {
 public:
  explicit OneTokenState(TokenId token) : token_(token) {
    mask_.resize((kVocabulary + 31) / 32);
    mask_[token / 32] = 1u << (token % 32);
  }
  absl::Span<const uint32_t> Allowed() override { return mask_; }
  bool Accept(TokenId token) override { return token == token_; }
  bool ended() const override { return false; }

 private:
  const TokenId token_;
  std::vector<uint32_t> mask_;
};

class OneTokenGrammar final : public model::Grammar {
 public:
  explicit OneTokenGrammar(TokenId token) : token_(token) {}
  std::unique_ptr<model::GrammarState> Begin() const override {
    return std::make_unique<OneTokenState>(token_);
  }
  size_t bytes() const override { return 1; }

 private:
  const TokenId token_;
};

class OneTokenCompiler final : public model::GrammarCompiler {
 public:
  absl::StatusOr<std::shared_ptr<const model::Grammar>> Compile(const OutputForm& form) override {
    return std::make_shared<OneTokenGrammar>(std::stoi(form.text));
  }
};

// Samples greedy rows, each to the token of its number; the others are the host's.
class NumberingSampler final : public kernels::RowSampler {
 public:
  bool Takes(const SamplingParams& params) const override { return params.temperature == 0; }
  absl::Status Sample(const kernels::MatrixView<const float>&,
                      absl::Span<const kernels::SampleRequest> rows) override {
    tokens_.clear();
    for (const kernels::SampleRequest& row : rows) {
      tokens_.push_back(row.params == nullptr ? -1 : static_cast<TokenId>(tokens_.size()));
    }
    return absl::OkStatus();
  }
  absl::Span<const TokenId> tokens() const override { return tokens_; }

 private:
  std::vector<TokenId> tokens_;
};

class StepTailTest : public ::testing::Test {
 protected:
  explicit StepTailTest(const Program::DeviceMaker& make_device = nullptr)
      : program_(Spec("llama"), DType::kBF16, UINT32_MAX, make_device) {
    EXPECT_TRUE(executor().device().Begin().ok());
    plan::EpochConfig config = ExchangeNodes::ConfigFor(executor(), {"c0"});
    config.rows_max = kRowsMax;
    nodes_.Add(config, plan::WindowShapeOf(config), executor());
    tail_ = std::make_unique<StepTail>(node().context, node().sequences, nodes_.pool(), &grammars_);
  }

  SliceExecutor& executor() { return program_.executor(); }
  ExchangeNode& node() { return nodes_[0]; }
  SequenceTable& sequences() { return node().sequences; }

  // A step whose last slice finds random values in `rows` rows.
  Lane LaneOf(uint32_t index, uint32_t rows) {
    Lane lane;
    lane.index = index;
    lane.plan = {.epoch = 7, .lane = index, .step = 4};
    lane.slice = executor().slice_count() - 1;
    lane.buffers = RandomBody(program_, rows);
    lane.token_ids.assign(rows, 1);
    lane.positions.assign(rows, 2);
    return lane;
  }

  plan::SequenceJoin JoinOf(plan::SequenceId id) {
    return {.id = id, .tokens = {3, 5, 8}, .prompt_tokens = 3, .tokens_max = 64};
  }
  void Join(const plan::SequenceJoin& join) {
    plan::StepPlan plan;
    plan.joins = {join};
    ASSERT_TRUE(sequences().Apply(plan, kVocabulary).ok());
  }

  // Logits of one row by itself.
  std::vector<float> LogitsOf(Lane& lane, uint32_t row) {
    const LmHead& head = executor().head();
    ValueBuffers buffers = *head.MakeBuffers();
    const uint32_t zero[] = {0};
    head.Begin(lane.buffers, {&row, 1}, buffers);
    for (size_t column = 0; column < head.width();) {
      column = head.Run(1, column, buffers);
    }
    EXPECT_TRUE(head.LogitsToHost(zero, buffers).ok());
    const auto logits = head.Logits(1, buffers);
    return {logits.row(0), logits.row(0) + logits.cols};
  }
  TokenId Greedy(Lane& lane, uint32_t row) {
    const std::vector<float> logits = LogitsOf(lane, row);
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  // All of the lane's tail; how many calls it took is in calls_.
  plan::StepResult Run(Lane& lane) {
    for (calls_ = 1; calls_ < 1000; ++calls_) {
      const absl::StatusOr<StepTail::Outcome> outcome = tail_->Run(lane);
      EXPECT_TRUE(outcome.ok()) << outcome.status();
      if (!outcome.ok() || *outcome == StepTail::Outcome::kEnded) {
        break;
      }
      EXPECT_EQ(*outcome, StepTail::Outcome::kMore);
    }
    return tail_->TakeResult();
  }

  std::vector<TokenId> TokensOf(plan::SequenceId id) { return sequences().Find(id)->tokens; }

  Program program_;
  ExchangeNodes nodes_{{}};
  model::GrammarCache grammars_{[]() -> absl::StatusOr<std::unique_ptr<model::GrammarCompiler>> {
                                  return std::make_unique<OneTokenCompiler>();
                                },
                                {}};
  std::unique_ptr<StepTail> tail_;
  int calls_ = 0;
};

TEST_F(StepTailTest, EachRowIsSampledFromItsOwnLogits) {
  ASSERT_TRUE(tail_->Prepare(kVocabulary).ok());
  Lane lane = LaneOf(1, 5);
  for (const plan::SequenceId id : {1, 2, 3}) {
    Join(JoinOf(id));
  }
  lane.tail = {{.row = 0, .sequence = 1, .position = 2},
               {.row = 3, .sequence = 2, .position = 2},
               {.row = 4, .sequence = 3, .position = 2}};

  const plan::StepResult result = Run(lane);

  EXPECT_EQ(calls_, 2) << "a call for each chunk of columns";
  EXPECT_EQ(result.epoch, 7u);
  EXPECT_EQ(result.lane, 1u);
  EXPECT_EQ(result.step, 4u);
  ASSERT_EQ(result.tokens.size(), 3u);
  EXPECT_TRUE(result.scores.empty());
  for (size_t i = 0; i < 3; ++i) {
    const plan::SampledToken& token = result.tokens[i];
    EXPECT_EQ(token.sequence, i + 1);
    EXPECT_EQ(token.position, 3u);
    EXPECT_EQ(token.token, Greedy(lane, lane.tail[i].row));
    EXPECT_EQ(token.finish, plan::FinishReason::kNone);
    EXPECT_THAT(TokensOf(token.sequence), ElementsAre(3, 5, 8, token.token));
  }
  EXPECT_EQ(node().counters.units.load(), 1u);
}

TEST_F(StepTailTest, MoreRowsThanABlockRunBlockByBlock) {
  ASSERT_TRUE(tail_->Prepare(kVocabulary).ok());
  constexpr uint32_t kRows = LmHead::kRows + 3;
  Lane lane = LaneOf(0, kRows);
  for (uint32_t row = 0; row < kRows; ++row) {
    Join(JoinOf(row + 1));
    lane.tail.push_back({.row = row, .sequence = row + 1, .position = 2});
  }

  const plan::StepResult result = Run(lane);

  EXPECT_EQ(calls_, 4);
  ASSERT_EQ(result.tokens.size(), kRows);
  for (uint32_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(result.tokens[row].sequence, row + 1);
    EXPECT_EQ(result.tokens[row].token, Greedy(lane, row)) << "row " << row;
  }
}

TEST_F(StepTailTest, AStepThatSamplesNothingEndsAtOnce) {
  ASSERT_TRUE(tail_->Prepare(kVocabulary).ok());
  Lane lane = LaneOf(0, 2);

  const plan::StepResult result = Run(lane);

  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(result.step, 4u);
  EXPECT_TRUE(result.tokens.empty());
}

TEST_F(StepTailTest, OneLanesTailIsUnderWayAtATime) {
  ASSERT_TRUE(tail_->Prepare(kVocabulary).ok());
  Lane first = LaneOf(0, 2);
  Lane second = LaneOf(1, 2);
  Join(JoinOf(1));
  Join(JoinOf(2));
  first.tail = {{.row = 1, .sequence = 1, .position = 2}};
  second.tail = {{.row = 0, .sequence = 2, .position = 2}};

  EXPECT_EQ(*tail_->Run(first), StepTail::Outcome::kMore);
  EXPECT_EQ(*tail_->Run(second), StepTail::Outcome::kOccupied);
  EXPECT_THAT(TokensOf(2), ElementsAre(3, 5, 8));
  EXPECT_EQ(*tail_->Run(first), StepTail::Outcome::kEnded);
  const plan::StepResult of_first = tail_->TakeResult();
  const plan::StepResult of_second = Run(second);

  ASSERT_EQ(of_first.tokens.size(), 1u);
  EXPECT_EQ(of_first.tokens[0].token, Greedy(first, 1));
  ASSERT_EQ(of_second.tokens.size(), 1u);
  EXPECT_EQ(of_second.lane, 1u);
  EXPECT_EQ(of_second.tokens[0].token, Greedy(second, 0));
}

TEST_F(StepTailTest, TheLastTokenEndsItsSequence) {
  ASSERT_TRUE(tail_->Prepare(kVocabulary).ok());
  Lane lane = LaneOf(0, 2);
  plan::SequenceJoin full = JoinOf(1);
  full.tokens_max = 4;
  plan::SequenceJoin ending = JoinOf(2);
  ending.end_tokens = {Greedy(lane, 1)};
  Join(full);
  Join(ending);
  lane.tail = {{.row = 0, .sequence = 1, .position = 2}, {.row = 1, .sequence = 2, .position = 2}};

  const plan::StepResult result = Run(lane);

  ASSERT_EQ(result.tokens.size(), 2u);
  EXPECT_EQ(result.tokens[0].finish, plan::FinishReason::kLength);
  EXPECT_EQ(result.tokens[1].finish, plan::FinishReason::kStop);
  EXPECT_TRUE(sequences().Find(1)->finished);
  EXPECT_TRUE(sequences().Find(2)->finished);
}

TEST_F(StepTailTest, ScoresAreLogProbabilitiesOfTheTokensThatFollow) {
  ASSERT_TRUE(tail_->Prepare(kVocabulary).ok());
  Lane lane = LaneOf(0, 5);
  plan::SequenceJoin plain = JoinOf(1);
  plain.score = true;
  plan::SequenceJoin ranked = JoinOf(2);
  ranked.score = true;
  ranked.sampling.logprobs = 2;
  Join(plain);
  Join(ranked);
  Join(JoinOf(3));
  lane.tail = {{.row = 0, .sequence = 1, .position = 0, .score = true},
               {.row = 1, .sequence = 1, .position = 1, .score = true},
               {.row = 2, .sequence = 2, .position = 1, .score = true},
               {.row = 4, .sequence = 3, .position = 2}};

  const plan::StepResult result = Run(lane);

  ASSERT_EQ(result.scores.size(), 2u) << "rows of a sequence that follow each other are one part";
  EXPECT_EQ(result.scores[0].sequence, 1u);
  EXPECT_EQ(result.scores[0].first_token, 1u);
  EXPECT_THAT(result.scores[0].logprobs,
              ElementsAre(kernels::LogProbability(LogitsOf(lane, 0), 5),
                          kernels::LogProbability(LogitsOf(lane, 1), 8)));
  EXPECT_TRUE(result.scores[0].ranks.empty());
  EXPECT_EQ(result.scores[1].sequence, 2u);
  EXPECT_EQ(result.scores[1].first_token, 2u);
  kernels::SampleScratch scratch;
  const kernels::TokenRank rank = kernels::RankOf(LogitsOf(lane, 2), 8, 2, scratch);
  ASSERT_EQ(result.scores[1].ranks.size(), 1u);
  EXPECT_EQ(result.scores[1].ranks[0].rank, rank.rank);
  EXPECT_EQ(result.scores[1].ranks[0].top.size(), 2u);
  ASSERT_EQ(result.tokens.size(), 1u);
  EXPECT_EQ(result.tokens[0].sequence, 3u);
  EXPECT_EQ(result.tokens[0].token, Greedy(lane, 4));
  EXPECT_THAT(TokensOf(1), ElementsAre(3, 5, 8)) << "a score samples nothing";
}

TEST_F(StepTailTest, RowsWithAFormTakeTokensThatFit) {
  ASSERT_TRUE(tail_->Prepare(kVocabulary).ok());
  Lane lane = LaneOf(0, 2);
  const TokenId other = Greedy(lane, 0) == 17 ? 18 : 17;
  plan::SequenceJoin formed = JoinOf(1);
  formed.sampling.form = {.kind = OutputForm::Kind::kRegex, .text = std::to_string(other)};
  Join(formed);
  Join(JoinOf(2));
  lane.tail = {{.row = 0, .sequence = 1, .position = 2}, {.row = 1, .sequence = 2, .position = 2}};

  const plan::StepResult result = Run(lane);

  ASSERT_EQ(result.tokens.size(), 2u);
  EXPECT_EQ(result.tokens[0].token, other);
  EXPECT_EQ(result.tokens[1].token, Greedy(lane, 1));
}

// In a shard's step, what follows the last sum runs on these rows alone.
TEST_F(StepTailTest, RowsThatCountMoveToTheFrontAndForksShareOne) {
  ASSERT_TRUE(tail_->Prepare(kVocabulary).ok());
  Lane lane = LaneOf(0, 6);
  lane.token_ids = {10, 11, 12, 13, 14, 15};
  lane.positions = {20, 21, 22, 23, 24, 25};
  lane.tail = {{.row = 1, .sequence = 1},
               {.row = 4, .sequence = 2},
               {.row = 4, .sequence = 3},
               {.row = 5, .sequence = 4}};
  const std::vector<TokenId> before = {Greedy(lane, 1), Greedy(lane, 4), Greedy(lane, 5)};

  ASSERT_TRUE(tail_->KeepRows(lane).ok());

  EXPECT_THAT(lane.token_ids, ElementsAre(11, 14, 15));
  EXPECT_THAT(lane.positions, ElementsAre(21, 24, 25));
  std::vector<uint32_t> rows;
  for (const TailRow& row : lane.tail) {
    rows.push_back(row.row);
  }
  EXPECT_THAT(rows, ElementsAre(0, 1, 1, 2));
  EXPECT_EQ(lane.buffers.rows().positions.size(), 3u);
  EXPECT_EQ((std::vector<TokenId>{Greedy(lane, 0), Greedy(lane, 1), Greedy(lane, 2)}), before);
}

class DeviceTailTest : public StepTailTest {
 protected:
  DeviceTailTest()
      : StepTailTest([](ThreadPool& pool) { return std::make_unique<CountingDevice>(pool); }) {}
  CountingDevice& device() { return static_cast<CountingDevice&>(executor().device()); }
};

TEST_F(DeviceTailTest, TheDeviceSamplesTheRowsThatItTakes) {
  device().SampleWith(std::make_unique<NumberingSampler>());
  ASSERT_TRUE(tail_->Prepare(kVocabulary).ok());
  Lane lane = LaneOf(0, 4);
  plan::SequenceJoin biased = JoinOf(2);  // Not greedy; but one token is sure.
  biased.sampling.temperature = 1;
  biased.sampling.logit_bias = {{70, 100.0f}};
  plan::SequenceJoin scored = JoinOf(3);
  scored.score = true;
  Join(JoinOf(1));
  Join(biased);
  Join(scored);
  Join(JoinOf(4));
  lane.tail = {{.row = 0, .sequence = 1, .position = 2},
               {.row = 1, .sequence = 2, .position = 2},
               {.row = 2, .sequence = 3, .position = 1, .score = true},
               {.row = 3, .sequence = 4, .position = 2}};
  const float logprob = kernels::LogProbability(LogitsOf(lane, 2), 8);
  device().TakeCopies();

  const plan::StepResult result = Run(lane);

  ASSERT_EQ(result.tokens.size(), 3u);
  EXPECT_EQ(result.tokens[0].token, 0);
  EXPECT_EQ(result.tokens[1].token, 70);
  EXPECT_EQ(result.tokens[2].token, 3);
  EXPECT_THAT(TokensOf(4), ElementsAre(3, 5, 8, 3));
  ASSERT_EQ(result.scores.size(), 1u);
  EXPECT_THAT(result.scores[0].logprobs, ElementsAre(logprob));
  const std::vector<size_t> copies = device().TakeCopies();
  ASSERT_FALSE(copies.empty());
  EXPECT_EQ(copies.back(), 2 * kVocabulary * sizeof(float)) << "logits of the host's rows alone";
}

TEST_F(DeviceTailTest, WithoutMemoryOfTheDeviceAnEpochIsNotPrepared) {
  device().FailAllocations();

  EXPECT_EQ(tail_->Prepare(kVocabulary).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace lamina::compute_node
