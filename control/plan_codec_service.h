// SPDX-License-Identifier: Apache-2.0
//
// Plans and results to protobuf and back. What comes from the wire is checked for shape only;
// whether it makes sense is for the receiver to say.

#pragma once

#include "absl/status/statusor.h"
#include "common/attention_descriptor.h"
#include "lamina/v1/cluster.pb.h"
#include "plan/stages.h"
#include "plan/step_plan.h"

namespace lamina::control {

void ToProto(const SamplingParams& params, v1::Sampling* proto);
SamplingParams FromProto(const v1::Sampling& proto);

void ToProto(const plan::StepPlan& plan, v1::StepPlan* proto);
// Errors: kInvalidArgument  row lists of different lengths.
absl::StatusOr<plan::StepPlan> FromProto(const v1::StepPlan& proto);

void ToProto(const plan::StepResult& result, v1::StepResult* proto);
plan::StepResult FromProto(const v1::StepResult& proto);

void ToProto(const AttentionDescriptor& descriptor, v1::AttentionDescriptor* proto);
AttentionDescriptor FromProto(const v1::AttentionDescriptor& proto);

void ToProto(const plan::Stage& stage, v1::ComputeStage* proto);
plan::Stage FromProto(const v1::ComputeStage& proto);

}  // namespace lamina::control
