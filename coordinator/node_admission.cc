// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node_admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "common/version.h"
#include "control/node_handler.h"
#include "coordinator/core/sequence_kv.h"
#include "plan/policy_times.h"
#include "plan/slot_kinds.h"

namespace lamina::coordinator {
namespace {

using control::LoopOf;

constexpr uint64_t kSlotsMax = uint64_t{1} << 31;

}  // namespace

absl::Status NodeAdmission::Check(const NodeHello& hello, bool holds_kv) const {
  const control::NodeIdentity& identity = hello.identity;
  if (hello.version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("node ", identity.name, " is of version ",
                                                      hello.version, ", the coordinator of ",
                                                      kVersion, "; install the same version"));
  }
  if (!identity.is_memory && identity.model_fingerprint != options_.model_fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model of ", identity.name,
                     " is not the coordinator's; give both the same file, and the "
                     "same cluster file: weights: int8 makes another model of it"));
  }
  if (!identity.is_memory && identity.capacity_bytes == 0 && holds_kv) {
    return absl::FailedPreconditionError(
        absl::StrCat("compute node ", identity.name,
                     " has no capacity for KV, which policy local keeps there; start it with the "
                     "coordinator's cluster file"));
  }
  // One that is part of a replica measures when it has loaded its layers.
  if (!identity.is_memory && options_.policy_auto.has_value() && !IsPart(identity.name)) {
    LAMINA_RETURN_IF_ERROR(CheckMeasured(identity.name, identity.policy_times));
  }
  if (identity.is_memory) {
    LAMINA_RETURN_IF_ERROR(plan::CheckPolicyTimes(identity.policy_times));
    LAMINA_RETURN_IF_ERROR(CheckDevice(identity));
    // What a policy or a form makes of tiers was checked with the file alone.
    if (identity.spill.capacity_bytes > 0 && !options_.spills) {
      return absl::FailedPreconditionError(absl::StrCat(
          "memory node ", identity.name, " has a spill tier, and no memory node has one in the ",
          "coordinator's cluster file; start it with that file"));
    }
    // The file's nodes all have one, but a node may be added to them, or run with another file.
    if (identity.spill.capacity_bytes == 0 && options_.spills &&
        options_.partition == Partition::kHead) {
      return absl::FailedPreconditionError(absl::StrCat(
          "memory node ", identity.name, " has no spill tier, and the others of its cluster have: ",
          "partition head spreads each token over all memory nodes, so all of them have one or "
          "none has; give it a memory.N.spill in its cluster file"));
    }
  }
  return CheckRoom(hello, holds_kv);
}

absl::Status NodeAdmission::CheckShards(const NodeHello& hello,
                                        const AttachedNodes& attached) const {
  const std::string& name = hello.identity.name;
  if (!options_.has_experts || hello.identity.is_memory) {
    return absl::OkStatus();
  }
  for (const ReplicaOptions& replica : options_.replicas) {
    const auto found = std::find(replica.nodes.begin(), replica.nodes.end(), name);
    if (found == replica.nodes.end()) {
      continue;
    }
    const size_t first =
        static_cast<size_t>(found - replica.nodes.begin()) / replica.shards * replica.shards;
    for (size_t i = first; i < first + replica.shards && i < replica.nodes.size(); ++i) {
      const AttachedNode* other = attached.Find(replica.nodes[i]);
      if (replica.nodes[i] != name && other != nullptr &&
          LoopOf(other->hello.identity) != LoopOf(hello.identity)) {
        return absl::FailedPreconditionError(absl::StrCat(
            "compute node ", name, " has the kernels '", LoopOf(hello.identity), "', and ",
            replica.nodes[i], ", another shard of its stage of replica '", replica.name, "', '",
            LoopOf(other->hello.identity),
            "': shards of a mixture of experts need processors of one class, since each chooses "
            "the experts of a row by itself; put both on such processors, or let one node hold "
            "the stage"));
      }
    }
  }
  return absl::OkStatus();
}

// The cluster file says so of its own nodes; one that runs with another file, or is not in it, says
// here where it is.
absl::Status NodeAdmission::CheckDevice(const control::NodeIdentity& memory) const {
  const bool fetches = options_.fetch.bytes > 0;
  if (memory.device == "cpu" || (!options_.kv.keeps_int8() && !fetches)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("memory node ", memory.name, " is on ", memory.device,
                   options_.kv.keeps_int8() ? ", which keeps no K and V as INT8 (kv)"
                                            : ", from which nobody fetches K and V (policy)",
                   "; give it device: cpu, and start it with the coordinator's cluster file"));
}

absl::Status NodeAdmission::CheckMeasured(const std::string& name,
                                          const plan::PolicyTimes& times) const {
  LAMINA_RETURN_IF_ERROR(plan::CheckPolicyTimes(times));
  return times.measured() || !options_.policy_auto.has_value()
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat(
                   "compute node ", name,
                   " has measured nothing for policy auto; start it with the coordinator's "
                   "cluster file"));
}

absl::Status NodeAdmission::CheckRoom(const NodeHello& hello, bool holds_kv) const {
  const control::NodeIdentity& identity = hello.identity;
  const uint32_t least = options_.scheduler.SlotsAtOnce(options_.scheduler.sequence_tokens_max);
  if (identity.is_memory && options_.scheduler.span_tokens > 0) {
    // One span at least; whether a longest request has room, only all nodes together tell.
    return core::CheckSpans({{.name = identity.name, .slots = SlotsOf(hello)}},
                            options_.scheduler.span_tokens, options_.scheduler.span_tokens);
  }
  const uint32_t wanted = WholeSlots(options_.fetch, least);
  if (identity.is_memory && options_.partition == Partition::kHead) {
    // One head at least; whether all have room for all heads, only all of them tell.
    const uint64_t least_bytes = BytesOfHead(wanted);
    return identity.capacity_bytes >= least_bytes
               ? absl::OkStatus()
               : absl::FailedPreconditionError(absl::StrCat(
                     "memory node ", identity.name, " has ", FormatBytes(identity.capacity_bytes),
                     ", too little for its share: one KV head of one request of ", least,
                     " tokens (limits.sequence_tokens_max)", TailWords(), " takes ",
                     FormatBytes(least_bytes), "; raise its capacity or lower the limit"));
  }
  if (!identity.is_memory && IsPart(identity.name)) {
    return absl::OkStatus();  // How many layers and heads it has shows when its replica is there.
  }
  if (!identity.is_memory && options_.policy_auto.has_value()) {
    return absl::OkStatus();  // It leaves policy local out, and says why.
  }
  // Slots of two kinds are whole blocks.
  const uint64_t block = options_.fetch.hybrid.has_value() ? plan::SlotKinds::kBlockSlots : 1;
  const uint64_t slots = SlotsIn(identity.capacity_bytes) / block * block;
  return !holds_kv || slots >= least
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat(
                   identity.is_memory ? "memory node " : "compute node ", identity.name, " has ",
                   FormatBytes(identity.capacity_bytes), ": room for ", slots, " tokens",
                   options_.kv.has_both() ? " of each form"
                   : hybrid_percent() > 0 ? " of fetch_hybrid, and of the other policies"
                                          : "",
                   TailWords(), ", but one request may have ", least,
                   " (limits.sequence_tokens_max); raise its capacity to ",
                   FormatBytes(CapacityFor(wanted)), " or lower the limit"));
}

uint64_t NodeAdmission::BytesOfHead(uint64_t slots) const {
  const std::vector<AttentionDescriptor>& layers = options_.layers;
  const uint32_t heads = layers[0].kv_heads;
  if (options_.fetch.activation_width == 0) {
    return CapacityFor(slots) / heads;
  }
  const uint64_t kv = KvBytesPerToken(layers);
  return slots * (kv / heads + HeadBytesBesidesKv(options_.fetch, layers.size(), kv, heads, slots));
}

bool NodeAdmission::IsPart(const std::string& name) const {
  return std::any_of(
      options_.replicas.begin(), options_.replicas.end(), [&](const ReplicaOptions& replica) {
        return std::find(replica.nodes.begin(), replica.nodes.end(), name) != replica.nodes.end();
      });
}

uint32_t NodeAdmission::SlotsOf(const NodeHello& hello) const {
  return static_cast<uint32_t>(
      std::min<uint64_t>(SlotsIn(hello.identity.capacity_bytes), kSlotsMax));
}

std::string NodeAdmission::TailWords() const {
  return tail_bytes_ == 0
             ? ""
             : absl::StrCat(" and ", FormatBytes(tail_bytes_), " for the open blocks of ",
                            options_.kv.tails, " sequences (kv int8, limits.running_max)");
}

}  // namespace lamina::coordinator
