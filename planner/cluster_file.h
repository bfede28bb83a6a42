// SPDX-License-Identifier: Apache-2.0
//
// A plan as a cluster file, and with that whether this software runs it: the cluster file's own
// checks decide.
//
// Threading: pure.

#pragma once

#include <cstdint>
#include <string>

#include "config/cluster_config.h"
#include "planner/evaluation.h"

namespace lamina::planner {

// The longest sequence that a plan's cluster file allows where its nodes have room for it: longer
// than the mean request, within the model's positions.
uint32_t SequenceTokensMax(const Problem& problem);

// Bytes of fetch.window with which windows have room for that sequence as they must, the default
// where that suffices or nothing is fetched: one KV head of it, or where activations are kept all
// heads of it, or these.
uint64_t FetchWindowOf(const Problem& problem, const Configuration& configuration);

// Each machine is a host of its own, named after its part and number (compute-0, memory-1), which
// the user replaces by real ones. `model` is the path that daemons open. Sequences are as long as
// the nodes have room for, at most.
ClusterConfig ClusterFileOf(const Problem& problem, const Configuration& configuration,
                            const Evaluation& evaluation, const std::string& model);

// Why this software does not run the configuration; empty where it does.
std::string WhyNotRunnable(const Problem& problem, const Configuration& configuration,
                           const Evaluation& evaluation);

}  // namespace lamina::planner
