// SPDX-License-Identifier: Apache-2.0
//
// What a request for a beam search may ask for together with it.

#pragma once

#include "absl/status/status.h"
#include "coordinator/request.h"

namespace lamina::coordinator {

// Errors: kInvalidArgument names the field that a beam search does not go with, or what is wrong
//         with its own.
absl::Status CheckBeamRequest(const GenerateSpec& spec);

}  // namespace lamina::coordinator
