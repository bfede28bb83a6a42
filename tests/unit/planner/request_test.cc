// SPDX-License-Identifier: Apache-2.0
#include "planner/request.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lamina::planner {
namespace {

using testing::HasSubstr;

template <typename T>
std::string ErrorOf(const absl::StatusOr<T>& status) {
  EXPECT_EQ(status.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.status().message());
}

TEST(RequestTest, ReadsLoads) {
  const absl::StatusOr<Load> load = ParseLoad("rate=20,input=1024,output=256");
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_EQ(load->rate, 20);
  EXPECT_EQ(load->context(), 1152);
  EXPECT_EQ(ParseLoad("input=1,output=2")->rate, 0);
  EXPECT_THAT(ErrorOf(ParseLoad("rate=20,input=1024")), HasSubstr("output: missing"));
  EXPECT_THAT(ErrorOf(ParseLoad("rate=20,inptu=1,output=1")), HasSubstr("did you mean 'input'?"));
  EXPECT_THAT(ErrorOf(ParseLoad("rate=-1,input=1,output=1")), HasSubstr("rate: '-1'"));
  EXPECT_THAT(ErrorOf(ParseLoad("rate=nan,input=1,output=1")), HasSubstr("rate: 'nan'"));
  EXPECT_THAT(ErrorOf(ParseLoad("input=0,output=1")), HasSubstr("input: '0'"));
  EXPECT_THAT(ErrorOf(ParseLoad("input=1,input=2,output=1")), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOf(ParseLoad("")), HasSubstr("unknown key ''"));
  EXPECT_EQ(ParseLoad("input=1,output=2,lengths=azure")->lengths, Lengths::kAzure);
  EXPECT_EQ(ParseLoad("input=8,output=2,prefix=6,prefixes=3")->prefixes, 3);
  EXPECT_THAT(ErrorOf(ParseLoad("input=8,output=2,prefix=9")), HasSubstr("prefix: 9 is more"));
  EXPECT_DOUBLE_EQ(ParseLoad("input=1000,output=2,hit=0.4")->prefix, 400);
  EXPECT_DOUBLE_EQ(ParseLoad("hit=0.4,input=1000,output=2")->hit(), 0.4);
  EXPECT_EQ(ParseLoad("input=8,output=2,hit=0")->hit(), 0);
  EXPECT_THAT(ErrorOf(ParseLoad("input=8,output=2,hit=1.5")), HasSubstr("hit: '1.5'"));
  EXPECT_THAT(ErrorOf(ParseLoad("input=8,output=2,hit=half")), HasSubstr("hit: 'half'"));
  EXPECT_THAT(ErrorOf(ParseLoad("input=8,output=2,prefix=4,hit=0.5")),
              HasSubstr("prefix is given too"));
  EXPECT_THAT(ErrorOf(ParseLoad("input=1,output=2,lengths=long")), HasSubstr("lengths: 'long'"));
}

TEST(RequestTest, ReadsSlos) {
  const absl::StatusOr<Slo> slo = ParseSlo("ttft=2s,tpot=80ms");
  ASSERT_TRUE(slo.ok()) << slo.status();
  EXPECT_DOUBLE_EQ(slo->ttft_seconds, 2);
  EXPECT_DOUBLE_EQ(slo->tpot_seconds, 0.08);
  EXPECT_TRUE(std::isinf(ParseSlo("tpot=1ms")->ttft_seconds));
  EXPECT_THAT(ErrorOf(ParseSlo("tpot=80")), HasSubstr("tpot: '80' is not a duration"));
  EXPECT_THAT(ErrorOf(ParseSlo("tpot=0ms")), HasSubstr("above 0"));
  EXPECT_DOUBLE_EQ(ParseSlo("tpot=1ms")->at, 0.95);
  EXPECT_DOUBLE_EQ(ParseSlo("tpot=1ms,at=p99")->at, 0.99);
  EXPECT_THAT(ErrorOf(ParseSlo("at=95")), HasSubstr("at: '95' is not a percentile"));
  EXPECT_THAT(ErrorOf(ParseSlo("at=p100")), HasSubstr("like p95"));
}

TEST(RequestTest, ReadsBudgets) {
  EXPECT_EQ(*ParseBudget("20/h"), 20);
  EXPECT_THAT(ErrorOf(ParseBudget("20")), HasSubstr("write it like 20/h"));
  EXPECT_THAT(ErrorOf(ParseBudget("inf/h")), HasSubstr("write it like 20/h"));
  EXPECT_THAT(ErrorOf(ParseBudget("-1/h")), HasSubstr("write it like 20/h"));
}

}  // namespace
}  // namespace lamina::planner
