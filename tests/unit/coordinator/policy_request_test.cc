// SPDX-License-Identifier: Apache-2.0
#include "coordinator/policy_request.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lamina::coordinator {
namespace {

const std::vector<PreparedPolicy>& Prepared() {
  static const std::vector<PreparedPolicy> policies = {
      {.name = "fetch_heads"},
      {.name = "attend_remote"},
      {.name = "attend_remote", .kv = KvForm::kInt8}};
  return policies;
}

// The index of the one that is chosen, or the error.
std::string Chosen(const std::string& policy, const std::string& kv) {
  const auto chosen = ChoosePolicy(Prepared(), {.policy = policy, .kv = kv});
  return chosen.ok() ? std::to_string(*chosen - Prepared().data())
                     : std::string(chosen.status().message());
}

TEST(PolicyRequestTest, WhatARequestDoesNotNameIsThatOfTheFirst) {
  EXPECT_EQ(Chosen("", ""), "0");
  EXPECT_EQ(Chosen("attend_remote", ""), "1");
  EXPECT_EQ(Chosen("", "bf16"), "0");
  EXPECT_EQ(Chosen("attend_remote", "int8"), "2");
  EXPECT_EQ(*ChoosePolicy({}, {}), nullptr);
}

TEST(PolicyRequestTest, WhatIsNotPreparedIsRefusedWithWhatIs) {
  EXPECT_EQ(Chosen("local", "int8"),
            "policy: 'local' is not one that this cluster prepares, which are fetch_heads, "
            "attend_remote");
  EXPECT_EQ(Chosen("", "int8"),
            "kv: 'int8' is not a form that this cluster prepares for policy fetch_heads, which "
            "are bf16");
  EXPECT_EQ(Chosen("attend_remote", "fp8"),
            "kv: 'fp8' is not a form that this cluster prepares for policy attend_remote, which "
            "are bf16, int8");
  EXPECT_FALSE(ChoosePolicy({}, {.policy = "local"}).ok());
}

}  // namespace
}  // namespace lamina::coordinator
