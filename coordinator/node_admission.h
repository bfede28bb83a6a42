// SPDX-License-Identifier: Apache-2.0
//
// NodeAdmission: whether a node that says Hello can serve this cluster: version, model, room for
// KV, what policy auto wants to know, loops of shards. Whether it is named in the cluster file is
// core/membership.h's.
//
// Determinism: same arguments, same answer.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "coordinator/attached_nodes.h"
#include "coordinator/engine_options.h"
#include "coordinator/hybrid_room.h"
#include "coordinator/node_port.h"

namespace lamina::coordinator {

class NodeAdmission {
 public:
  // The options must outlive this.
  explicit NodeAdmission(const EngineOptions& options)
      : options_(options),
        slot_bytes_(
            SlotBytes(options.fetch, options.layers.size(), options.kv.SlotBytes(options.layers))),
        tail_bytes_(TailBytes(options)) {}

  // `holds_kv`: whether it does in some epoch.
  // Errors: kFailedPrecondition  another version or model; too little room for what one request may
  //                              need of the node; nothing measured under policy auto; a memory
  //                              node on a GPU that this cluster's K and V cannot be on, with a
  //                              spill tier where none has one, or without where all have to.
  //         kInvalidArgument     times under policy auto that cannot be.
  absl::Status Check(const NodeHello& hello, bool holds_kv) const;

  // Shards of a stage each choose the experts of a row by themselves, and agree where their dense
  // layers have the same bits.
  // Errors: kFailedPrecondition  another shard that is attached has another loop; names both.
  absl::Status CheckShards(const NodeHello& hello, const AttachedNodes& attached) const;

  // What a compute node has measured for policy auto, which needs it.
  // Errors: kFailedPrecondition  nothing, under policy auto; kInvalidArgument  times that cannot
  // be.
  absl::Status CheckMeasured(const std::string& name, const plan::PolicyTimes& times) const;

  // Tokens that the node has room for.
  uint32_t SlotsOf(const NodeHello& hello) const;

 private:
  std::string TailWords() const;
  // Whether it is a stage or a shard of a replica.
  bool IsPart(const std::string& name) const;
  absl::Status CheckDevice(const control::NodeIdentity& memory) const;
  absl::Status CheckRoom(const NodeHello& hello, bool holds_kv) const;
  // Where fetch_hybrid is one of several policies: HybridOptions::percent. Else 0.
  uint32_t hybrid_percent() const {
    return options_.fetch.hybrid.has_value() ? options_.fetch.hybrid->percent : 0;
  }
  TokenBytes token_bytes() const {
    return {.kv = KvBytesPerToken(options_.layers),
            .activation = ActivationBytesPerToken(options_.fetch, options_.layers.size())};
  }
  // The least capacity for so many slots, with both forms, or fetch_hybrid next to others, of each.
  uint64_t CapacityFor(uint64_t slots) const {
    if (const uint32_t percent = hybrid_percent(); percent > 0) {
      return CapacityForEach(token_bytes(), percent, slots);
    }
    return options_.kv.has_both() ? options_.kv.CapacityFor(slots, options_.layers)
                                  : tail_bytes_ + slot_bytes_ * slots;
  }
  // Partition head: of one KV head of so many slots.
  uint64_t BytesOfHead(uint64_t slots) const;
  // Slots that fit into the capacity next to the tails; with both forms, or with fetch_hybrid next
  // to others, so many of each.
  uint64_t SlotsIn(uint64_t capacity_bytes) const {
    if (options_.kv.has_both()) {
      return options_.kv.SlotsIn(capacity_bytes, options_.layers);
    }
    if (const uint32_t percent = hybrid_percent(); percent > 0) {
      return SlotsOfEach(token_bytes(), percent, capacity_bytes);
    }
    return capacity_bytes < tail_bytes_ ? 0 : (capacity_bytes - tail_bytes_) / slot_bytes_;
  }

  const EngineOptions& options_;
  const uint64_t slot_bytes_;
  const uint64_t tail_bytes_;
};

}  // namespace lamina::coordinator
