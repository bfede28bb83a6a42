// SPDX-License-Identifier: Apache-2.0
//
// Errors of requests for which there is no cluster: it does not serve them yet, or stopped while
// they ran. Nothing speaks against the request, which may be asked again once the cluster serves.

#pragma once

#include "absl/status/status.h"

namespace lamina::coordinator {

// The error, marked as one of these; OK stays OK.
absl::Status StoppedServing(absl::Status status);

bool HasStoppedServing(const absl::Status& status);

}  // namespace lamina::coordinator
