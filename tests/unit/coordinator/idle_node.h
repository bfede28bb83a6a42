// SPDX-License-Identifier: Apache-2.0
//
// IdleNode: a node of an engine that takes part in every epoch, and never does a step; and the
// options of an engine with a single one.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/engine.h"

namespace lamina::coordinator {

inline constexpr uint32_t kIdleVocabulary = 100;

// One node, c0, which holds K and V itself.
EngineOptions OneIdleNode();

class IdleNode final : public NodePort {
 public:
  IdleNode(std::string name, Engine& engine);

  // A node for this member of the options joins.
  static std::shared_ptr<IdleNode> Join(Engine& engine, const core::Member& member);
  NodeSource source() const { return {.name = name_, .port = this}; }
  int let_go() const { return let_go_; }  // How often it was.

  void LoadLayers(const plan::Stage&, bool) override {}
  void Configure(const plan::EpochConfig& config) override;
  void Connect(const plan::EpochPeers&) override;
  void Leave(const std::string&) override { ++let_go_; }
  void Dismiss() override {}
  void SendPlan(const OutgoingPlan&) override {}
  void StartTrace(Nanos) override {}
  void CollectTrace(uint64_t) override {}
  void PingClock() override {}
  void Refuse(const absl::Status& why) override;
  void End() override {}

 private:
  const std::string name_;
  Engine& engine_;
  uint64_t epoch_ = 0;
  std::atomic<int> let_go_ = 0;
};

}  // namespace lamina::coordinator
