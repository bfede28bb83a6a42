// SPDX-License-Identifier: Apache-2.0
//
// A status of the cluster that counts all that its nodes have done. Nodes tell the coordinator
// their counters twice a second, so that a status by itself lacks up to half a second of work.

#pragma once

#include "absl/status/statusor.h"
#include "client/cancellation.h"
#include "client/client.h"

namespace lamina::cli {

// The first status for which every node that takes part has counted after this call began: a report
// under way when it began may be older, so each node must have made two more. Costs half a second
// to one. What has not come within 5 s (a lost node), or when `cancellation` is, is not waited for.
absl::StatusOr<client::ClusterStatus> CountedStatus(client::Client& client,
                                                    const client::Cancellation& cancellation);

// Whether `now` has two reports more than `before` of every node that is in both and ready.
bool HasCounted(const client::ClusterStatus& before, const client::ClusterStatus& now);

}  // namespace lamina::cli
