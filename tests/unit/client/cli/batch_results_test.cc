// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/cli/batch_file.h"

namespace lamina::cli {
namespace {

using ::testing::Contains;
using ::testing::Not;

// While it lives no file becomes larger, as on a full disk: a write writes what still fits.
class FullDisk {
 public:
  explicit FullDisk(uint64_t file_bytes_max) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit full = {.rlim_cur = file_bytes_max, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  }
  ~FullDisk() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*const handler_)(int);
  rlimit before_ = {};
};

Json Line(const std::string& custom_id) {
  return BatchError({.custom_id = custom_id}, absl::InvalidArgumentError("no"));
}

TEST(ResultFileTest, NothingStandsBehindALineThatIsCutOff) {
  const std::string path = absl::StrCat(testing::TempDir(), "/results_", getpid(), ".jsonl");
  std::remove(path.c_str());
  std::optional<ResultFile> results;
  results.emplace();
  ASSERT_TRUE(results->Open(path).ok());
  ASSERT_TRUE(results->Append(Line("a")).ok());

  {
    const FullDisk disk(std::filesystem::file_size(path) + 10);
    EXPECT_EQ(results->Append(Line("b")).code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(results->Append(Line("c")).code(), absl::StatusCode::kDataLoss)
      << "though there is room again";
  results.reset();

  ResultFile again;
  const absl::StatusOr<std::set<std::string>> had = again.Open(path);
  ASSERT_TRUE(had.ok()) << had.status();
  EXPECT_THAT(*had, Contains("a"));
  EXPECT_THAT(*had, Not(Contains("c")));
  EXPECT_TRUE(again.Append(Line("b")).ok());
  std::remove(path.c_str());
}

}  // namespace
}  // namespace lamina::cli
