// SPDX-License-Identifier: Apache-2.0
#include "common/json_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/philox.h"

namespace lamina {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

size_t DepthOf(const std::string& text) { return MeasureJson(text).depth; }

std::string ObjectOf(size_t keys) {
  std::string text = "{";
  for (size_t i = 0; i < keys; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ",", "\"k", i, "\":0");
  }
  return text + "}";
}

// What a parser makes of it.
void Measure(const Json& json, size_t depth, JsonSize& size) {
  if (!json.is_structured()) {
    return;
  }
  size.depth = std::max(size.depth, depth + 1);
  size.values += std::max<size_t>(json.size(), 1);
  if (json.is_object()) {
    size.keys = std::max(size.keys, std::max<size_t>(json.size(), 1));
    size.comparisons += json.size() * (json.size() - (json.empty() ? 0 : 1)) / 2;
  }
  for (const Json& value : json) {
    Measure(value, depth + 1, size);
  }
}

Json RandomJson(Prng& random, size_t depth) {
  const uint64_t kind = random.Below(depth > 5 ? 2 : 4);
  if (kind < 2) {
    return kind == 0 ? Json(random.Below(1000)) : Json("a \"text\" of [{,:}] and \\");
  }
  Json value = kind == 2 ? Json::array() : Json::object();
  for (uint64_t i = random.Below(6); i > 0; --i) {
    if (kind == 2) {
      value.push_back(RandomJson(random, depth + 1));
    } else {
      value[absl::StrCat("key, {", i, "}")] = RandomJson(random, depth + 1);
    }
  }
  return value;
}

TEST(JsonBoundsTest, DepthCountsArraysAndObjectsWithinEachOther) {
  EXPECT_EQ(DepthOf(""), 0u);
  EXPECT_EQ(DepthOf("1"), 0u);
  EXPECT_EQ(DepthOf("[]"), 1u);
  EXPECT_EQ(DepthOf(R"({"a": [1, {"b": 2}], "c": [[]]})"), 3u);
  EXPECT_EQ(DepthOf("[[], [], []]"), 2u);
}

TEST(JsonBoundsTest, LooksOverBracketsInStrings) {
  EXPECT_EQ(DepthOf(R"(["[[[{{{"])"), 1u);
  EXPECT_EQ(DepthOf(R"(["\"[[[", "\\", []])"), 2u);
}

TEST(JsonBoundsTest, MeasuresTextsThatEndEarlyOrCloseTooMuch) {
  EXPECT_EQ(DepthOf(std::string(100'000, '[')), 100'000u);
  EXPECT_EQ(DepthOf("]]]}[["), 2u);
  EXPECT_EQ(DepthOf("[\"\\"), 1u);
  EXPECT_EQ(MeasureJson(",,,}}{,,").keys, 3u);
}

TEST(JsonBoundsTest, IsExactForJson) {
  Prng random(5);
  for (int i = 0; i < 500; ++i) {
    const Json json = RandomJson(random, 0);
    JsonSize wanted;
    Measure(json, 0, wanted);
    const JsonSize found = MeasureJson(json.dump());
    EXPECT_EQ(found.depth, wanted.depth) << json;
    EXPECT_EQ(found.values, wanted.values) << json;
    EXPECT_EQ(found.keys, wanted.keys) << json;
    EXPECT_EQ(found.comparisons, wanted.comparisons) << json;
  }
}

TEST(JsonBoundsTest, RequestsOfManyKeysAreRefused) {
  EXPECT_TRUE(CheckRequestJson(ObjectOf(kRequestKeysMax), "it").ok());
  EXPECT_THAT(CheckRequestJson(ObjectOf(kRequestKeysMax + 1), "it").message(),
              HasSubstr("it has an object of 4097 keys; at most 4096"));
  std::string many = "[" + ObjectOf(4000);
  EXPECT_TRUE(CheckRequestJson(many, "it").ok());
  absl::StrAppend(&many, ",", ObjectOf(4000), ",", ObjectOf(4000));
  EXPECT_THAT(CheckRequestJson(many, "it").message(), HasSubstr("too many objects of many keys"));
  EXPECT_THAT(CheckRequestJson(std::string(65, '['), "it").message(), HasSubstr("deeper than 64"));
  // Lists may be as long as they like, and so may lists of small objects.
  std::string prompt = "[0";
  for (int i = 0; i < 100'000; ++i) {
    absl::StrAppend(&prompt, ",{\"role\":1,\"content\":2}");
  }
  EXPECT_TRUE(CheckRequestJson(prompt + "]", "it").ok());
}

}  // namespace
}  // namespace lamina
