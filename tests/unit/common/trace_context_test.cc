// SPDX-License-Identifier: Apache-2.0
#include "common/trace_context.h"

#include <gtest/gtest.h>

#include <string>

namespace lamina {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kSpan[] = "00f067aa0ba902b7";

std::string Header(const std::string& version, const std::string& trace, const std::string& span,
                   const std::string& flags) {
  return version + "-" + trace + "-" + span + "-" + flags;
}

TEST(TraceContextTest, ReadsWhatTheStandardShows) {
  const auto context = ParseTraceParent(Header("00", kTrace, kSpan, "01"));
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, kTrace);
  EXPECT_EQ(context->span_id, kSpan);
  EXPECT_TRUE(context->sampled);
  EXPECT_FALSE(ParseTraceParent(Header("00", kTrace, kSpan, "00"))->sampled);
  EXPECT_TRUE(ParseTraceParent(Header("00", kTrace, kSpan, "0b"))->sampled);
}

TEST(TraceContextTest, LaterVersionsMayAddFields) {
  EXPECT_TRUE(ParseTraceParent(Header("cc", kTrace, kSpan, "01-what-else")).has_value());
  EXPECT_TRUE(ParseTraceParent(Header("cc", kTrace, kSpan, "01")).has_value());
  EXPECT_FALSE(ParseTraceParent(Header("cc", kTrace, kSpan, "01.what")).has_value());
}

TEST(TraceContextTest, WhatIsPassedOnHasNothingOfLaterVersions) {
  const std::string own = Header("00", kTrace, kSpan, "01");
  EXPECT_EQ(TraceParentToPassOn(own), own);
  EXPECT_EQ(TraceParentToPassOn(Header("01", kTrace, kSpan, "01-\xff\t")), own);
  EXPECT_EQ(TraceParentToPassOn(Header("cc", kTrace, kSpan, "01")), own);
}

TEST(TraceContextTest, OtherFormsAreNotRead) {
  const std::string upper = "4BF92F3577B34DA6A3CE929D0E0E4736";
  for (const std::string& header :
       {std::string(), std::string("00"), Header("ff", kTrace, kSpan, "01"),
        Header("00", std::string(32, '0'), kSpan, "01"),
        Header("00", kTrace, std::string(16, '0'), "01"), Header("00", upper, kSpan, "01"),
        Header("00", kTrace, kSpan, "01-more"), Header("00", kTrace, kSpan, "0g"),
        Header("0g", kTrace, kSpan, "01"), Header("00", kTrace, kSpan, "0"),
        std::string(kTrace) + Header("00", kTrace, kSpan, "01")}) {
    EXPECT_FALSE(ParseTraceParent(header).has_value()) << header;
  }
}

TEST(TraceContextTest, StatesAreShortAndCanBeShown) {
  EXPECT_TRUE(IsTraceState("rojo=00f067aa0ba902b7, congo=t61rcWkgMzE"));
  EXPECT_TRUE(IsTraceState(std::string(kTraceStateBytesMax, 'x')));
  EXPECT_FALSE(IsTraceState(std::string(kTraceStateBytesMax + 1, 'x')));
  EXPECT_FALSE(IsTraceState(""));
  EXPECT_FALSE(IsTraceState("a=\x80"));
  EXPECT_FALSE(IsTraceState("a=\r\nb"));
}

TEST(TraceContextTest, RequestIdsAreShortAndCanBeShown) {
  EXPECT_TRUE(IsRequestId("a"));
  EXPECT_TRUE(IsRequestId(std::string(kFollowedIdBytesMax, 'x')));
  EXPECT_FALSE(IsRequestId(""));
  EXPECT_FALSE(IsRequestId("a b"));
  EXPECT_FALSE(IsRequestId("a\n"));
  EXPECT_FALSE(IsRequestId("\xc3\xa4"));
  EXPECT_FALSE(IsRequestId(std::string(kFollowedIdBytesMax + 1, 'x')));
}

}  // namespace
}  // namespace lamina
