// SPDX-License-Identifier: Apache-2.0
#include "common/log_event.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "common/check.h"

namespace lamina {
namespace {

using nlohmann::json;

// What `write` puts on stderr.
template <typename Write>
std::string Captured(LogFormat format, const Write& write) {
  SetUpLogging("m0", LogLevel::kInfo);
  SetLogFormat(format);
  testing::internal::CaptureStderr();
  write();
  std::string text = testing::internal::GetCapturedStderr();
  SetLogFormat(LogFormat::kText);
  return text;
}

TEST(LogEventTest, TextHasFieldsBehindTheMessage) {
  const std::string line = Captured(LogFormat::kText, [] {
    LogEvent(LogLevel::kInfo, "finished", {{"request_id", "a"}, {"tokens", 7}});
  });
  EXPECT_TRUE(line.ends_with(" I m0 finished request_id a tokens 7\n")) << line;
}

TEST(LogEventTest, AValueCannotBeginALineOrColourATerminal) {
  const std::string line = Captured(LogFormat::kText, [] {
    LogEvent(LogLevel::kInfo, "refused",
             {{"error", "no\n2026-01-01 E m0 lost c0\x1b[31m \xc3\xa9"}});
  });
  EXPECT_TRUE(line.ends_with(" refused error no\\n2026-01-01 E m0 lost c0\\x1b[31m \xc3\xa9\n"))
      << line;
}

TEST(LogEventTest, TheJournalGetsNoTimes) {
  EXPECT_EQ(Captured(LogFormat::kJournal, [] { LogInfo("attached"); }), "I m0 attached\n");
}

TEST(LogEventTest, JsonIsOneObjectALine) {
  const std::string text = Captured(LogFormat::kJson, [] {
    LogEvent(LogLevel::kWarning, "finished",
             {{"request_id", "a \"b\"\n"}, {"tokens", uint64_t{1} << 63}, {"share", 0.5}});
    LogInfo("two\nlines ", 3);
  });
  const size_t end = text.find('\n');
  const json first = json::parse(text.substr(0, end));
  const json second = json::parse(text.substr(end + 1));
  EXPECT_EQ(first["level"], "warning");
  EXPECT_EQ(first["node"], "m0");
  EXPECT_EQ(first["message"], "finished");
  EXPECT_EQ(first["request_id"], "a \"b\"\n");
  EXPECT_EQ(first["tokens"], uint64_t{1} << 63);
  EXPECT_EQ(first["share"], 0.5);
  const std::string time = first["time"];
  EXPECT_EQ(time.size(), std::string("2026-11-21T10:00:00.123Z").size());
  EXPECT_EQ(time.back(), 'Z');
  EXPECT_EQ(second["message"], "two\nlines 3");
  EXPECT_EQ(second["level"], "info");
}

TEST(LogEventTest, BytesThatAreNoTextAndNumbersThatAreNoneStayJson) {
  const std::string text = Captured(LogFormat::kJson, [] {
    LogEvent(LogLevel::kInfo, std::string("\xff\x00 x", 4),
             {{"none", std::numeric_limits<double>::quiet_NaN()}});
  });
  const json line = json::parse(text);
  EXPECT_EQ(line["message"], std::string("\xef\xbf\xbd\x00 x", 6));
  EXPECT_EQ(line["none"], "nan");
}

TEST(LogEventTest, ALongValueIsCutInBothForms) {
  const std::string value(kLogValueBytesMax + 1, 'v');
  const std::string cut = value.substr(1) + "... (4097 bytes)";
  const auto write = [&value] { LogEvent(LogLevel::kInfo, "refused", {{"error", value}}); };
  EXPECT_TRUE(Captured(LogFormat::kText, write).ends_with(" refused error " + cut + "\n"));
  EXPECT_EQ(json::parse(Captured(LogFormat::kJson, write))["error"], cut);
}

TEST(LogEventTest, ALongValueIsCutBetweenCharacters) {
  const std::string whole(kLogValueBytesMax - 1, 'v');
  const std::string value = whole + "é";
  const std::string cut = whole + "... (4097 bytes)";
  const auto write = [&value] { LogEvent(LogLevel::kInfo, "refused", {{"error", value}}); };
  EXPECT_TRUE(Captured(LogFormat::kText, write).ends_with(" refused error " + cut + "\n"));
  EXPECT_EQ(json::parse(Captured(LogFormat::kJson, write))["error"], cut);
}

TEST(LogEventTest, WhatIsBelowTheLevelIsNotWritten) {
  EXPECT_EQ(Captured(LogFormat::kJson, [] { LogEvent(LogLevel::kDebug, "no", {}); }), "");
  SetUpLogging("m0", LogLevel::kInfo);
  EXPECT_FALSE(LogEnabled(LogLevel::kDebug));
  EXPECT_TRUE(LogEnabled(LogLevel::kInfo));
}

TEST(LogEventDeathTest, ACheckThatFailsIsJsonToo) {
  EXPECT_DEATH(
      {
        SetUpLogging("m0", LogLevel::kInfo);
        SetLogFormat(LogFormat::kJson);
        LAMINA_CHECK(1 > 2);
      },
      R"(\{"time".*check failed: 1 > 2"\})");
}

}  // namespace
}  // namespace lamina
