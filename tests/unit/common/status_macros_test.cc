// SPDX-License-Identifier: Apache-2.0
#include "common/status_macros.h"

#include <gtest/gtest.h>

#include <memory>

namespace lamina {
namespace {

absl::Status ReturnsIfError(const absl::Status& status, int& passed) {
  LAMINA_RETURN_IF_ERROR(status);
  ++passed;
  return absl::OkStatus();
}

absl::StatusOr<int> Assigns(absl::StatusOr<std::unique_ptr<int>> first,
                            absl::StatusOr<int> second) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<int> pointer, std::move(first));
  int sum = 1;
  LAMINA_ASSIGN_OR_RETURN(sum, second);
  return sum + *pointer;
}

TEST(StatusMacrosTest, ReturnIfErrorPassesOkAndReturnsTheError) {
  int passed = 0;

  EXPECT_TRUE(ReturnsIfError(absl::OkStatus(), passed).ok());
  EXPECT_EQ(ReturnsIfError(absl::AbortedError("stale"), passed), absl::AbortedError("stale"));
  EXPECT_EQ(passed, 1);
}

TEST(StatusMacrosTest, AssignOrReturnMovesTheValueOrReturnsTheError) {
  EXPECT_EQ(*Assigns(std::make_unique<int>(2), 40), 42);
  EXPECT_EQ(Assigns(absl::NotFoundError("a"), 1).status(), absl::NotFoundError("a"));
  EXPECT_EQ(Assigns(std::make_unique<int>(2), absl::DataLossError("b")).status(),
            absl::DataLossError("b"));
}

}  // namespace
}  // namespace lamina
