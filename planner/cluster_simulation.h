// SPDX-License-Identifier: Apache-2.0
//
// The cluster of a cluster file as cells to simulate: its replicas, stages, shards, lanes,
// partition, policy, capacities and limits, on devices of a catalogue.
//
// Threading: pure.

#pragma once

#include "absl/status/statusor.h"
#include "config/cluster_config.h"
#include "cost/catalogue.h"
#include "cost/rates.h"
#include "planner/simulation.h"

namespace lamina::planner {

// What the nodes run on. Links: what nodes put to each other with.
struct ClusterDevices {
  cost::DeviceRates compute;
  cost::DeviceRates memory;
  cost::LinkRates link;
  cost::LinkRates shard_link;
};

// Partition auto is simulated as by request, `lanes: auto` as the scheduler chooses by the cost
// model's times. Capacities are the cluster file's. With policy local each replica is a cell of the
// fleet: sequences of one that is lost wait for it, where they would go on in others.
// Errors: kUnimplemented    policy auto: name one; a policy that fetches K and V; replicas that
//                           differ in stages or shards, nodes for K and V that differ in
//                           capacity.
//         kInvalidArgument  K and V of not one token fit; more stages than the model has layers.
absl::StatusOr<SimFleet> FleetOfClusterFile(const ClusterConfig& config,
                                            const cost::ModelShape& shape,
                                            const ClusterDevices& devices,
                                            const SimFailures& failures);

}  // namespace lamina::planner
