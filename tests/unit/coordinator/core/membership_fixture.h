// SPDX-License-Identifier: Apache-2.0
//
// A compute node and two memory nodes that join, prepare and serve when a test says so.

#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/core/membership.h"

namespace lamina::core {

inline const absl::Status kBroken = absl::InternalError("broken");

class MembershipTest : public ::testing::Test {
 protected:
  // Everything that is to be done now.
  std::vector<MembershipAction> Actions() {
    std::vector<MembershipAction> actions;
    for (;;) {
      actions.push_back(members_.Next());
      if (actions.back() == MembershipAction::kNone) {
        actions.pop_back();
        return actions;
      }
    }
  }

  void JoinAll() {
    EXPECT_TRUE(members_.Join("m1", true).ok());
    EXPECT_TRUE(members_.Join("c0", false).ok());
    EXPECT_TRUE(members_.Join("m0", true).ok());
  }

  void Prepare(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      members_.Prepared(name, members_.epoch(), "region of " + name);
    }
  }
  void Ready(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      members_.Ready(name, members_.epoch());
    }
  }

  // Into a serving epoch of all three.
  void Serve() {
    JoinAll();
    Actions();
    ServeAgain({"c0", "m0", "m1"});
  }
  void ServeAgain(const std::vector<std::string>& names) {
    Actions();
    Prepare(names);
    Actions();
    Ready(names);
    Actions();
    ASSERT_EQ(members_.phase(), MembershipPhase::kServing);
  }

  static std::vector<std::string> Names(const std::vector<const Member*>& members) {
    std::vector<std::string> names;
    for (const Member* member : members) {
      names.push_back(member->name);
    }
    return names;
  }

  Membership members_{
      {{.name = "c0"}, {.name = "m0", .is_memory = true}, {.name = "m1", .is_memory = true}}};
};

}  // namespace lamina::core
