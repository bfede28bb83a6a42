// SPDX-License-Identifier: Apache-2.0
#include "coordinator/span_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace lamina::coordinator {
namespace {

using nlohmann::json;

class ManualClock final : public Clock {
 public:
  Nanos Now() const override { return Seconds(100); }
};

RequestRecord Record() {
  return {.followed_id = "follow-me",
          .id = "cmpl-1",
          .caller = TraceContext{.trace_id = std::string(31, '0') + "7",
                                 .span_id = std::string(15, '0') + "9",
                                 .sampled = true},
          .choices = 2,
          .prompt_tokens = 5,
          .completion_tokens = 8,
          .arrived = Seconds(90),
          .started = Seconds(91),
          .first_token = Seconds(93),
          .ended = Seconds(97)};
}

class SpanFileTest : public ::testing::Test {
 protected:
  // The spans of each line that is written for the records.
  std::vector<json> Written(const std::vector<RequestRecord>& records) {
    const std::string path = ::testing::TempDir() + "/spans-" +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::remove(path.c_str());
    auto file = SpanFile::Open(path, clock_);
    EXPECT_TRUE(file.ok()) << file.status();
    for (const RequestRecord& record : records) {
      (*file)->Write(record);
    }
    std::vector<json> lines;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      const json whole = json::parse(line);
      EXPECT_EQ(whole["resourceSpans"][0]["resource"]["attributes"][0]["value"]["stringValue"],
                "lamina-coordinator");
      lines.push_back(whole["resourceSpans"][0]["scopeSpans"][0]["spans"]);
    }
    std::remove(path.c_str());
    return lines;
  }

  static Nanos Time(const json& span, const char* key) {
    return std::stoll(span[key].get<std::string>());
  }
  static std::string Attribute(const json& span, const std::string& key) {
    for (const json& attribute : span["attributes"]) {
      if (attribute["key"] == key) {
        return attribute["value"].begin().value();
      }
    }
    return "none";
  }

  ManualClock clock_;
};

TEST_F(SpanFileTest, ARequestIsAChildOfItsCallerWithPartsThatFollowEachOther) {
  const std::vector<json> lines = Written({Record()});
  ASSERT_EQ(lines.size(), 1u);
  const json& spans = lines[0];
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[0]["name"], "generate");
  EXPECT_EQ(spans[0]["parentSpanId"], std::string(15, '0') + "9");
  EXPECT_EQ(spans[0]["status"]["code"], 1);
  EXPECT_EQ(Attribute(spans[0], "lamina.request_id"), "follow-me");
  EXPECT_EQ(Attribute(spans[0], "gen_ai.usage.output_tokens"), "8");
  Nanos end = Time(spans[0], "startTimeUnixNano");
  std::set<std::string> ids;
  for (const json& span : spans) {
    EXPECT_EQ(span["traceId"], std::string(31, '0') + "7");
    EXPECT_EQ(span["spanId"].get<std::string>().size(), 16u);
    ids.insert(span["spanId"].get<std::string>());
    if (span["name"] != "generate") {
      EXPECT_EQ(span["parentSpanId"], spans[0]["spanId"]);
      EXPECT_EQ(Time(span, "startTimeUnixNano"), end);
      end = Time(span, "endTimeUnixNano");
    }
  }
  EXPECT_EQ(ids.size(), 4u);
  EXPECT_EQ(end, Time(spans[0], "endTimeUnixNano"));
  EXPECT_EQ(Time(spans[1], "endTimeUnixNano") - Time(spans[1], "startTimeUnixNano"), Seconds(1));
}

TEST_F(SpanFileTest, WithoutACallerATraceBegins) {
  RequestRecord record = Record();
  record.caller.reset();
  const std::vector<json> lines = Written({record, record});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_FALSE(lines[0][0].contains("parentSpanId"));
  EXPECT_EQ(lines[0][0]["traceId"].get<std::string>().size(), 32u);
  EXPECT_NE(lines[0][0]["traceId"], lines[1][0]["traceId"]);
}

TEST_F(SpanFileTest, ACallerThatDoesNotSampleGetsNothing) {
  RequestRecord record = Record();
  record.caller->sampled = false;
  EXPECT_TRUE(Written({record}).empty());
}

TEST_F(SpanFileTest, WhatEndedEarlyHasThePartsThatItReached) {
  RequestRecord record = Record();
  record.started = 0;
  record.first_token = 0;
  record.status = absl::UnavailableError("gone \xff");
  const std::vector<json> lines = Written({record});
  ASSERT_EQ(lines[0].size(), 2u);
  EXPECT_EQ(lines[0][0]["status"]["code"], 2);
  EXPECT_EQ(lines[0][1]["name"], "queue");
  EXPECT_EQ(Time(lines[0][1], "endTimeUnixNano"), Time(lines[0][0], "endTimeUnixNano"));
}

TEST_F(SpanFileTest, AFileThatCannotBeWrittenIsRefused) {
  const auto file = SpanFile::Open("/nonexistent/spans", clock_);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(file.status().message().find("/nonexistent/spans"), std::string::npos);
}

}  // namespace
}  // namespace lamina::coordinator
