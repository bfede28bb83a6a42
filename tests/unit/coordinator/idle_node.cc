// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/coordinator/idle_node.h"

#include <gtest/gtest.h>

#include <utility>

#include "common/version.h"
#include "tests/unit/coordinator/small_limits.h"

namespace lamina::coordinator {

EngineOptions OneIdleNode() {
  return {.nodes = {{.name = "c0", .holds_kv = true}},
          .layers = {{.query_heads = 1, .kv_heads = 1, .head_dim = 16}},
          .vocabulary = kIdleVocabulary,
          .model_fingerprint = "model",
          .scheduler = SmallLimits()};
}

IdleNode::IdleNode(std::string name, Engine& engine) : name_(std::move(name)), engine_(engine) {}

std::shared_ptr<IdleNode> IdleNode::Join(Engine& engine, const core::Member& member) {
  auto node = std::make_shared<IdleNode>(member.name, engine);
  engine.NodeJoined({.identity = {.name = member.name,
                                  .is_memory = member.is_memory,
                                  .capacity_bytes = 1 << 20,
                                  .bandwidth_bytes_per_second = 1e9,
                                  .model_fingerprint = member.is_memory ? "" : "model"},
                     .version = std::string(kVersion)},
                    node);
  return node;
}

void IdleNode::Configure(const plan::EpochConfig& config) {
  epoch_ = config.epoch;
  engine_.NodePrepared(source(), epoch_, {.region = "region"});
}

void IdleNode::Connect(const plan::EpochPeers&) { engine_.NodeReady(source(), epoch_); }

void IdleNode::Refuse(const absl::Status& why) { ADD_FAILURE() << name_ << ": " << why; }

}  // namespace lamina::coordinator
