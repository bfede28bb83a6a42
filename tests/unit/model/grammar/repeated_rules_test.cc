// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/repeated_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace lamina::model {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const std::string& rules, const std::string& name) {
  const absl::Status status = CheckRepeatedRules(rules);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << rules;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("'", name, "'"))) << rules;
}

TEST(RepeatedRulesTest, RepetitionsThatLeadBackAreRefusedByName) {
  ExpectRefused("root ::= ((root{2, 2}))\n", "root");
  ExpectRefused("root ::= ((\"x\" a))\na ::= ((b{2, 2}))\nb ::= ((a{0, -1}))\n", "a");
  ExpectRefused("a ::= ((b{2, 3}))\nb ::= ((c))\nc ::= ((a))\n", "a");
  ExpectRefused("a[capture=\"]x ::= \", lazy] ::= ((a{2, 2})) (=((\"))\")))\n", "a");
}

TEST(RepeatedRulesTest, WhatHasMoreThanARepetitionIsTaken) {
  for (const char* rules :
       {"root ::= ((root{2, 2}) | (\"a\"))\n", "root ::= ((\"a\" root{0, 2}))\n",
        "root ::= ((a))\na ::= ((root))\n", "root ::= ((\"root{2, 2}))\"))\n",
        "root ::= TagDispatch(\n  (\"x\", root),\n  loop_after_dispatch=false,\n)\n", "",
        "root ::= ((a{2", "root[", "root ::= (("}) {
    EXPECT_TRUE(CheckRepeatedRules(rules).ok()) << rules;
  }
}

TEST(RepeatedRulesTest, AChainIsTakenUpToItsLimit) {
  const auto chain = [](int repetitions) {
    std::string rules;
    for (int i = 0; i < repetitions; ++i) {
      absl::StrAppend(&rules, "r", i, " ::= ((r", i + 1, "{2, 2}))\n");
    }
    return absl::StrCat(rules, "r", repetitions, " ::= ((\"a\"))\n");
  };
  EXPECT_TRUE(CheckRepeatedRules(chain(256)).ok());
  ExpectRefused(chain(257), "r0");
}

}  // namespace
}  // namespace lamina::model
