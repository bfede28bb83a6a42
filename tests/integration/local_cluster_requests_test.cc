// SPDX-License-Identifier: Apache-2.0
//
// How requests end: by tokens, by text, by length, by their client; and what is refused.

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {
namespace {

using coordinator::GeneratedChoice;
using coordinator::GenerateSpec;
using plan::FinishReason;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The position at which `token` appears first, from `least` on.
size_t FirstIndexOf(const std::vector<TokenId>& tokens, TokenId token, size_t least = 0) {
  return static_cast<size_t>(
      std::find(tokens.begin() + static_cast<std::ptrdiff_t>(least), tokens.end(), token) -
      tokens.begin());
}

std::vector<TokenId> First(const std::vector<TokenId>& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::string TextOf(const std::vector<TokenId>& tokens) {
  return *IdTokenizer(96).Decode(tokens, true);
}

class RequestsTest : public ::testing::Test {
 protected:
  void SetUp() override { Make({}); }

  void Make(LocalClusterOptions options) {
    options.model = SmallModel();
    cluster_ = MakeCluster(options);
    ASSERT_NE(cluster_, nullptr);
  }

  // A request whose tokens vary, and those tokens when nothing ends it early.
  GenerateSpec Spec() const { return Sampled(RandomPrompt(10, 77), 40, 5); }
  std::vector<TokenId> AllTokens() {
    const GenerateResult result = cluster_->Generate(Spec());
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.choices[0].tokens.size(), 40u);
    return result.choices[0].tokens;
  }

  void ExpectNoSlots() {
    const absl::Status status = cluster_->WaitForNoSlots();
    EXPECT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(RequestsTest, EndsWithAnEndTokenOfTheModel) {
  const std::vector<TokenId> tokens = AllTokens();
  const TokenId end = tokens[6];
  const size_t index = FirstIndexOf(tokens, end);
  Make({.end_tokens = {end}});
  GenerateSpec spec = Spec();
  spec.ignore_eos = false;

  const GenerateResult result = cluster_->Generate(spec);

  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.choices[0].finish, FinishReason::kStop);
  EXPECT_EQ(result.choices[0].tokens, First(tokens, index + 1));
  EXPECT_EQ(result.choices[0].text, TextOf(First(tokens, index)));  // Without the end token's.
  spec.ignore_eos = true;
  EXPECT_EQ(cluster_->Generate(spec).choices[0].tokens, tokens);
  ExpectNoSlots();
}

GeneratedChoice FirstOf(const ChoiceResult& choice, size_t count) {
  GeneratedChoice generated;
  for (size_t i = 0; i < count; ++i) {
    generated.tokens.push_back({.token = choice.tokens[i], .logprob = choice.logprobs[i]});
  }
  return generated;
}

// What a coordinator has generated comes with the request after a restart.
TEST_F(RequestsTest, GoesOnBehindItsFirstTokensAsIfItHadNotBeenInterrupted) {
  const GenerateSpec whole[] = {Greedy(RandomPrompt(10, 77), 40), Spec(),
                                Sampled(RandomPrompt(150, 78), 40, 6)};
  for (const GenerateSpec& spec : whole) {
    const GenerateResult expected = cluster_->Generate(spec);
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    const ChoiceResult& choice = expected.choices[0];
    for (const size_t count : {size_t{1}, size_t{17}, size_t{39}}) {
      SCOPED_TRACE(absl::StrCat("behind ", count, " tokens"));
      GenerateSpec rest = spec;
      rest.generated.push_back(FirstOf(choice, count));

      const GenerateResult found = cluster_->Generate(rest);

      ASSERT_TRUE(found.status.ok()) << found.status;
      ExpectSameChoice(found.choices[0], choice);
    }
  }
  ExpectNoSlots();
}

TEST_F(RequestsTest, ChoicesGoOnBehindDifferentNumbersOfTokens) {
  GenerateSpec spec = Sampled(RandomPrompt(50, 79), 40, 6);
  spec.choices = 3;
  const GenerateResult expected = cluster_->Generate(spec);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  for (size_t i = 0; i < 3; ++i) {
    const ChoiceResult& choice = expected.choices[i];
    spec.generated.push_back(FirstOf(choice, i == 1 ? choice.tokens.size() : 13 * i));
  }

  const GenerateResult found = cluster_->Generate(spec);

  ASSERT_TRUE(found.status.ok()) << found.status;
  for (size_t i = 0; i < 3; ++i) {
    ExpectSameChoice(found.choices[i], expected.choices[i]);
  }
  ExpectNoSlots();
}

TEST_F(RequestsTest, EndsWithAStopTokenOfTheRequest) {
  const std::vector<TokenId> tokens = AllTokens();
  for (const size_t at : {size_t{0}, size_t{1}, size_t{9}}) {
    GenerateSpec spec = Spec();
    spec.stop_tokens = {tokens[at]};
    const size_t index = FirstIndexOf(tokens, tokens[at]);

    const GenerateResult result = cluster_->Generate(spec);

    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.choices[0].finish, FinishReason::kStop);
    EXPECT_EQ(result.choices[0].tokens, First(tokens, index + 1));
    EXPECT_EQ(result.choices[0].text, TextOf(First(tokens, index)));
  }
}

// The end is not chosen before so many have come: what is in its place goes on as if there were
// none.
TEST_F(RequestsTest, DoesNotEndBeforeMinTokens) {
  const std::vector<TokenId> tokens = AllTokens();
  const TokenId end = tokens[3];
  const size_t first = FirstIndexOf(tokens, end, 0);
  for (uint32_t least = 1; least <= 40; ++least) {
    SCOPED_TRACE(least);
    GenerateSpec spec = Spec();
    spec.stop_tokens = {end};
    spec.min_tokens = least;

    const GenerateResult result = cluster_->Generate(spec);

    ASSERT_TRUE(result.status.ok()) << result.status;
    const std::vector<TokenId>& made = result.choices[0].tokens;
    const bool stopped = result.choices[0].finish == FinishReason::kStop;
    ASSERT_GE(made.size(), least + (stopped ? 1 : 0));
    EXPECT_EQ(First(made, first), First(tokens, first));
    EXPECT_EQ(FirstIndexOf(made, end, 0), stopped ? made.size() - 1 : made.size());
    EXPECT_TRUE(stopped || made.size() == 40) << made.size();
    EXPECT_EQ(result.choices[0].text, TextOf(First(made, made.size() - (stopped ? 1 : 0))));
    if (least <= first) {
      EXPECT_EQ(made, First(tokens, first + 1));
    }
  }
}

TEST_F(RequestsTest, EndsAtAStopStringAcrossTokens) {
  const std::vector<TokenId> tokens = AllTokens();
  const std::string text = TextOf(tokens);
  for (const size_t at : {size_t{1}, size_t{8}, size_t{30}}) {
    const std::string stop = TextOf({tokens[at], tokens[at + 1]}) + " ";
    GenerateSpec spec = Spec();
    spec.stop = {"no such text", stop};

    const GenerateResult result = cluster_->Generate(spec);

    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.choices[0].finish, FinishReason::kStop);
    EXPECT_EQ(result.choices[0].text, text.substr(0, text.find(stop)));
    EXPECT_LT(result.choices[0].tokens.size(), tokens.size());
  }
  ExpectNoSlots();
}

TEST_F(RequestsTest, ShowsHeldBackTextWhenNoStopStringCame) {
  const std::vector<TokenId> tokens = AllTokens();
  GenerateSpec spec = Spec();
  spec.stop = {TextOf({tokens.back()}) + " and more"};  // Its beginning is the text's end.

  const GenerateResult result = cluster_->Generate(spec);

  EXPECT_EQ(result.choices[0].text, TextOf(tokens));
  EXPECT_EQ(result.choices[0].finish, FinishReason::kLength);
}

TEST_F(RequestsTest, EndsAtMaxTokensAndAtTheSequenceLimit) {
  for (const uint32_t max_tokens : {1u, 2u, 3u, 17u}) {
    const GenerateResult result = cluster_->Generate(Greedy(RandomPrompt(5, 1), max_tokens));
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.choices[0].tokens.size(), max_tokens);
    EXPECT_EQ(result.choices[0].finish, FinishReason::kLength);
    EXPECT_EQ(result.choices[0].usage.prompt_tokens, 5u);
    EXPECT_EQ(result.choices[0].usage.completion_tokens, max_tokens);
  }
  for (const size_t prompt : {size_t{250}, size_t{255}}) {  // The context has 256.
    const GenerateResult result = cluster_->Generate(Greedy(RandomPrompt(prompt, 1), 100));
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.choices[0].tokens.size(), 256 - prompt);
    EXPECT_EQ(result.choices[0].finish, FinishReason::kLength);
  }
  ExpectNoSlots();
}

TEST_F(RequestsTest, RefusesAPromptBeyondTheLimitWithBothNumbers) {
  const GenerateResult result = cluster_->Generate(Greedy(RandomPrompt(256, 1), 4));

  EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status.message()), AllOf(HasSubstr("256"), HasSubstr("255")));
  EXPECT_TRUE(cluster_->Generate(Greedy(RandomPrompt(255, 1), 4)).status.ok());
  EXPECT_TRUE(cluster_->Score(RandomPrompt(256, 1)).status.ok());
  EXPECT_EQ(cluster_->Score(RandomPrompt(257, 1)).status.code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RequestsTest, RefusesBadRequestsAndGoesOn) {
  const std::vector<std::pair<GenerateSpec, std::string>> cases = {
      {Greedy({}, 4), "empty"},
      {Greedy({1, 96}, 4), "96"},
      {Greedy({-1}, 4), "-1"},
      {{.prompt = {1}, .sampling = {.temperature = -1.0f}}, "temperature"},
      {{.prompt = {1}, .stop = {""}}, "stop"},
      {{.prompt = {1}, .stop_tokens = {1000}}, "1000"},
      {{.prompt = {1}, .choices = 0}, "n is 0"},
      {{.prompt = {1}, .choices = 129}, "128"},
  };
  for (const auto& [spec, words] : cases) {
    const GenerateResult result = cluster_->Generate(spec);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr(words));
  }
  EXPECT_TRUE(cluster_->Generate(Greedy({1}, 4)).status.ok());
}

TEST_F(RequestsTest, ALongPromptTellsHowFarItIs) {
  Make({.chunk_tokens = 64});

  const GenerateResult result = cluster_->Generate(Greedy(RandomPrompt(200, 1), 4));

  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.progress, (std::vector<uint32_t>{64, 128, 192}));
}

TEST_F(RequestsTest, ScoresOfOneTokenAreEmpty) {
  const GenerateResult result = cluster_->Score({7});

  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_TRUE(result.scores.empty());
  ExpectNoSlots();
}

TEST_F(RequestsTest, RefusesBeyondTheQueueAndSaysTheLimit) {
  Make({.running_max = 2, .waiting_max = 3});
  std::vector<GenerateSpec> specs(30, Greedy(RandomPrompt(20, 1), 60));

  const std::vector<GenerateResult> results = cluster_->GenerateMany(specs);

  size_t refused = 0;
  for (const GenerateResult& result : results) {
    if (!result.status.ok()) {
      ++refused;
      EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(std::string(result.status.message()), HasSubstr(" 3 "));
    }
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GE(results.size() - refused, 3u);
  EXPECT_TRUE(cluster_->Generate(Greedy({1}, 4)).status.ok());
  ExpectNoSlots();
}

// A request of many choices is refused as a whole.
TEST_F(RequestsTest, RefusesChoicesBeyondTheQueueTogether) {
  Make({.running_max = 2, .waiting_max = 3});
  GenerateSpec spec = Greedy(RandomPrompt(20, 1), 60);
  spec.choices = 3;

  const std::vector<GenerateResult> results =
      cluster_->GenerateMany(std::vector<GenerateSpec>(8, spec));

  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kResourceExhausted) << results[1].status;
  EXPECT_TRUE(cluster_->Generate(Greedy({1}, 4)).status.ok());
  EXPECT_EQ(cluster_->engine().GetStatus().scheduler.waiting, 0u);
  ExpectNoSlots();
}

// Who is told to try again would do so for ever.
TEST_F(RequestsTest, ChoicesThatTheQueueNeverTakesAreNotToBeTriedAgain) {
  Make({.running_max = 2, .waiting_max = 3});
  GenerateSpec spec = Greedy(RandomPrompt(20, 1), 10);
  spec.choices = 4;

  const GenerateResult result = cluster_->Generate(spec);

  EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status.message()), HasSubstr("4 choices"));
  EXPECT_THAT(std::string(result.status.message()), HasSubstr("limits.waiting_max"));
  spec.choices = 3;
  EXPECT_TRUE(cluster_->Generate(spec).status.ok());
  ExpectNoSlots();
}

TEST_F(RequestsTest, RefusesARequestIdInUse) {
  GenerateSpec spec = Greedy(RandomPrompt(20, 1), 200);
  spec.request_id = "mine";
  const std::shared_ptr<LocalRequest> first = cluster_->Start(spec);

  const GenerateResult second = cluster_->Generate(spec);

  EXPECT_EQ(second.status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(first->Wait().status.ok());
  EXPECT_TRUE(cluster_->Generate(spec).status.ok());  // Free again.
}

class CancelTest : public RequestsTest, public ::testing::WithParamInterface<uint32_t> {
 protected:
  void SetUp() override {
    Make({.memory_nodes = 2, .slots = 512, .lanes = GetParam(), .chunk_tokens = 32});
  }
};

TEST_P(CancelTest, FreesSlotsEverywhereAndLeavesOthersAlone) {
  const GenerateSpec kept = Sampled(RandomPrompt(30, 1), 200, 3);
  const GenerateResult alone = cluster_->Generate(kept);
  std::vector<std::shared_ptr<LocalRequest>> cancelled;
  for (uint32_t i = 0; i < 8; ++i) {
    GenerateSpec spec = Greedy(RandomPrompt(1 + 25 * i, i), 50);
    spec.choices = 1 + i % 3;
    cancelled.push_back(cluster_->Start(spec));
  }
  const std::shared_ptr<LocalRequest> other = cluster_->Start(kept);
  for (size_t i = 0; i < cancelled.size(); ++i) {
    if (i % 2 == 0) {  // The others wait, or are in prefill.
      cancelled[i]->WaitForTokens(i);
    }
    cluster_->Cancel(*cancelled[i]);
  }

  for (const std::shared_ptr<LocalRequest>& request : cancelled) {
    const GenerateResult result = request->Wait();
    EXPECT_TRUE(result.status.ok() || absl::IsCancelled(result.status)) << result.status;
  }
  ExpectSame({other->Wait()}, {alone});
  ExpectNoSlots();
  EXPECT_EQ(cluster_->engine().GetStatus().scheduler.running, 0u);
}

TEST_P(CancelTest, WorksByIdAndSaysWhenThereIsNone) {
  GenerateSpec spec = Greedy(RandomPrompt(30, 1), 220);
  spec.request_id = "long";
  const std::shared_ptr<LocalRequest> request = cluster_->Start(spec);
  request->WaitForTokens(1);
  std::vector<absl::Status> answers;
  const auto keep = [&answers](const absl::Status& status) { answers.push_back(status); };

  cluster_->engine().CancelById("long", keep);
  cluster_->engine().CancelById("long", keep);
  EXPECT_EQ(request->Wait().status.code(), absl::StatusCode::kCancelled);
  cluster_->engine().GetStatus();  // Both have been answered.

  ASSERT_EQ(answers.size(), 2u);
  EXPECT_TRUE(answers[0].ok());
  EXPECT_EQ(answers[1].code(), absl::StatusCode::kNotFound);
  ExpectNoSlots();
}

INSTANTIATE_TEST_SUITE_P(Lanes, CancelTest, ::testing::Values(1u, 2u));

TEST_F(RequestsTest, DrainingLetsRunningRequestsFinishAndRefusesNewOnes) {
  const std::shared_ptr<LocalRequest> running = cluster_->Start(Spec());
  running->WaitForTokens(1);
  std::atomic<bool> drained = false;

  cluster_->engine().Drain([&drained] { drained = true; });
  const GenerateResult late = cluster_->Generate(Spec());

  EXPECT_EQ(late.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(running->Wait().choices[0].tokens.size(), 40u);
  cluster_->engine().GetStatus();
  EXPECT_EQ(cluster_->engine().GetStatus().state, "draining");
  EXPECT_TRUE(drained);
}

// Requests come, are cancelled, fork, stop, are preempted; what ends well is right.
TEST_F(RequestsTest, ChurnLeavesNothingBehind) {
  const GenerateSpec base = Spec();
  const std::vector<TokenId> tokens = AllTokens();
  Make({.memory_nodes = 2, .slots = 400, .lanes = 2, .chunk_tokens = 16});
  Prng random(99);
  std::vector<std::pair<std::shared_ptr<LocalRequest>, uint32_t>> running;
  for (uint32_t i = 0; i < 150; ++i) {
    GenerateSpec spec = base;
    spec.max_tokens = 1 + static_cast<uint32_t>(random.Below(40));
    spec.choices = 1 + static_cast<uint32_t>(random.Below(3));
    running.emplace_back(cluster_->Start(spec), spec.max_tokens);
    if (random.Chance(0.3)) {
      cluster_->Cancel(*running[random.Below(running.size())].first);
    }
    if (random.Chance(0.5)) {
      running[random.Below(running.size())].first->WaitForTokens(1 + random.Below(10));
    }
  }
  size_t finished = 0;
  for (const auto& [request, max_tokens] : running) {
    const GenerateResult result = request->Wait();
    if (result.status.ok()) {
      ++finished;
      EXPECT_EQ(result.choices[0].tokens, First(tokens, max_tokens));
    } else {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled) << result.status;
    }
  }
  EXPECT_GT(finished, 50u);
  ExpectNoSlots();
}

}  // namespace
}  // namespace lamina::test_support
