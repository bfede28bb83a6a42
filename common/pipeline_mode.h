// SPDX-License-Identifier: Apache-2.0
//
// PipelineMode: how lanes are spread over compute nodes. See plan/pipeline_schedule.h. No cluster
// file names kApart: it follows from KV that is on the compute nodes.

#pragma once

#include <cstdint>

namespace lamina {

enum class PipelineMode : uint8_t { kRotational, kFixed, kSequential, kApart };

}  // namespace lamina
