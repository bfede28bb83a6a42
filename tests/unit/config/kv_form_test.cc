// SPDX-License-Identifier: Apache-2.0
//
// kv: int8 in a cluster file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "config/cluster_config.h"

namespace lamina {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kInt8[] =
    "model: m\nkv: int8\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\n";

std::string ErrorOf(const std::vector<std::string>& overrides) {
  const auto config = ParseClusterConfig(kInt8, "test", overrides);
  return config.ok() ? "no error" : config.status().ToString();
}

TEST(KvFormConfigTest, ComesBackAsItWasWritten) {
  const auto config = ParseClusterConfig(kInt8, "test", {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kv, KvForm::kInt8);
  EXPECT_TRUE(config->IsLossy());
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->kv, KvForm::kInt8);
  const auto plain = ParseClusterConfig(kInt8, "test", {"kv=bf16"});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->IsLossy());
}

TEST(KvFormConfigTest, WhatIsNotServedWithItIsRefusedByName) {
  EXPECT_EQ(ErrorOf({}), "no error");
  EXPECT_EQ(ErrorOf({"partition=head"}), "no error");
  EXPECT_EQ(ErrorOf({"policy=local", "memory=[]", "compute.0.capacity=1GiB"}), "no error");
  EXPECT_THAT(ErrorOf({"kv=int4"}), AllOf(HasSubstr("kv"), HasSubstr("bf16, int8")));
  EXPECT_EQ(ErrorOf({"policy=fetch_heads"}), "no error");
  EXPECT_EQ(ErrorOf({"policy=fetch_sparse", "fetch.caching_ratio=0.2"}), "no error");
  EXPECT_EQ(ErrorOf({"policies=[attend_remote, fetch_sparse, fetch_heads]"}), "no error");
  EXPECT_THAT(ErrorOf({"policies=[attend_remote, fetch_recompute]"}),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("policies: fetch_recompute"),
                    HasSubstr("with kv int8")));
  EXPECT_EQ(ErrorOf({"policies=[attend_remote, fetch_recompute]", "fetch.recompute=tokens"}),
            "no error");
  EXPECT_THAT(ErrorOf({"policy=auto", "compute.0.capacity=1GiB"}),
              HasSubstr("kv: int8 is not served by this version with policy auto"));
  EXPECT_EQ(ErrorOf({"partition=token_range"}), "no error");
  for (const std::string policies :
       {"policy=fetch_heads", "policies=[attend_remote, fetch_heads]"}) {
    EXPECT_THAT(ErrorOf({"partition=token_range", policies}),
                AllOf(HasSubstr("UNIMPLEMENTED"),
                      HasSubstr("with partition token_range and policies that fetch")));
  }
  EXPECT_THAT(
      ErrorOf({"prefill.mode=dedicated", "compute=[{name: c0}, {name: p0, role: prefill}]"}),
      HasSubstr("kv: int8 is not served by this version with prefill.mode dedicated"));
  EXPECT_THAT(ErrorOf({"memory.0.device=cuda"}), HasSubstr("cuda"));
  EXPECT_EQ(ErrorOf({"attention.decode=canonical"}), "no error");
  EXPECT_THAT(ErrorOf({"attention.decode=pairs"}),
              HasSubstr("kv: int8 is not served by this version with attention in pairs"));
}

TEST(KvFormConfigTest, NoActivationsAreAskedForWithInt8) {
  for (const auto& [policy, key] : {std::pair("fetch_recompute", "fetch.recompute_percent"),
                                    std::pair("fetch_hybrid", "fetch.activation_percent")}) {
    const std::string chosen = absl::StrCat("policy=", policy);
    EXPECT_EQ(ErrorOf({chosen}), "no error");
    EXPECT_EQ(ErrorOf({chosen, absl::StrCat(key, "=0")}), "no error");
    EXPECT_THAT(ErrorOf({chosen, absl::StrCat(key, "=30")}),
                AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr(absl::StrCat(key, ": 30")),
                      HasSubstr("about as many bytes as K and V")));
    EXPECT_EQ(ErrorOf({chosen, absl::StrCat(key, "=30"), "kv=bf16"}), "no error");
  }
}

TEST(KvFormConfigTest, OneFormHasNoShareOfTheOther) {
  for (const std::string form : {"bf16", "int8", "[int8]"}) {
    EXPECT_THAT(ErrorOf({"kv=" + form, "kv_int8_percent=30"}),
                AllOf(HasSubstr("INVALID_ARGUMENT"),
                      HasSubstr("kv_int8_percent: says how slots are shared by two forms"),
                      HasSubstr(form == "bf16" ? "kv is bf16 alone" : "kv is int8 alone")));
    EXPECT_EQ(ErrorOf({"kv=" + form, "kv_int8_percent=50"}), "no error");
  }
}

constexpr char kBoth[] =
    "model: m\nkv: [bf16, int8]\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\n";

TEST(KvFormConfigTest, SeveralFormsComeBackAsTheyWereWritten) {
  const auto config = ParseClusterConfig(kBoth, "test", {"kv_int8_percent=30"});
  ASSERT_TRUE(config.ok()) << config.status();
  const auto again = ParseClusterConfig(ToYaml(*config), "test", {});
  ASSERT_TRUE(again.ok()) << again.status();
  for (const ClusterConfig* read : {&*config, &*again}) {
    EXPECT_EQ(read->kv, KvForm::kBF16);
    EXPECT_EQ(read->PreparedForms(), std::vector<KvForm>({KvForm::kBF16, KvForm::kInt8}));
    EXPECT_EQ(read->kv_int8_percent, 30u);
    EXPECT_TRUE(read->HasBothForms());
    EXPECT_TRUE(read->IsLossy());
  }
  const auto other = ParseClusterConfig(kBoth, "test", {"kv=[int8, bf16]"});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->kv, KvForm::kInt8);
  EXPECT_TRUE(other->HasBothForms());
  const auto one = ParseClusterConfig(kBoth, "test", {"kv=[int8]"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->kv, KvForm::kInt8);
  EXPECT_FALSE(one->HasBothForms());
}

TEST(KvFormConfigTest, WhatIsNotServedWithSeveralFormsIsRefusedByName) {
  const auto error_of = [](const std::vector<std::string>& overrides) -> std::string {
    const auto config = ParseClusterConfig(kBoth, "test", overrides);
    return config.ok() ? "no error" : config.status().ToString();
  };
  EXPECT_EQ(error_of({}), "no error");
  EXPECT_EQ(error_of({"partition=head"}), "no error");
  EXPECT_EQ(error_of({"policies=[attend_remote]"}), "no error");
  constexpr char kList[] = "kv: a list of forms is not served by this version with ";
  for (const std::string policy : {"fetch_heads", "fetch_recompute", "fetch_sparse"}) {
    EXPECT_THAT(error_of({"policy=" + policy}),
                AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr(kList + ("policy " + policy))));
  }
  EXPECT_THAT(error_of({"policy=local", "memory=[]", "compute.0.capacity=1GiB"}),
              HasSubstr(std::string(kList) + "policy local"));
  EXPECT_THAT(error_of({"policies=[attend_remote, fetch_heads]"}),
              HasSubstr(std::string(kList) + "policy fetch_heads"));
  EXPECT_THAT(error_of({"compute=[{name: c0, replica: r, stage: 0}, {name: c1, replica: r, stage: "
                        "1}]"}),
              HasSubstr(std::string(kList) + "a replica of several nodes"));
  EXPECT_THAT(error_of({"partition=token_range"}),
              HasSubstr(std::string(kList) + "partition token_range"));
  EXPECT_THAT(error_of({"memory.0.spill={path: spilled, capacity: 1GiB}"}), HasSubstr("spill"));
  EXPECT_THAT(error_of({"attention.decode=pairs"}), HasSubstr("attention in pairs"));
  EXPECT_THAT(error_of({"kv=[bf16, bf16]"}),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("names bf16 twice")));
  EXPECT_THAT(error_of({"kv=[bf16, int4]"}), HasSubstr("'int4' is not one of bf16, int8"));
  EXPECT_THAT(error_of({"kv=[]"}), HasSubstr("kv: wants one value"));
  for (const std::string percent : {"0", "100", "200"}) {
    EXPECT_THAT(error_of({"kv_int8_percent=" + percent}),
                HasSubstr("kv_int8_percent: " + percent + " leaves one of the forms"));
  }
}

}  // namespace
}  // namespace lamina
