// SPDX-License-Identifier: Apache-2.0

#include "plan/table_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lamina::plan {
namespace {

using testing::ElementsAre;

// Says what it applies; refuses allocations for sequence 13.
struct Recorder {
  std::vector<std::string> said;

  absl::Status operator()(const SpillDrop& drop) {
    said.push_back(absl::StrCat("drop ", drop.spill));
    return absl::OkStatus();
  }
  absl::Status operator()(const SpillOut& spill) {
    said.push_back(absl::StrCat("out ", spill.spill));
    return absl::OkStatus();
  }
  absl::Status operator()(const SpillIn& spill) {
    said.push_back(absl::StrCat("in ", spill.spill));
    return absl::OkStatus();
  }
  absl::Status operator()(const SequenceLeave& leave) {
    said.push_back(absl::StrCat("leave ", leave.id));
    return absl::OkStatus();
  }
  absl::Status operator()(const SlotRelease& release) {
    said.push_back(absl::StrCat("release ", release.sequence));
    return absl::OkStatus();
  }
  absl::Status operator()(const SequenceJoin& join) {
    said.push_back(absl::StrCat("join ", join.id));
    return absl::OkStatus();
  }
  absl::Status operator()(const SlotAllocation& allocation) {
    said.push_back(absl::StrCat("allocation ", allocation.sequence));
    return allocation.sequence == 13 ? absl::InternalError("13") : absl::OkStatus();
  }
};

TEST(TableChangesTest, LeavesApplyBeforeReleasesAndJoinsAndThoseBeforeAllocations) {
  const StepPlan plan{.leaves = {{4}, {3}},
                      .releases = {{.sequence = 5, .tokens = 256}},
                      .joins = {{.id = 2}, {.id = 1}},
                      .allocations = {{.sequence = 2}, {.sequence = 1}, {.sequence = 9}}};
  Recorder recorder;

  EXPECT_TRUE(ApplyChanges(plan, [&](const auto& change) { return recorder(change); }).ok());

  EXPECT_THAT(recorder.said, ElementsAre("leave 4", "leave 3", "release 5", "join 2", "join 1",
                                         "allocation 2", "allocation 1", "allocation 9"));
}

// What leaves goes out before, and what joins comes in behind its slots.
TEST(TableChangesTest, SpillsApplyWhileTheirSequencesHaveSlots) {
  const StepPlan plan{.spill_drops = {{.spill = 7}},
                      .spills_out = {{.spill = 8, .sequence = 4}},
                      .leaves = {{4}},
                      .joins = {{.id = 2}},
                      .allocations = {{.sequence = 2}},
                      .spills_in = {{.spill = 6, .sequence = 2}}};
  Recorder recorder;

  EXPECT_TRUE(ApplyChanges(plan, [&](const auto& change) { return recorder(change); }).ok());

  EXPECT_THAT(recorder.said,
              ElementsAre("drop 7", "out 8", "leave 4", "join 2", "allocation 2", "in 6"));
}

TEST(TableChangesTest, NothingAppliesBehindAnError) {
  const StepPlan plan{.allocations = {{.sequence = 2}, {.sequence = 13}, {.sequence = 9}}};
  Recorder recorder;

  const absl::Status status =
      ApplyChanges(plan, [&](const auto& change) { return recorder(change); });

  EXPECT_EQ(status.message(), "13");
  EXPECT_THAT(recorder.said, ElementsAre("allocation 2", "allocation 13"));
}

}  // namespace
}  // namespace lamina::plan
