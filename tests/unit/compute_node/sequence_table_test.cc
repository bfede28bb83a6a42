// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sequence_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::compute_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kVocabulary = 8;

plan::StepPlan Joins(std::vector<plan::SequenceJoin> joins) { return {.joins = std::move(joins)}; }

plan::SequenceJoin Join(plan::SequenceId id, std::vector<TokenId> tokens) {
  const auto prompt = static_cast<uint32_t>(tokens.size());
  return {.id = id, .tokens = std::move(tokens), .prompt_tokens = prompt, .tokens_max = 100};
}

class SequenceTableTest : public ::testing::Test {
 protected:
  absl::Status Apply(const plan::StepPlan& plan) { return table_.Apply(plan, kVocabulary); }

  void ExpectRefused(const plan::StepPlan& plan, const char* words) {
    const absl::Status status = Apply(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  SequenceTable table_;
};

TEST_F(SequenceTableTest, KnowsWhoJoinedAndForgetsWhoLeft) {
  ASSERT_TRUE(Apply(Joins({Join(1, {3, 4}), Join(2, {5})})).ok());
  ASSERT_NE(table_.Find(1), nullptr);
  EXPECT_THAT(table_.Find(1)->tokens, ElementsAre(3, 4));
  EXPECT_FALSE(table_.Find(1)->finished);

  ASSERT_TRUE(Apply({.leaves = {{1}, {77}}}).ok());

  EXPECT_EQ(table_.Find(1), nullptr);
  EXPECT_NE(table_.Find(2), nullptr);
}

TEST_F(SequenceTableTest, KnowsHowManyTokensHaveNoSlotsAnyMore) {
  ASSERT_TRUE(Apply(Joins({Join(1, {3, 4}), Join(2, {5})})).ok());
  ASSERT_TRUE(Apply({.releases = {{.sequence = 1, .tokens = 256}}}).ok());
  // Sequences of other lanes are unknown here.
  ASSERT_TRUE(Apply({.releases = {{.sequence = 77, .tokens = 256}}}).ok());

  ASSERT_TRUE(Apply({.releases = {{.sequence = 1, .tokens = 512}}}).ok());

  EXPECT_EQ(table_.Find(1)->released, 512u);
  EXPECT_EQ(table_.Find(2)->released, 0u);
}

TEST_F(SequenceTableTest, ASequenceMayLeaveAndJoinAgainInOnePlan) {
  ASSERT_TRUE(Apply(Joins({Join(1, {3})})).ok());
  plan::StepPlan plan = Joins({Join(1, {3, 6})});
  plan.leaves = {{1}};

  ASSERT_TRUE(Apply(plan).ok());

  EXPECT_THAT(table_.Find(1)->tokens, ElementsAre(3, 6));
}

TEST_F(SequenceTableTest, TellsAParentOfItsForks) {
  plan::SequenceJoin fork = Join(2, {3, 4});
  fork.parent = 1;

  ASSERT_TRUE(Apply(Joins({Join(1, {3, 4}), fork})).ok());

  EXPECT_THAT(table_.Find(1)->children, ElementsAre(2u));
}

TEST_F(SequenceTableTest, RefusesPlansThatMakeNoSense) {
  ASSERT_TRUE(Apply(Joins({Join(1, {3})})).ok());
  ExpectRefused(Joins({Join(1, {3})}), "joins twice");
  ExpectRefused(Joins({Join(2, {})}), "0 tokens");
  ExpectRefused(Joins({Join(2, {8})}), "token 8");
  ExpectRefused(Joins({Join(2, {-1})}), "token -1");
  plan::SequenceJoin longer = Join(2, {1});
  longer.prompt_tokens = 2;
  ExpectRefused(Joins({longer}), "a prompt of 2");
  plan::SequenceJoin orphan = Join(3, {1});
  orphan.parent = 99;
  ExpectRefused(Joins({orphan}), "unknown parent 99");
}

// --- SampleNext ---

// Allows 0, then 1, then 2, which ends it. Tokens 3 and up fit nowhere.
class CountingState final : public model::GrammarState {
 public:
  absl::Span<const uint32_t> Allowed() override {
    mask_ = 1u << next_;
    return absl::MakeConstSpan(&mask_, 1);
  }
  bool Accept(TokenId token) override {
    const bool fits = token == next_ && !ended();
    next_ += fits ? 1 : 0;
    return fits;
  }
  bool ended() const override { return next_ == 3; }

 private:
  TokenId next_ = 0;
  uint32_t mask_ = 0;
};

// Allows 3, twice at most, and at any time 7, which ends it.
class ThreesState final : public model::GrammarState {
 public:
  absl::Span<const uint32_t> Allowed() override {
    mask_ = (threes_ < 2 ? 1u << 3 : 0u) | 1u << 7;
    return absl::MakeConstSpan(&mask_, 1);
  }
  bool Accept(TokenId token) override {
    const bool fits = !ended_ && (token == 7 || (token == 3 && threes_ < 2));
    ended_ = ended_ || (fits && token == 7);
    threes_ += fits && token == 3 ? 1 : 0;
    return fits;
  }
  bool ended() const override { return ended_; }

 private:
  int threes_ = 0;
  bool ended_ = false;
  uint32_t mask_ = 0;
};

template <typename State>
class GrammarOf final : public model::Grammar {
 public:
  std::unique_ptr<model::GrammarState> Begin() const override { return std::make_unique<State>(); }
  size_t bytes() const override { return 1; }
};

class CountingCompiler final : public model::GrammarCompiler {
 public:
  absl::StatusOr<std::shared_ptr<const model::Grammar>> Compile(const OutputForm& form) override {
    if (form.text == "counting") {
      return std::make_shared<GrammarOf<CountingState>>();
    }
    if (form.text == "threes") {
      return std::make_shared<GrammarOf<ThreesState>>();
    }
    return absl::InvalidArgumentError("only counting and threes are known");
  }
};

absl::StatusOr<std::unique_ptr<model::GrammarCompiler>> CountingGrammars() {
  return std::make_unique<CountingCompiler>();
}

class SampleNextTest : public ::testing::Test {
 protected:
  // Logits whose largest is that of `token`.
  plan::SampledToken Next(TokenId token) {
    std::vector<float> logits(kVocabulary, 0.0f);
    logits[static_cast<size_t>(token)] = 5.0f;
    return SampleNext(logits, sequence_, grammars_, scratch_);
  }

  Sequence sequence_{.join = {.id = 4,
                              .tokens = {1, 2},
                              .prompt_tokens = 2,
                              .sampling = {.logprobs = 1},
                              .tokens_max = 5,
                              .end_tokens = {7}},
                     .tokens = {1, 2}};
  model::GrammarCache grammars_{CountingGrammars, {}};
  kernels::SampleScratch scratch_;
};

TEST_F(SampleNextTest, TakesWhatItsGrammarAllowsAndEndsWithIt) {
  sequence_.join.sampling.form = {OutputForm::Kind::kRegex, "counting"};
  sequence_.join.tokens_min = 100;

  EXPECT_EQ(Next(7).token, 0);
  EXPECT_EQ(Next(7).token, 1);
  const plan::SampledToken last = Next(0);

  EXPECT_EQ(last.token, 2);
  EXPECT_EQ(last.finish, plan::FinishReason::kStop) << "whatever the least length says";
}

// It would have to go on behind its own end.
TEST_F(SampleNextTest, BelowItsLeastLengthItChoosesNoEnd) {
  sequence_.join.tokens_min = 4;

  const plan::SampledToken first = Next(7);
  EXPECT_EQ(first.token, 0) << "the first of the others, which are equal";
  EXPECT_EQ(first.finish, plan::FinishReason::kNone);
  const plan::SampledToken second = Next(7);
  EXPECT_EQ(second.token, 7) << "with it there are four";
  EXPECT_EQ(second.finish, plan::FinishReason::kStop);
}

// The form of bad_words is whole at any time.
TEST_F(SampleNextTest, BelowItsLeastLengthAFormGoesOnWhereItCan) {
  sequence_.join.sampling.form = {OutputForm::Kind::kRegex, "threes"};
  sequence_.join.tokens_min = 100;

  EXPECT_EQ(Next(7).token, 3);
  EXPECT_EQ(Next(7).token, 3);
  const plan::SampledToken last = Next(3);

  EXPECT_EQ(last.token, 7) << "nothing else may come";
  EXPECT_EQ(last.finish, plan::FinishReason::kStop);
}

TEST_F(SampleNextTest, AFormCannotGoOnWithTokensThatTheListHasNot) {
  sequence_.join.sampling.form = {OutputForm::Kind::kRegex, "threes"};
  sequence_.join.sampling.allowed_tokens = {5, 7};
  sequence_.join.tokens_min = 100;

  const plan::SampledToken token = Next(3);

  EXPECT_EQ(token.token, 7);
  EXPECT_EQ(token.finish, plan::FinishReason::kStop);
}

TEST_F(SampleNextTest, AGrammarFollowsTokensThatWereSampledElsewhere) {
  sequence_.join.sampling.form = {OutputForm::Kind::kRegex, "counting"};
  sequence_.tokens = {1, 2, 0};  // As after a preemption, or on another replica.

  EXPECT_EQ(Next(7).token, 1);
  sequence_.tokens.push_back(2);

  EXPECT_EQ(Next(5).finish, plan::FinishReason::kLength) << "nothing may follow";
}

TEST_F(SampleNextTest, AThreadThatFollowsAGrammarBeatsAtEachToken) {
  sequence_.join.sampling.form = {OutputForm::Kind::kRegex, "counting"};
  sequence_.tokens = {1, 2, 0, 1};
  grammars_.Get(sequence_.join.sampling.form).status().IgnoreError();
  ThreadBeat beat;

  EXPECT_TRUE(FollowGrammar(sequence_, grammars_, &beat));

  EXPECT_GE(beat.beats(), 2u);
  sequence_.tokens.push_back(7);
  EXPECT_FALSE(FollowGrammar(sequence_, grammars_, &beat));
}

TEST_F(SampleNextTest, WithoutItsGrammarTheOutputIsCut) {
  sequence_.join.sampling.form = {OutputForm::Kind::kRegex, "other"};

  const plan::SampledToken token = Next(3);

  EXPECT_EQ(token.finish, plan::FinishReason::kLength);
  EXPECT_TRUE(token.outside);
  EXPECT_TRUE(sequence_.finished);
}

// All logits are minus infinity there, so the sampler's token is 0, which may be one that ends.
TEST_F(SampleNextTest, WhereNothingMayComeTheTokenIsOutsideAndNoStop) {
  sequence_.join.sampling.form = {OutputForm::Kind::kRegex, "counting"};
  sequence_.join.sampling.allowed_tokens = {0, 7};
  sequence_.join.end_tokens = {0};
  sequence_.join.tokens_min = 4;  // Else the first of the form would be a stop.

  const plan::SampledToken first = Next(7);
  EXPECT_EQ(first.token, 0);
  EXPECT_FALSE(first.outside);
  EXPECT_EQ(first.finish, plan::FinishReason::kNone);
  const plan::SampledToken second = Next(7);

  EXPECT_EQ(second.token, 0);
  EXPECT_TRUE(second.outside);
  EXPECT_EQ(second.finish, plan::FinishReason::kLength);
}

// The grammar would take it, and the list has it not.
TEST_F(SampleNextTest, ATokenThatTheListHasNotIsOutsideThoughItFits) {
  sequence_.join.sampling.form = {OutputForm::Kind::kRegex, "counting"};
  sequence_.join.sampling.allowed_tokens = {5};

  const plan::SampledToken token = Next(7);

  EXPECT_EQ(token.token, 0);
  EXPECT_TRUE(token.outside);
  EXPECT_EQ(token.finish, plan::FinishReason::kLength);
}

TEST_F(SampleNextTest, AppendsTheTokenAndSaysWhereItStands) {
  const plan::SampledToken token = Next(3);

  EXPECT_EQ(token.sequence, 4u);
  EXPECT_EQ(token.position, 2u);
  EXPECT_EQ(token.token, 3);
  EXPECT_EQ(token.finish, plan::FinishReason::kNone);
  EXPECT_NEAR(token.logprob, -0.0461f, 1e-3f);
  ASSERT_EQ(token.top.size(), 1u);
  EXPECT_EQ(token.top[0].token, 3);
  EXPECT_THAT(sequence_.tokens, ElementsAre(1, 2, 3));
  EXPECT_FALSE(sequence_.finished);
}

TEST_F(SampleNextTest, EndsAtTheLengthLimit) {
  EXPECT_EQ(Next(3).finish, plan::FinishReason::kNone);
  EXPECT_EQ(Next(3).finish, plan::FinishReason::kNone);
  EXPECT_EQ(Next(3).finish, plan::FinishReason::kLength);
  EXPECT_TRUE(sequence_.finished);
}

TEST_F(SampleNextTest, EndsAtAnEndToken) {
  EXPECT_EQ(Next(7).finish, plan::FinishReason::kStop);
  EXPECT_TRUE(sequence_.finished);
}

TEST_F(SampleNextTest, DoesNotEndAtAnEndTokenBeforeTheLeastLength) {
  sequence_.join.tokens_min = 4;

  EXPECT_EQ(Next(7).finish, plan::FinishReason::kNone);  // The third.
  EXPECT_EQ(Next(7).finish, plan::FinishReason::kStop);  // The fourth.
}

TEST_F(SampleNextTest, AnEndTokenAtTheLimitIsAStop) {
  Next(3);
  Next(3);

  EXPECT_EQ(Next(7).finish, plan::FinishReason::kStop);
}

TEST_F(SampleNextTest, PenaltiesSeePromptAndOutput) {
  sequence_.join.sampling.repetition_penalty = 100.0f;
  std::vector<float> logits(kVocabulary, 1.0f);
  logits[2] = 3.0f;  // The prompt's.
  logits[5] = 2.0f;

  EXPECT_EQ(SampleNext(logits, sequence_, grammars_, scratch_).token, 5);
  EXPECT_NE(SampleNext(logits, sequence_, grammars_, scratch_).token, 5);
}

}  // namespace
}  // namespace lamina::compute_node
