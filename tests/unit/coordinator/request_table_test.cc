// SPDX-License-Identifier: Apache-2.0
#include "coordinator/request_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizer/vocabulary_tokenizer.h"
#include "tests/unit/coordinator/request_table_fixture.h"

namespace lamina::coordinator {
namespace {

using plan::FinishReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(RequestTableTest, AdmitMakesASequenceForEachChoice) {
  const auto sequences = Admit({.prompt = {1, 2, 3},
                                .sampling = {.seed = 40},
                                .max_tokens = 10,
                                .min_tokens = 4,
                                .stop_tokens = {7},
                                .choices = 3,
                                .priority = 5});

  ASSERT_EQ(sequences.size(), 3u);
  EXPECT_EQ(sequences[0].fork_of, 0u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sequences[i].prompt, (std::vector<TokenId>{1, 2, 3}));
    EXPECT_EQ(sequences[i].sampling.seed, 40 + i);
    EXPECT_EQ(sequences[i].tokens_max, 13u);
    EXPECT_EQ(sequences[i].tokens_min, 8u) << "four tokens, and the one that ends it";
    EXPECT_EQ(sequences[i].priority, 5);
    EXPECT_THAT(sequences[i].end_tokens, ElementsAre(7, 999, 998));
    EXPECT_EQ(sequences[i].fork_of, i == 0 ? 0 : sequences[0].id);
  }
  EXPECT_EQ(table_.KeyOf(sink_->request_id), 1u);
}

TEST_F(RequestTableTest, AdmitKeepsLengthsWithinTheLimit) {
  EXPECT_EQ(Admit({.prompt = {1}}, 1)[0].tokens_max, kSequenceTokensMax);
  EXPECT_EQ(Admit({.prompt = {1}, .max_tokens = UINT32_MAX}, 2)[0].tokens_max, kSequenceTokensMax);
  EXPECT_GT(Admit({.prompt = {1}, .min_tokens = UINT32_MAX}, 3)[0].tokens_min, kSequenceTokensMax);
}

TEST_F(RequestTableTest, IgnoringTheEndTokensLeavesThoseOfTheRequest) {
  const auto sequences = Admit({.prompt = {1}, .stop_tokens = {7}, .ignore_eos = true});

  EXPECT_THAT(sequences[0].end_tokens, ElementsAre(7));
}

TEST_F(RequestTableTest, AdmitRefusesWithTheFieldAndItsBound) {
  Admit({.request_id = "used", .prompt = {1}});
  const auto expect = [&](const GenerateSpec& spec, absl::StatusCode code, const char* words) {
    const absl::Status status = Refusal(spec);
    EXPECT_EQ(status.code(), code) << words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  const auto kBad = absl::StatusCode::kInvalidArgument;
  expect({.prompt = {}}, kBad, "empty");
  expect({.prompt = std::vector<TokenId>(100, 1)}, kBad,
         "100 tokens; at most 99 fit: this model's maximum context length is 100 tokens "
         "(limits.sequence_tokens_max)");
  expect({.prompt = std::vector<TokenId>(101, 1), .score = true}, kBad, "at most 100");
  expect({.prompt = {1000}}, kBad, "token 1000");
  expect({.prompt = {-5}}, kBad, "token -5");
  expect({.prompt = {1}, .stop_tokens = {1000}}, kBad, "token 1000");
  expect({.prompt = {1}, .sampling = {.top_p = 2.0f}}, kBad, "top_p");
  expect({.prompt = {1}, .sampling = {.logit_bias = {{999, 1.0f}, {1000, 1.0f}}}}, kBad,
         "logit_bias: token 1000 is not in the vocabulary of 1000 tokens");
  expect({.prompt = {1}, .sampling = {.allowed_tokens = {999, -1}}}, kBad,
         "allowed_tokens: token -1");
  expect({.prompt = {1}, .sampling = {.allowed_tokens = {2}}, .min_tokens = 1, .stop_tokens = {2}},
         kBad, "allowed_tokens are all tokens that end the answer");
  expect({.prompt = {1}, .sampling = {.allowed_tokens = std::vector<TokenId>(1025, 1)}}, kBad,
         "allowed_tokens has 1025 entries");
  const auto form = [](std::string text) {
    return SamplingParams{.form = {OutputForm::Kind::kRegex, std::move(text)}};
  };
  expect({.prompt = {1}, .sampling = form(std::string(65537, 'a'))}, kBad, "65537 bytes");
  expect({.prompt = {1}, .sampling = form(std::string(65, '('))}, kBad, "65 deep");
  expect({.prompt = {1}, .stop = {""}}, kBad, "1 to 256");
  expect({.prompt = {1}, .stop = {std::string(257, 'x')}}, kBad, "257 bytes");
  expect({.prompt = {1}, .stop = std::vector<std::string>(17, "x")}, kBad, "at most 16");
  expect({.prompt = {1}, .stop_tokens = std::vector<TokenId>(129, 1)}, kBad,
         "stop_tokens has 129 tokens; at most 128");
  expect({.prompt = {1}, .choices = 0}, kBad, "[1, 128]");
  expect({.prompt = {1}, .choices = 129}, kBad, "[1, 128]");
  expect({.request_id = std::string(257, 'x'), .prompt = {1}}, kBad, "at most 256");
  expect({.request_id = "used", .prompt = {1}}, absl::StatusCode::kAlreadyExists, "used");
}

// Whoever knows it may cancel the request.
TEST_F(RequestTableTest, AnIdThatIsMadeCannotBeGuessed) {
  Admit({.prompt = {1}}, 1);
  const std::string first = sink_->request_id;
  Admit({.prompt = {1}}, 2);

  EXPECT_THAT(first, ::testing::MatchesRegex("req-[0-9a-f]+"));
  EXPECT_EQ(first.size(), 28u);
  EXPECT_EQ(sink_->request_id.size(), 28u);
  EXPECT_NE(first.substr(0, 16), sink_->request_id.substr(0, 16));
  EXPECT_NE(first.substr(16), sink_->request_id.substr(16));
  EXPECT_EQ(table_.KeyOf(first), 1u);
  EXPECT_EQ(table_.KeyOf(sink_->request_id), 2u);
}

TEST(TracedIdTest, AnIdThatWasMadeIsCutAndOneOfAClientIsNot) {
  const std::string made = MakeRequestId();
  EXPECT_EQ(TracedId(made), made.substr(0, 12));
  EXPECT_EQ(TracedId("chatcmpl-0123456789abcdef0123456789abcdef-1"), "chatcmpl-01234567");
  EXPECT_EQ(TracedId("follow-me"), "follow-me");
  EXPECT_EQ(TracedId("req-17"), "req-17");
}

TEST_F(RequestTableTest, APromptIsCountedWithItsFirstToken) {
  const plan::SequenceId id = Admit({.prompt = {1, 2, 3}})[0].id;
  EXPECT_EQ(table_.metrics().prompt_tokens, 0u);

  clock_.now += Seconds(2);
  Token(id, 4);
  Token(id, 5);

  EXPECT_EQ(table_.metrics().prompt_tokens, 3u) << "long before the request ends";
  const auto times = table_.metrics().time_to_first_token.Take();
  EXPECT_EQ(times.count, 1u);
  EXPECT_EQ(times.sum, 2.0);
}

TEST_F(RequestTableTest, DeliversTextAndTokensAndTheEnd) {
  const plan::SequenceId id = Admit({.prompt = {1, 2}})[0].id;

  clock_.now += Millis(100);
  EXPECT_THAT(Token(id, 10), IsEmpty());
  clock_.now += Millis(30);
  EXPECT_THAT(Token(id, 11, FinishReason::kLength), IsEmpty());

  ASSERT_EQ(sink_->outputs.size(), 2u);
  EXPECT_EQ(sink_->text, " 10 11");
  EXPECT_EQ(sink_->outputs[0].finish, FinishReason::kNone);
  EXPECT_EQ(sink_->outputs[1].finish, FinishReason::kLength);
  const ChoiceUsage& usage = sink_->outputs[1].usage;
  EXPECT_EQ(usage.prompt_tokens, 2u);
  EXPECT_EQ(usage.completion_tokens, 2u);
  EXPECT_NEAR(usage.ttft_ms, 100, 0.01);
  EXPECT_NEAR(usage.tpot_ms, 30, 0.01);
  EXPECT_THAT(sink_->done, ElementsAre(absl::OkStatus()));
  EXPECT_TRUE(table_.empty());
  EXPECT_EQ(table_.finished(), 1u);
  EXPECT_EQ(table_.tokens(), 2u);
}

// Every token is a word behind a space, and a text's first space is dropped.
class WordTokenizer final : public model::VocabularyTokenizer {
 public:
  WordTokenizer() : VocabularyTokenizer(Make()) {}

 private:
  static model::TokenizerSettings Make() {
    model::TokenizerSettings settings;
    settings.strip_first_space = true;
    EXPECT_TRUE(settings.vocabulary.Put(0, {"<s>", "<s>", true}).ok());
    EXPECT_TRUE(settings.vocabulary.Put(1, {"_is", " is", false}).ok());
    EXPECT_TRUE(settings.vocabulary.Put(2, {"_Paris", " Paris", false}).ok());
    return settings;
  }

  absl::Status EncodeText(absl::string_view, bool, std::vector<TokenId>*) const override {
    return absl::UnimplementedError("not asked for");
  }
};

TEST(RequestTableTextTest, AnAnswerGoesOnBehindItsPrompt) {
  const WordTokenizer tokenizer;
  const ManualClock clock;
  for (const std::vector<TokenId>& prompt : {std::vector<TokenId>{0, 1}, {0}}) {
    RequestTable table(tokenizer, clock, kSequenceTokensMax);
    const auto sink = std::make_shared<RecordingSink>();
    const auto sequences = table.Admit({.prompt = prompt}, 1, sink);
    ASSERT_TRUE(sequences.ok()) << sequences.status();
    const plan::SequenceId id = sequences->front().id;
    core::Events events;
    events.tokens.push_back({.sequence = id, .token = {.sequence = id, .token = 2}});

    EXPECT_THAT(table.Deliver(events), IsEmpty());

    EXPECT_EQ(sink->text, prompt.size() == 2 ? " Paris" : "Paris");
  }
}

TEST_F(RequestTableTest, AnEndTokenIsATokenOfTheAnswerButNotOfItsText) {
  const plan::SequenceId id = Admit({.prompt = {1}})[0].id;

  Token(id, 10);
  Token(id, 999, FinishReason::kStop);

  EXPECT_EQ(sink_->text, " 10");
  EXPECT_EQ(sink_->outputs.back().tokens[0].token, 999);
}

// Nothing that the form of the output allows could come.
TEST_F(RequestTableTest, ATokenOutsideTheFormEndsTheAnswerAndIsNoPartOfIt) {
  const plan::SequenceId id = Admit({.prompt = {1, 2}})[0].id;
  Token(id, 10);
  core::Events events;
  events.tokens.push_back(
      {.sequence = id,
       .token = {.sequence = id, .token = 11, .finish = FinishReason::kLength, .outside = true}});
  events.finished.push_back({.sequence = id, .reason = FinishReason::kLength});

  table_.Deliver(events);

  EXPECT_EQ(sink_->text, " 10");
  const ChoiceOutput& last = sink_->outputs.back();
  EXPECT_THAT(last.tokens, IsEmpty());
  EXPECT_EQ(last.finish, FinishReason::kLength);
  EXPECT_EQ(last.usage.completion_tokens, 1u);
  EXPECT_EQ(table_.tokens(), 1u);
  EXPECT_EQ(table_.metrics().prompt_tokens, 2u);
  EXPECT_THAT(sink_->done, ElementsAre(absl::OkStatus()));
}

TEST_F(RequestTableTest, AnAnswerOfNoTokensHasItsUsage) {
  const plan::SequenceId id = Admit({.prompt = {1, 2}})[0].id;
  core::Events events;
  events.tokens.push_back(
      {.sequence = id,
       .cached_tokens = 1,
       .token = {.sequence = id, .finish = FinishReason::kLength, .outside = true}});
  events.finished.push_back({.sequence = id, .reason = FinishReason::kLength});

  table_.Deliver(events);

  EXPECT_EQ(sink_->text, "");
  EXPECT_EQ(sink_->outputs.back().usage.completion_tokens, 0u);
  EXPECT_EQ(sink_->outputs.back().usage.cached_tokens, 1u);
  EXPECT_EQ(table_.metrics().prompt_tokens, 2u);
}

TEST_F(RequestTableTest, AStopStringEndsTheSequenceAndTellsTheScheduler) {
  const plan::SequenceId id = Admit({.prompt = {1}, .stop = {"0 11"}})[0].id;

  EXPECT_THAT(Token(id, 10), IsEmpty());
  EXPECT_EQ(sink_->text, " 1");
  EXPECT_THAT(Token(id, 11), ElementsAre(id));

  EXPECT_EQ(sink_->text, " 1");
  EXPECT_EQ(sink_->outputs.back().finish, FinishReason::kStop);
  EXPECT_EQ(sink_->outputs.back().stop, "0 11");
  EXPECT_THAT(sink_->done, ElementsAre(absl::OkStatus()));
  EXPECT_THAT(Token(id, 12), IsEmpty());  // Planned ahead: nobody hears of it.
  EXPECT_EQ(sink_->text, " 1");
}

TEST_F(RequestTableTest, AStopStringEndsNothingBeforeMinTokens) {
  const plan::SequenceId id =
      Admit({.prompt = {1}, .min_tokens = 3, .stop = {" 10", "2 13"}})[0].id;

  for (const TokenId token : {10, 11, 12}) {
    EXPECT_THAT(Token(id, token), IsEmpty()) << token;
  }
  EXPECT_EQ(sink_->text, " 10 11 1") << "what may begin a stop is held back";
  EXPECT_THAT(Token(id, 13), ElementsAre(id)) << "it ends behind the third token";

  EXPECT_EQ(sink_->text, " 10 11 1");
  EXPECT_EQ(sink_->outputs.back().finish, FinishReason::kStop);
  EXPECT_EQ(sink_->outputs.back().usage.completion_tokens, 4u);
}

TEST_F(RequestTableTest, EndsWithTheLastChoice) {
  const auto sequences = Admit({.prompt = {1}, .choices = 2});

  Token(sequences[1].id, 20, FinishReason::kLength);
  EXPECT_THAT(sink_->done, IsEmpty());
  Token(sequences[0].id, 10, FinishReason::kLength);

  EXPECT_EQ(sink_->outputs[0].index, 1u);
  EXPECT_EQ(sink_->outputs[1].index, 0u);
  EXPECT_THAT(sink_->done, ElementsAre(absl::OkStatus()));
}

TEST_F(RequestTableTest, AFailedChoiceEndsTheRequestAndItsOtherSequences) {
  const auto sequences = Admit({.prompt = {1}, .choices = 3});
  Token(sequences[0].id, 10, FinishReason::kLength);
  core::Events events;
  events.finished.push_back({.sequence = sequences[1].id,
                             .reason = FinishReason::kError,
                             .status = absl::UnavailableError("node gone")});

  const std::vector<plan::SequenceId> rest = table_.Deliver(events);

  EXPECT_THAT(rest, ::testing::Contains(sequences[2].id));
  EXPECT_THAT(sink_->done, ElementsAre(absl::UnavailableError("node gone")));
  EXPECT_EQ(table_.failed(), 1u);
  EXPECT_TRUE(table_.empty());
}

// All choices fail at once: the client hears of it once.
TEST_F(RequestTableTest, ChoicesThatFailTogetherEndTheRequestOnce) {
  const auto sequences = Admit({.prompt = {1}, .choices = 3});
  core::Events events;
  for (const core::SequenceRequest& sequence : sequences) {
    events.finished.push_back({.sequence = sequence.id,
                               .reason = FinishReason::kError,
                               .status = absl::UnavailableError("gone")});
  }

  table_.Deliver(events);

  EXPECT_EQ(sink_->done.size(), 1u);
  EXPECT_EQ(table_.failed(), 1u);
}

TEST_F(RequestTableTest, EndReturnsWhatStillRunsAndFreesTheId) {
  const auto sequences = Admit({.request_id = "mine", .prompt = {1}, .choices = 3});
  Token(sequences[0].id, 10, FinishReason::kLength);

  EXPECT_THAT(table_.End(1, absl::CancelledError("by client")),
              ElementsAre(sequences[1].id, sequences[2].id));

  EXPECT_THAT(sink_->done, ElementsAre(absl::CancelledError("by client")));
  EXPECT_EQ(table_.failed(), 0u) << "nothing failed";
  EXPECT_EQ(table_.metrics().aborted, 2u) << "choices, as those that ended well are counted";
  EXPECT_EQ(table_.metrics().reached_length, 1u);
  EXPECT_EQ(table_.KeyOf("mine"), 0u);
  EXPECT_THAT(table_.End(1, absl::OkStatus()), IsEmpty());
  EXPECT_EQ(sink_->done.size(), 1u);
}

// The scheduler refuses some once they are in the table.
TEST_F(RequestTableTest, WhatIsRefusedForWhatItAsksHasNotFailed) {
  uint64_t key = 0;
  for (const absl::Status& status :
       {absl::InvalidArgumentError("too long"), absl::UnimplementedError("no beams here"),
        absl::ResourceExhaustedError("queue full")}) {
    Admit({.prompt = {1}}, ++key);
    table_.End(key, status);
    EXPECT_EQ(table_.metrics().failures(status.code()), 1u) << status;
  }
  EXPECT_EQ(table_.failed(), 0u);
  Admit({.prompt = {1}}, ++key);
  table_.End(key, absl::UnavailableError("gone"));
  EXPECT_EQ(table_.failed(), 1u);
}

TEST_F(RequestTableTest, AStopTokenIsShownWhereThatWasAskedFor) {
  for (const bool shown : {false, true}) {
    sink_->text.clear();
    const plan::SequenceId id =
        Admit({.prompt = {1}, .stop_tokens = {7}, .include_stop = shown})[0].id;
    Token(id, 7, FinishReason::kStop);
    EXPECT_EQ(!sink_->text.empty(), shown);
    const plan::SequenceId other =
        Admit({.prompt = {1}, .stop_tokens = {7}, .include_stop = shown})[0].id;
    sink_->text.clear();
    Token(other, 999, FinishReason::kStop);
    EXPECT_EQ(sink_->text, "") << "the model's own end is no stop of the client's";
  }
}

TEST_F(RequestTableTest, ScoresGoOutBeforeTheEnd) {
  const plan::SequenceId id = Admit({.prompt = {1, 2, 3}, .score = true})[0].id;
  core::Events events;
  events.scores.push_back({.sequence = id, .logprobs = {-1.0f, -2.0f}});
  events.finished.push_back({.sequence = id, .reason = FinishReason::kLength});

  table_.Deliver(events);

  EXPECT_THAT(sink_->scores, ElementsAre(-1.0f, -2.0f));
  EXPECT_THAT(sink_->done, ElementsAre(absl::OkStatus()));
  // The completion that it may be part of is a request of its own.
  EXPECT_EQ(table_.metrics().scored, 1u);
  EXPECT_EQ(table_.metrics().prompt_tokens, 3u);
  EXPECT_EQ(table_.metrics().reached_length, 0u);
  EXPECT_EQ(table_.metrics().prompt_tokens_per_request.Take().count, 0u);
  EXPECT_EQ(table_.metrics().tokens_per_request.Take().count, 0u);
}

TEST_F(RequestTableTest, CountsPreemptionsAndTellsProgress) {
  const plan::SequenceId id = Admit({.prompt = {1, 2, 3}})[0].id;
  core::Events events;
  events.preempted = {id, 77};

  table_.Deliver(events);
  table_.Progress(id, 2);
  table_.Progress(77, 5);
  Token(id, 10, FinishReason::kLength);

  EXPECT_EQ(sink_->outputs.back().usage.preemptions, 1u);
  EXPECT_THAT(sink_->progress, ElementsAre(2u));
}

TEST_F(RequestTableTest, AnEndedRequestLeavesItsTimesAndCountsAndNoText) {
  std::vector<RequestRecord> ended;
  table_.SetOnEnd([&ended](const RequestRecord& record) { ended.push_back(record); });
  const auto sequences = Admit({.request_id = "cmpl-1",
                                .followed_id = "follow-me",
                                .caller = TraceContext{.trace_id = "t", .span_id = "s"},
                                .prompt = {1, 2, 3},
                                .max_tokens = 2});
  EXPECT_EQ(table_.FollowedId(sequences[0].id), "follow-me");
  const Nanos arrived = clock_.now;
  clock_.now += Seconds(1);
  table_.Started(sequences[0].id);
  clock_.now += Seconds(1);
  Token(sequences[0].id, 5);
  clock_.now += Seconds(1);
  Token(sequences[0].id, 6, FinishReason::kLength);

  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].followed_id, "follow-me");
  EXPECT_EQ(ended[0].id, "cmpl-1");
  EXPECT_EQ(ended[0].caller->trace_id, "t");
  EXPECT_EQ(ended[0].prompt_tokens, 3u);
  EXPECT_EQ(ended[0].completion_tokens, 2u);
  EXPECT_EQ(ended[0].arrived, arrived);
  EXPECT_EQ(ended[0].started, arrived + Seconds(1));
  EXPECT_EQ(ended[0].first_token, arrived + Seconds(2));
  EXPECT_EQ(ended[0].ended, arrived + Seconds(3));
  EXPECT_TRUE(ended[0].status.ok());
  EXPECT_EQ(table_.FollowedId(sequences[0].id), "");
}

TEST_F(RequestTableTest, ARequestWithoutANameIsFollowedByItsId) {
  std::vector<RequestRecord> ended;
  table_.SetOnEnd([&ended](const RequestRecord& record) { ended.push_back(record); });
  const auto sequences = Admit({.prompt = {1}});
  EXPECT_EQ(table_.FollowedId(sequences[0].id), sink_->request_id);
  table_.End(1, absl::CancelledError("gone"));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].followed_id, sink_->request_id);
  EXPECT_TRUE(absl::IsCancelled(ended[0].status));
  EXPECT_EQ(ended[0].first_token, 0);
}

TEST_F(RequestTableTest, ABeamSearchIsOneSequenceForAllItsAnswers) {
  GenerateSpec spec{.prompt = {1, 2, 3}, .max_tokens = 5, .choices = 2, .beams = {.width = 3}};
  const std::vector<core::SequenceRequest> sequences = Admit(spec);
  ASSERT_EQ(sequences.size(), 1u);
  EXPECT_EQ(sequences[0].beams.width, 3u);
  ASSERT_EQ(sequences[0].answers.size(), 2u);
  EXPECT_EQ(sequences[0].answers[0], sequences[0].id);
  // Each answer is a choice.
  core::Events events;
  for (const plan::SequenceId answer : sequences[0].answers) {
    events.tokens.push_back({.sequence = answer, .token = {.sequence = answer, .token = 7}});
    events.finished.push_back({.sequence = answer, .reason = FinishReason::kLength});
  }
  EXPECT_THAT(table_.Deliver(events), IsEmpty());
  ASSERT_EQ(sink_->outputs.size(), 2u);
  EXPECT_EQ(sink_->outputs[1].index, 1u);
  ASSERT_EQ(sink_->done.size(), 1u);
  EXPECT_TRUE(sink_->done[0].ok());
}

TEST_F(RequestTableTest, ABeamSearchRefusesWhatItWouldNotObey) {
  const GenerateSpec plain{.prompt = {1}, .max_tokens = 5, .beams = {.width = 2}};
  const std::pair<const char*, void (*)(GenerateSpec&)> wrong[] = {
      {"temperature", [](GenerateSpec& spec) { spec.sampling.temperature = 0.5f; }},
      {"top_k", [](GenerateSpec& spec) { spec.sampling.top_k = 5; }},
      {"top_p", [](GenerateSpec& spec) { spec.sampling.top_p = 0.5f; }},
      {"min_p", [](GenerateSpec& spec) { spec.sampling.min_p = 0.5f; }},
      {"repetition_penalty", [](GenerateSpec& spec) { spec.sampling.repetition_penalty = 2; }},
      {"presence_penalty", [](GenerateSpec& spec) { spec.sampling.presence_penalty = 1; }},
      {"frequency_penalty", [](GenerateSpec& spec) { spec.sampling.frequency_penalty = 1; }},
      {"logit_bias",
       [](GenerateSpec& spec) {
         spec.sampling.logit_bias = {{1, 1.0f}};
       }},
      {"allowed_tokens", [](GenerateSpec& spec) { spec.sampling.allowed_tokens = {1}; }},
      {"structured output",
       [](GenerateSpec& spec) {
         spec.sampling.form = {.kind = OutputForm::Kind::kRegex, .text = "a"};
       }},
      {"stop", [](GenerateSpec& spec) { spec.stop = {"x"}; }},
      {"best_of", [](GenerateSpec& spec) { spec.best = 1; }},
      {"beam_width is 11", [](GenerateSpec& spec) { spec.beams.width = 11; }},
      {"length_penalty", [](GenerateSpec& spec) { spec.beams.length_penalty = 1e9; }},
      {"n is 3 and beam_width 2", [](GenerateSpec& spec) { spec.choices = 3; }}};
  for (const auto& [what, spoil] : wrong) {
    GenerateSpec spec = plain;
    spoil(spec);
    const absl::Status status = Refusal(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(status.message(), HasSubstr(what));
  }
  Admit(plain);
}

}  // namespace
}  // namespace lamina::coordinator
