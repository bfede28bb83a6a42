// SPDX-License-Identifier: Apache-2.0
#include "model/json_text.h"

#include <gtest/gtest.h>

namespace lamina::model {
namespace {

TEST(JsonTextTest, NumbersThatPythonWritesBecomeNull) {
  EXPECT_EQ(WithNullForNan(R"({"a": [0.0, Infinity], "b": -Infinity, "c": NaN})"),
            R"({"a": [0.0, null], "b": null, "c": null})");
}

TEST(JsonTextTest, TextsKeepTheirWords) {
  const char* const kText = R"({"NaN": "Infinity", "\"NaN\\": "-Infinity \" NaN"})";
  EXPECT_EQ(WithNullForNan(kText), kText);
  EXPECT_EQ(WithNullForNan("\"NaN\\"), "\"NaN\\") << "the text ends within an escape";
  EXPECT_EQ(WithNullForNan(""), "");
}

}  // namespace
}  // namespace lamina::model
