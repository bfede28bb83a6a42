// SPDX-License-Identifier: Apache-2.0
//
// How fast the links to the peers are: measured when an epoch begins, before its first plan is
// taken. A compute node asks its memory nodes, and the compute nodes behind it in the order; it
// answers those before it first, so that no two measure at a time.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "compute_node/worker_context.h"
#include "control/node_handler.h"
#include "transport/transport.h"

namespace lamina::compute_node {

// Reports the speeds. Errors: the transport's; kDeadlineExceeded  a peer that does not answer;
// kCancelled  `abort` was raised. Each is blamed on the peer (control/blame.h).
absl::Status MeasureLinks(const WorkerContext& context, const transport::AbortWord& abort,
                          control::NodeReporter& reporter);

}  // namespace lamina::compute_node
