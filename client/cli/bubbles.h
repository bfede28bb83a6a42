// SPDX-License-Identifier: Apache-2.0
//
// Bubbles: what devices stood still for between two looks at a cluster, in shares and in words.

#pragma once

#include <string>

#include "client/cli/command.h"
#include "client/client.h"

namespace lamina::cli {

// What a node had done by the first look: nothing where it is new since, and where it had not told
// its counters by then, as much as by the second.
client::NodeStatus Earlier(const client::ClusterStatus& before, const client::NodeStatus& after);

// {"attend": 0.4, "wait_query": 0.5, ...}: shares of `seconds`. A node that started again counts
// from 0.
Json PartShares(const client::NodeStatus& before, const client::NodeStatus& after, double seconds);

// "busy: c0 71.0%, m0 ...", and on a line of its own "largest bubble: m0 stands still 41.0% of the
// time for queries of c0". Waits for plans count only when there is nothing else: then there was no
// work. `several`: more than one request ran at a time; without, only who was busy is told.
// Empty without nodes that report parts.
std::string LargestBubble(const client::ClusterStatus& before, const client::ClusterStatus& after,
                          double seconds, bool several = true);

}  // namespace lamina::cli
