// SPDX-License-Identifier: Apache-2.0
//
// Configurations of epochs, and the regions of their nodes, to protobuf and back. What comes from
// the wire is not checked here: plan/epoch_topology.h says what a configuration must satisfy.

#pragma once

#include "lamina/v1/cluster.pb.h"
#include "plan/epoch_config.h"

namespace lamina::control {

void ToProto(const plan::EpochConfig& config, v1::Configure* proto);
plan::EpochConfig FromProto(const v1::Configure& proto);

void ToProto(const plan::EpochPeers& peers, v1::Connect* proto);
plan::EpochPeers FromProto(const v1::Connect& proto);

}  // namespace lamina::control
