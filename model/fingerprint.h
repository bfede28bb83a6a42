// SPDX-License-Identifier: Apache-2.0
//
// Fingerprint: tells whether two processes have opened the same model.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/model.h"

namespace lamina::model {

// A hash of every tensor's name, type and shape and of the first values of each. Cost: reads at
// most 1 KiB a tensor. Equal for copies of a file; different for other quantisations of the same
// model, and for longrope's other set of factors (OpenOptions).
absl::StatusOr<std::string> Fingerprint(const Model& model);

}  // namespace lamina::model
