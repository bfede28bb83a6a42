// SPDX-License-Identifier: Apache-2.0
//
// Everything that is put into a message comes out again, over the wire's bytes.

#include "control/plan_codec_service.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>

#include "common/philox.h"
#include "plan/table_changes.h"

namespace lamina::control {
namespace {

// Through the bytes, as between processes.
template <typename Proto>
Proto OverTheWire(const Proto& proto) {
  Proto received;
  EXPECT_TRUE(received.ParseFromString(proto.SerializeAsString()));
  return received;
}

plan::StepPlan RoundTrip(const plan::StepPlan& plan) {
  v1::StepPlan proto;
  ToProto(plan, &proto);
  const absl::StatusOr<plan::StepPlan> back = FromProto(OverTheWire(proto));
  EXPECT_TRUE(back.ok()) << back.status();
  return *back;
}

plan::StepResult RoundTrip(const plan::StepResult& result) {
  v1::StepResult proto;
  ToProto(result, &proto);
  return FromProto(OverTheWire(proto));
}

SamplingParams RoundTrip(const SamplingParams& params) {
  v1::Sampling proto;
  ToProto(params, &proto);
  return FromProto(OverTheWire(proto));
}

// No field at its default, so that a forgotten one shows.
const SamplingParams kSampling{.temperature = 0.7f,
                               .top_k = 11,
                               .top_p = 0.9f,
                               .min_p = 0.05f,
                               .repetition_penalty = 1.2f,
                               .presence_penalty = -0.5f,
                               .frequency_penalty = 0.25f,
                               .logit_bias = {{3, -100.0f}, {70000, 2.5f}},
                               .allowed_tokens = {0, 70000},
                               .seed = std::numeric_limits<uint64_t>::max(),
                               .logprobs = 4};

TEST(PlanCodecTest, SamplingComesBackWhole) {
  EXPECT_EQ(RoundTrip(kSampling), kSampling);
  EXPECT_EQ(RoundTrip(SamplingParams{}), SamplingParams{});
  for (const OutputForm::Kind kind :
       {OutputForm::Kind::kJsonSchema, OutputForm::Kind::kRegex, OutputForm::Kind::kGrammar,
        OutputForm::Kind::kStructuralTag}) {
    SamplingParams formed = kSampling;
    formed.form = {kind, "text"};
    EXPECT_EQ(RoundTrip(formed), formed);
  }
  SamplingParams zero = kSampling;  // Values that protobuf would leave out.
  zero.temperature = 0.0f;
  zero.logprobs = 0;
  EXPECT_EQ(RoundTrip(zero), zero);
}

TEST(PlanCodecTest, SamplingWithTooManyLogprobsIsRefusedByItsCheck) {
  v1::Sampling proto;
  proto.set_logprobs(std::numeric_limits<uint32_t>::max());

  EXPECT_FALSE(FromProto(proto).Validate().ok());
}

TEST(PlanCodecTest, AMessageWithoutFieldsIsGreedyAndWithoutLogprobs) {
  EXPECT_EQ(FromProto(v1::Sampling()), SamplingParams{});
}

plan::StepPlan FullPlan() {
  return {
      .epoch = 1ULL << 40,
      .lane = 3,
      .step = (1ULL << 33) + 1,
      .leaves = {{5}, {1ULL << 50}},
      .releases = {{.sequence = 1ULL << 51, .tokens = 512}, {.sequence = 6, .tokens = 256}},
      .joins = {{.id = 9,
                 .tokens = {1, 2, 49151},
                 .prompt_tokens = 2,
                 .parent = 8,
                 .sampling = kSampling,
                 .tokens_max = 100,
                 .end_tokens = {2, 0},
                 .tokens_min = 4,
                 .memory_node = 2,
                 .path = plan::AttentionPath::kLocal,
                 .bare_tokens = 48,
                 .resident = {.first = 64, .tokens = 32, .place = 16},
                 .score = true},
                {.id = 10, .tokens = {0}, .prompt_tokens = 1}},
      .allocations = {{.sequence = 9, .extent = {.first_slot = 4096, .tokens = 3}},
                      {.sequence = 10, .extent = {.first_slot = 0, .tokens = 1}}},
      .rows = {{.sequence = 7, .position = 70}, {.sequence = 6, .position = 0}},
      .chunks = {{.sequence = 9, .first_token = 1, .tokens = 2, .scratch_offset = 55, .last = true},
                 {.sequence = 10, .tokens = 1}},
      .chunking = {.chunks = 7, .by_heads = true, .query_first = true}};
}

TEST(PlanCodecTest, APlanComesBackWhole) { EXPECT_EQ(RoundTrip(FullPlan()), FullPlan()); }

uint32_t Below(Prng& random, uint32_t bound) { return static_cast<uint32_t>(random.Below(bound)); }

// One for each kind of change.
void Draw(Prng& random, plan::SequenceLeave& leave) { leave.id = random(); }
void Draw(Prng& random, plan::SlotRelease& release) {
  release = {.sequence = random(), .tokens = Below(random, 1U << 30)};
}
void Draw(Prng& random, plan::SpillDrop& drop) { drop.spill = random(); }
void Draw(Prng& random, plan::SpillOut& spill) {
  spill = {.spill = random(),
           .sequence = random.Chance(0.5) ? 0 : random(),
           .tokens = Below(random, 1U << 20),
           .memory_node = Below(random, 4)};
  spill.slots.resize(random.Below(4));
  for (Extent& extent : spill.slots) {
    extent = {.first_slot = Below(random, 1000), .tokens = 1 + Below(random, 64)};
  }
}
void Draw(Prng& random, plan::SpillIn& spill) {
  spill = {.spill = random(),
           .sequence = random(),
           .tokens = Below(random, 1U << 20),
           .first = Below(random, 1000),
           .skip = Below(random, 64)};
}
void Draw(Prng& random, plan::SequenceJoin& join) {
  join = {.id = random(),
          .prompt_tokens = Below(random, 100),
          .parent = random.Chance(0.5) ? 0 : random(),
          .tokens_max = Below(random, 1000),
          .tokens_min = Below(random, 10),
          .memory_node = Below(random, 4),
          .path = random.Chance(0.5) ? plan::AttentionPath::kLocal : plan::AttentionPath::kRemote,
          .decode_from = static_cast<uint32_t>(random.Below(100)),
          .bare_tokens = Below(random, 100),
          .resident = {.first = Below(random, 100),
                       .tokens = Below(random, 100),
                       .place = Below(random, 1'000'000)},
          .score = random.Chance(0.5),
          .request_id = std::string(random.Below(3), 'r')};
  join.sampling = random.Chance(0.5) ? kSampling : SamplingParams{};
  join.tokens.assign(random.Below(5), static_cast<TokenId>(random.Below(50'000)));
  join.end_tokens.assign(random.Below(3), static_cast<TokenId>(random.Below(50'000)));
}
void Draw(Prng& random, plan::SlotAllocation& allocation) {
  allocation = {.sequence = random(),
                .extent = {.first_slot = Below(random, 1'000'000), .tokens = Below(random, 100)},
                .memory_node = Below(random, 4)};
}
void Draw(Prng& random, plan::DecodeRow& row) {
  row = {.sequence = random(), .position = Below(random, 1'000'000)};
}
void Draw(Prng& random, plan::PrefillChunk& chunk) {
  chunk = {.sequence = random(),
           .first_token = Below(random, 1000),
           .tokens = Below(random, 1000),
           .scratch_offset = Below(random, 1000),
           .last = random.Chance(0.5)};
}

plan::StepPlan DrawPlan(Prng& random) {
  plan::StepPlan plan{.epoch = random(), .lane = Below(random, 8), .step = random()};
  const auto fill = [&random](auto& list) {
    list.resize(random.Below(4));
    for (auto& entry : list) {
      Draw(random, entry);
    }
  };
  std::apply([&fill](auto&... lists) { (fill(lists), ...); }, plan::ChangeLists(plan));
  fill(plan.rows);
  fill(plan.chunks);
  plan.chunking = {.chunks = Below(random, 8),
                   .by_heads = random.Chance(0.5),
                   .query_first = random.Chance(0.5)};
  plan.recomputed = static_cast<uint32_t>(random.Below(plan::kRecomputeUnit + 1));
  return plan;
}

TEST(PlanCodecTest, PlansDrawnAtRandomComeBackWhole) {
  Prng random(1);
  for (int i = 0; i < 1000; ++i) {
    const plan::StepPlan plan = DrawPlan(random);
    ASSERT_EQ(RoundTrip(plan), plan) << i;
  }
}

TEST(PlanCodecTest, APlanThatRecomputesMoreThanAllIsRefused) {
  v1::StepPlan proto;
  proto.set_recomputed(plan::kRecomputeUnit + 1);
  EXPECT_EQ(FromProto(proto).status().message(), "plan recomputes 1025 of 1024 parts");
}

TEST(PlanCodecTest, APlanWhoseRowListsDifferIsRefusedWithBothLengths) {
  v1::StepPlan proto;
  ToProto(FullPlan(), &proto);
  proto.add_row_positions(1);

  const absl::Status status = FromProto(proto).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("2 row sequences and 3 row positions"), std::string::npos);
}

TEST(PlanCodecTest, AResultComesBackWhole) {
  const plan::StepResult result{
      .epoch = 12,
      .lane = 1,
      .step = 99,
      .tokens = {{.sequence = 4,
                  .position = 17,
                  .token = 321,
                  .logprob = -0.125f,
                  .top = {{.token = 321, .logprob = -0.125f}, {.token = 5, .logprob = -3.0f}},
                  .finish = plan::FinishReason::kLength,
                  .outside = true},
                 {.sequence = 5}},
      .scores = {{.sequence = 6,
                  .first_token = 3,
                  .logprobs = {-1.0f, -1e30f},
                  .ranks = {{.rank = 2, .top = {{.token = 9, .logprob = -0.5f}}}, {.rank = 77}}}}};

  const plan::StepResult back = RoundTrip(result);

  EXPECT_EQ(back.epoch, 12u);
  EXPECT_EQ(back.lane, 1u);
  EXPECT_EQ(back.step, 99u);
  ASSERT_EQ(back.tokens.size(), 2u);
  EXPECT_EQ(back.tokens[0].sequence, 4u);
  EXPECT_EQ(back.tokens[0].position, 17u);
  EXPECT_EQ(back.tokens[0].token, 321);
  EXPECT_EQ(back.tokens[0].logprob, -0.125f);
  ASSERT_EQ(back.tokens[0].top.size(), 2u);
  EXPECT_EQ(back.tokens[0].top[1].token, 5);
  EXPECT_EQ(back.tokens[0].top[1].logprob, -3.0f);
  EXPECT_EQ(back.tokens[0].finish, plan::FinishReason::kLength);
  EXPECT_TRUE(back.tokens[0].outside);
  EXPECT_FALSE(back.tokens[1].outside);
  EXPECT_EQ(back.tokens[1].finish, plan::FinishReason::kNone);
  ASSERT_EQ(back.scores.size(), 1u);
  EXPECT_EQ(back.scores[0].sequence, 6u);
  EXPECT_EQ(back.scores[0].first_token, 3u);
  EXPECT_EQ(back.scores[0].logprobs, (std::vector<float>{-1.0f, -1e30f}));
  ASSERT_EQ(back.scores[0].ranks.size(), 2u);
  EXPECT_EQ(back.scores[0].ranks[0].rank, 2u);
  ASSERT_EQ(back.scores[0].ranks[0].top.size(), 1u);
  EXPECT_EQ(back.scores[0].ranks[0].top[0].token, 9);
  EXPECT_EQ(back.scores[0].ranks[0].top[0].logprob, -0.5f);
  EXPECT_EQ(back.scores[0].ranks[1].rank, 77u);
}

TEST(PlanCodecTest, EveryReasonComesBackAndAnUnknownOneIsAnError) {
  for (const auto reason :
       {plan::FinishReason::kNone, plan::FinishReason::kStop, plan::FinishReason::kLength,
        plan::FinishReason::kCancelled, plan::FinishReason::kError}) {
    EXPECT_EQ(RoundTrip(plan::StepResult{.tokens = {{.finish = reason}}}).tokens[0].finish, reason);
  }
  v1::StepResult proto;
  proto.add_tokens()->set_finish(77);
  EXPECT_EQ(FromProto(proto).tokens[0].finish, plan::FinishReason::kError);
}

TEST(PlanCodecTest, AnAttentionDescriptorComesBackWhole) {
  const AttentionDescriptor descriptor{.query_heads = 9,
                                       .kv_heads = 3,
                                       .head_dim = 64,
                                       .scale = 0.125f,
                                       .window = 4096,
                                       .soft_cap = 50.0f,
                                       .sinks = {1, 2, 3, 4, 5, 6, 7, 8, -9.5f}};
  v1::AttentionDescriptor proto;
  ToProto(descriptor, &proto);

  EXPECT_EQ(FromProto(OverTheWire(proto)), descriptor);
}

}  // namespace
}  // namespace lamina::control
