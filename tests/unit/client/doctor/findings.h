// SPDX-License-Identifier: Apache-2.0
//
// What the tests of `lamina doctor` share: a folder that looks like the kernel's, and looks at
// findings.

#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "client/doctor/finding.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lamina::doctor {

// Empty at first, and gone at the end.
class FakeFolder {
 public:
  explicit FakeFolder(const std::string& name)
      : path_(std::filesystem::path(testing::TempDir()) / name) {
    std::filesystem::remove_all(path_);
  }
  ~FakeFolder() { std::filesystem::remove_all(path_); }
  FakeFolder(const FakeFolder&) = delete;
  FakeFolder& operator=(const FakeFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text << "\n";
  }
  void Remove(const std::string& name) const { std::filesystem::remove_all(path_ / name); }

 private:
  const std::filesystem::path path_;
};

// The worst finding of a check, which must be there.
inline Finding Find(const Findings& findings, const std::string& check) {
  Finding worst = {.check = "none", .found = "no finding of that name"};
  for (const Finding& finding : findings) {
    if (finding.check == check && (worst.check == "none" || finding.state > worst.state)) {
      worst = finding;
    }
  }
  EXPECT_EQ(worst.check, check);
  return worst;
}

// What is found has a cause and a remedy.
inline void ExpectExplained(const Finding& finding, State state) {
  EXPECT_EQ(finding.state, state) << finding.check << ": " << finding.found;
  EXPECT_THAT(finding.found, testing::Not(testing::IsEmpty()));
  EXPECT_THAT(finding.why, testing::Not(testing::IsEmpty()));
  EXPECT_THAT(finding.fix, testing::Not(testing::IsEmpty()));
}

}  // namespace lamina::doctor
