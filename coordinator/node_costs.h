// SPDX-License-Identifier: Apache-2.0
//
// NodeCosts: what the nodes of an epoch have measured of slices, attentions and links, put together
// for the scheduler.
//
// Determinism: pure functions.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/attached_nodes.h"
#include "coordinator/cluster_members.h"
#include "coordinator/core/fetch_planning.h"
#include "coordinator/epoch_forming.h"
#include "coordinator/replica_splits.h"
#include "cost/layer_seconds.h"
#include "telemetry/fitted_seconds.h"

namespace lamina::coordinator {

// The members of an epoch that are there.
struct MeasuredNodes {
  std::vector<const AttachedNode*> compute;
  std::vector<const AttachedNode*> memory;
};
MeasuredNodes MeasuredNodesOf(const ClusterMembers& members);

// Slices and attentions of these nodes; slices alone where all rows attend on compute nodes, over K
// and V that come as they are.
cost::LaneCosts CostsOfLanes(const FormedEpoch& epoch, const ReplicaSplits& splits,
                             const MeasuredNodes& nodes);

// The mean unit of those of the nodes that have measured one (nodes for prefill only do not), over
// rows or tokens; zeros before any is measured.
cost::UnitTimes MeanUnit(const std::vector<const AttachedNode*>& nodes);

// A layer's attention on one of these compute nodes, which hold K and V, over tokens that they
// read: in proportion, since they started; zeros before any is measured.
cost::UnitTimes MeanAttention(const FormedEpoch& epoch, const ReplicaSplits& splits,
                              const std::vector<const AttachedNode*>& nodes);

// Links from compute nodes that decode to memory nodes, as they are believed to be by measurement
// and use (core/link_belief.h). They are measured one way; the way back is
// taken to be as fast. Memory nodes share a lane's rows, and a compute node's link carries those of
// all.
cost::LinkCosts CostsOfLinks(const FormedEpoch& epoch, const MeasuredNodes& nodes);

// What of tokens comes over all links from memory nodes together in a second, and how long the
// compute node takes to make K and V of one in a layer: by the line of its latest times, where that
// explains them, else the mean since it started, from the profile that it makes then on; what a
// layer's streamed weights take on the emulated bus, where they come over one. Zeros: not known, or
// an epoch that keeps no activations.
// What comes of tokens follows how links were used of late (core::FetchBandwidthOfAll()). An
// emulated bus has what the cluster file says of it, whatever was measured, once any link is known:
// a probe may have met a busy host, and in what came weights that stream would count twice.
core::FetchRates FetchRatesOf(const EngineOptions& options, const FormedEpoch& epoch,
                              const MeasuredNodes& nodes);

// Lines behind these rates, as nodes have fitted them.
struct FetchFits {
  // Seconds to make K and V of a layer's tokens, over these. All zero: not fitted.
  telemetry::FittedSeconds making;
  // The least of the links', each of a line through times of bursts over their bytes.
  std::optional<double> link_r_squared;
};
FetchFits FetchFitsOf(const MeasuredNodes& nodes);

// For people: "; lines fitted with R squared 0.998 (links) and 0.971 (making K and V)"; empty where
// nothing is fitted.
std::string DescribeFits(const FetchFits& fits);

}  // namespace lamina::coordinator
