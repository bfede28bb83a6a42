// SPDX-License-Identifier: Apache-2.0
//
// docs/models.md says what the registry says: its two tables are made from it here. Where they
// differ, the failure prints the table as it should stand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/architectures/architecture.h"
#include "tests/support/source_path.h"

namespace lamina::model {
namespace {

std::string Page() {
  std::ifstream file(test_support::SourcePath("docs/models.md"));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Code(const std::vector<absl::string_view>& names) {
  return names.empty() ? "" : absl::StrCat("`", absl::StrJoin(names, "`, `"), "`");
}

std::string SupportedTable() {
  std::string table =
      "| models | `model_type` in config.json | GGUF | what is particular |\n|---|---|---|---|\n";
  for (const Architecture* architecture : AllArchitectures()) {
    std::vector<absl::string_view> types = architecture->hugging_face_types;
    types.insert(types.end(), architecture->types_with_text.begin(),
                 architecture->types_with_text.end());
    absl::StrAppend(&table, "| ", architecture->models, " | ", Code(types), " | ",
                    architecture->gguf_name.empty() ? "" : Code({architecture->gguf_name}), " | ",
                    architecture->features, " |\n");
  }
  return table;
}

std::string RefusedTable() {
  std::string table = "| models | names | what is missing |\n|---|---|---|\n";
  for (const RefusedArchitecture& refused : RefusedArchitectures()) {
    absl::StrAppend(&table, "| ", refused.models, " | ", Code(refused.types), " | ",
                    refused.missing, " |\n");
  }
  return table;
}

TEST(ModelsPageTest, ListsWhatRuns) {
  EXPECT_TRUE(absl::StrContains(Page(), SupportedTable()))
      << "docs/models.md should have this table:\n"
      << SupportedTable();
}

TEST(ModelsPageTest, ListsWhatIsRefusedAndWhy) {
  EXPECT_TRUE(absl::StrContains(Page(), RefusedTable()))
      << "docs/models.md should have this table:\n"
      << RefusedTable();
}

TEST(RegistryTest, EveryNameBelongsToOneFamily) {
  std::set<std::string> seen;
  for (const Architecture* architecture : AllArchitectures()) {
    EXPECT_FALSE(architecture->models.empty()) << architecture->name;
    EXPECT_FALSE(architecture->features.empty()) << architecture->name;
    for (const auto* types : {&architecture->hugging_face_types, &architecture->types_with_text}) {
      for (const absl::string_view type : *types) {
        EXPECT_TRUE(seen.insert(std::string(type)).second) << type;
      }
    }
  }
  for (const RefusedArchitecture& refused : RefusedArchitectures()) {
    for (const absl::string_view type : refused.types) {
      EXPECT_TRUE(seen.insert(std::string(type)).second) << type;
    }
  }
}

TEST(RegistryTest, RefusedFamiliesAreRefusedWithWhatIsMissing) {
  for (const RefusedArchitecture& refused : RefusedArchitectures()) {
    for (const absl::string_view type : refused.types) {
      for (const absl::Status& status :
           {FindArchitectureForJson(type).status(), FindArchitectureForGguf(type).status()}) {
        EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
        EXPECT_THAT(std::string(status.message()),
                    ::testing::AllOf(::testing::HasSubstr(std::string(type)),
                                     ::testing::HasSubstr(std::string(refused.missing))));
      }
    }
  }
}

}  // namespace
}  // namespace lamina::model
