// SPDX-License-Identifier: Apache-2.0
//
// Table changes: what a plan changes in the tables that nodes keep. Each kind of change is a struct
// with a list of its own in StepPlan, and kinds apply one after the other, in the order below: what
// leaves makes room before anything joins, a sequence is known before it gets slots, and has them
// when they go out to the spill tier or come back.
//
// A new kind is a struct and its list in step_plan.h, its place in ChangeLists(), a field and its
// codec in control/plan_codec_service.cc, and an Apply() in each table; the compiler names those
// that lack one. Lists of one kind each, and not one list of variants: a step of many rows
// allocates a slot a row, and a variant would be as large as a join.
//
// Threading: pure functions.

#pragma once

#include <tuple>

#include "absl/status/status.h"
#include "plan/step_plan.h"

namespace lamina::plan {

// References to the lists of a plan, in the order in which kinds apply.
inline auto ChangeLists(const StepPlan& plan) {
  return std::tie(plan.spill_drops, plan.spills_out, plan.leaves, plan.releases, plan.joins,
                  plan.allocations, plan.spills_in);
}
inline auto ChangeLists(StepPlan& plan) {
  return std::tie(plan.spill_drops, plan.spills_out, plan.leaves, plan.releases, plan.joins,
                  plan.allocations, plan.spills_in);
}

// Calls `apply`, which returns a Status for a change of any kind, with each change in order.
// Errors: the first of `apply`; it is not called again.
template <typename Apply>
absl::Status ApplyChanges(const StepPlan& plan, const Apply& apply) {
  absl::Status status;
  const auto apply_list = [&](const auto& list) {
    for (auto change = list.begin(); status.ok() && change != list.end(); ++change) {
      status = apply(*change);
    }
  };
  std::apply([&](const auto&... lists) { (apply_list(lists), ...); }, ChangeLists(plan));
  return status;
}

// Applies a change with an `apply` that returns nothing.
template <typename Apply>
void ForEachChange(const StepPlan& plan, const Apply& apply) {
  const auto apply_list = [&](const auto& list) {
    for (const auto& change : list) {
      apply(change);
    }
  };
  std::apply([&](const auto&... lists) { (apply_list(lists), ...); }, ChangeLists(plan));
}

}  // namespace lamina::plan
