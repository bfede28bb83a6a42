// SPDX-License-Identifier: Apache-2.0
//
// ChoosePolicy: which of the policies that epochs prepare serves a request.
//
// Determinism: same arguments, same answer.

#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/engine_options.h"
#include "coordinator/request.h"

namespace lamina::coordinator {

// The first one that has the request's policy and form of K and V; a word that it does not say is
// that of the first of all. Null: there are none, and the request names none.
// Errors: kInvalidArgument  a policy that is not prepared, or not with that form; names those that
//                           are.
absl::StatusOr<const PreparedPolicy*> ChoosePolicy(const std::vector<PreparedPolicy>& policies,
                                                   const GenerateSpec& spec);

}  // namespace lamina::coordinator
