// SPDX-License-Identifier: Apache-2.0
//
// StubPort: a node's port that notes what it is told, and does nothing.

#pragma once

#include <string>
#include <vector>

#include "coordinator/node_port.h"

namespace lamina::coordinator {

class StubPort final : public NodePort {
 public:
  void LoadLayers(const plan::Stage& stage, bool measure) override {
    loaded.push_back(stage);
    measures = measure;
  }
  void Configure(const plan::EpochConfig& config) override { configured.push_back(config); }
  void Connect(const plan::EpochPeers& peers) override { connected.push_back(peers); }
  void Leave(const std::string& why) override { left.push_back(why); }
  void SendPlan(const OutgoingPlan&) override {}
  void StartTrace(Nanos) override {}
  void CollectTrace(uint64_t) override {}
  void PingClock() override {}
  void Refuse(const absl::Status& why) override { refused.emplace_back(why.message()); }
  void Dismiss() override { ++dismissed; }
  void End() override { ++ended; }

  std::vector<plan::Stage> loaded;
  bool measures = false;  // What it was told last with layers.
  std::vector<plan::EpochConfig> configured;
  std::vector<plan::EpochPeers> connected;
  std::vector<std::string> left;
  std::vector<std::string> refused;
  int dismissed = 0;
  int ended = 0;
};

}  // namespace lamina::coordinator
