// SPDX-License-Identifier: Apache-2.0
//
// PipelineMode: how lanes are spread over compute nodes. See plan/pipeline_schedule.h.

#pragma once

#include <cstdint>

namespace lamina {

enum class PipelineMode : uint8_t { kRotational, kFixed, kSequential };

}  // namespace lamina
