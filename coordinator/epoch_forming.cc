// SPDX-License-Identifier: Apache-2.0
#include "coordinator/epoch_forming.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "coordinator/attention_choice.h"
#include "coordinator/core/sequence_kv.h"
#include "coordinator/hybrid_room.h"
#include "coordinator/hybrid_share.h"
#include "coordinator/spill_shares.h"
#include "plan/activation_part.h"
#include "plan/prefill_lanes.h"
#include "plan/slot_kinds.h"

namespace lamina::coordinator {
namespace {

std::vector<std::string> NamesOf(const std::vector<EpochMember>& members) {
  std::vector<std::string> names;
  for (const EpochMember& member : members) {
    names.push_back(member.name);
  }
  return names;
}

bool AnyOnDevice(const std::vector<EpochMember>& members) {
  return std::any_of(members.begin(), members.end(),
                     [](const EpochMember& member) { return member.on_device; });
}

// The most slots of a node.
constexpr uint64_t kSlotsMax = uint64_t{1} << 31;

// As many for each replica as keep the one with the most stages busy.
uint32_t PrefillLanesOf(const EpochMembers& members) {
  if (members.stages.empty()) {
    return members.prefill_nodes;
  }
  const auto replicas = plan::ByReplica(
      absl::MakeConstSpan(members.stages).subspan(members.stages.size() - members.prefill_nodes));
  uint32_t each = 0;
  for (const std::vector<plan::Stage>& replica : replicas) {
    const uint32_t count = replica.front().shard.count;
    each =
        std::max(each, plan::PrefillLanesOf(static_cast<uint32_t>(replica.size()) / count, count));
  }
  return static_cast<uint32_t>(replicas.size()) * each;
}

// What a token takes of a node that has these heads of each layer.
TokenBytes BytesOfHeads(const std::vector<AttentionDescriptor>& layers, const FetchOptions& fetch,
                        const HeadRange& heads) {
  TokenBytes bytes;
  for (const AttentionDescriptor& layer : layers) {
    const plan::ActivationPart part =
        plan::ActivationPartOf(fetch.activation_width, heads, layer.kv_heads);
    bytes.kv += heads.count * KvHeadBytes(layer.head_dim, KvForm::kBF16);
    bytes.activation += part.count * sizeof(BFloat16);
  }
  return bytes;
}

// The slots that all nodes have room for with their heads and their parts of activations, to the
// byte, now that it is settled whose they are.
void CountWithActivations(const std::vector<AttentionDescriptor>& layers,
                          const EpochMembers& members, core::HeadSplit& split) {
  uint64_t slots = kSlotsMax;
  for (size_t i = 0; i < members.kv.size(); ++i) {
    const TokenBytes bytes = BytesOfHeads(layers, members.fetch, split.heads[i]);
    const uint64_t capacity = members.kv[i].capacity_bytes;
    const uint64_t own =
        members.activation_share.has_value()
            ? SlotsOfKinds(bytes, plan::SlotKinds(*members.activation_share), capacity)
            : capacity / (bytes.kv + bytes.activation);
    if (own < slots) {
      slots = own;
      split.tightest = static_cast<uint32_t>(i);
    }
  }
  split.slots = static_cast<uint32_t>(slots);
}

}  // namespace

absl::StatusOr<FormedEpoch> EpochForming::Form(const EpochMembers& members) const {
  LAMINA_ASSIGN_OR_RETURN(Placement placement, Place(members));
  if (placement.share_of.empty()) {
    for (uint32_t node = 0; node < members.kv.size(); ++node) {
      placement.share_of.push_back(node);
    }
  }
  if (options_.kv.has_both()) {
    PlaceForms(members, placement);
  }
  if (members.fetch.hybrid.has_value() && members.fetch.hybrid->percent > 0) {
    LAMINA_RETURN_IF_ERROR(PlaceHybrid(members, placement));
  }
  LAMINA_ASSIGN_OR_RETURN(plan::EpochTopology topology,
                          plan::EpochTopology::Create(ConfigOf(members, placement)));
  return FormedEpoch{.topology = std::move(topology),
                     .shares = std::move(placement.shares),
                     .share_of = std::move(placement.share_of),
                     .partition = DescribePartition(members, placement.words),
                     .shares_by = members.bandwidth.words,
                     .attention = ChooseAttention(options_, members).words,
                     .fetch_why = members.fetch_why,
                     .policy = members.policy};
}

absl::StatusOr<EpochForming::Placement> EpochForming::Place(const EpochMembers& members) const {
  if (members.local && !members.stages.empty()) {
    return PlaceReplicas(members);
  }
  return options_.partition == Partition::kHead ? PlaceHeads(members) : PlaceSequences(members);
}

absl::StatusOr<EpochForming::Placement> EpochForming::PlaceHeads(
    const EpochMembers& members) const {
  std::vector<core::HeadNode> nodes;
  std::vector<NodeTier> tiers;
  double bandwidth = 0;
  for (size_t i = 0; i < members.kv.size(); ++i) {
    nodes.push_back({.name = members.kv[i].name,
                     .bandwidth = members.bandwidth.bytes_per_second[i],
                     .capacity_bytes = members.kv[i].capacity_bytes});
    bandwidth += nodes.back().bandwidth;
  }
  const std::vector<AttentionDescriptor>& layers = options_.layers;
  const core::SchedulerOptions& limits = options_.scheduler;
  const uint32_t least = WholeSlots(members.fetch, limits.SlotsAtOnce(limits.sequence_tokens_max));
  const bool activations = members.fetch.activation_width > 0;
  LAMINA_ASSIGN_OR_RETURN(
      core::HeadSplit split,
      core::ShareHeads(layers, nodes, least, options_.kv,
                       activations
                           ? HeadBytesBesidesKv(members.fetch, layers.size(),
                                                KvBytesPerToken(layers), layers[0].kv_heads, least)
                           : 0));
  if (activations) {
    CountWithActivations(layers, members, split);
  }
  for (size_t i = 0; i < members.kv.size(); ++i) {
    std::vector<AttentionDescriptor> parts;
    for (const AttentionDescriptor& layer : layers) {
      parts.push_back(PartOf(layer, split.heads[i]));
    }
    tiers.push_back(
        {.tier = members.kv[i].spill, .bytes_per_token = KvSlotBytes(parts, options_.kv.form)});
  }
  return Placement{.shares = {{.name = absl::StrJoin(NamesOf(members.kv), "+"),
                               .slots = split.slots,
                               .bandwidth_bytes_per_second = bandwidth,
                               .spill = SpillShareOf(tiers),
                               .activation_share = members.activation_share.value_or(0)}},
                   .share_of = std::vector<uint32_t>(members.kv.size(), 0),
                   .heads = split.heads,
                   .slots = std::vector<uint32_t>(members.kv.size(), split.slots),
                   .words = absl::StrCat("head: ", core::DescribeSplit(split, nodes))};
}

absl::StatusOr<EpochForming::Placement> EpochForming::PlaceSequences(
    const EpochMembers& members) const {
  Placement placement{.words = "request"};
  for (size_t i = 0; i < members.kv.size(); ++i) {
    const uint32_t slots =
        members.activation_share.has_value()
            ? SlotsOfKinds(
                  {.kv = KvBytesPerToken(options_.layers),
                   .activation = ActivationBytesPerToken(members.fetch, options_.layers.size())},
                  plan::SlotKinds(*members.activation_share), members.kv[i].capacity_bytes)
            : members.kv[i].slots;
    placement.shares.push_back(
        {.name = members.kv[i].name,
         .slots = slots,
         .bandwidth_bytes_per_second = members.bandwidth.bytes_per_second[i],
         .spill =
             SpillShareOf({{.tier = members.kv[i].spill,
                            .bytes_per_token = KvSlotBytes(options_.layers, options_.kv.form)}}),
         .activation_share = members.activation_share.value_or(0)});
    placement.slots.push_back(slots);
  }
  if (const uint32_t span_tokens = options_.scheduler.span_tokens; span_tokens > 0) {
    LAMINA_RETURN_IF_ERROR(
        core::CheckSpans(placement.shares, span_tokens,
                         options_.scheduler.SlotsAtOnce(options_.scheduler.sequence_tokens_max)));
    placement.words = absl::StrCat("token_range: spans of ", span_tokens, " tokens over ",
                                   placement.shares.size(), " memory nodes");
  }
  return placement;
}

// A share of several nodes has as many slots of a form as the fullest of these.
void EpochForming::PlaceForms(const EpochMembers& members, Placement& placement) const {
  std::vector<KvSlots> slots(placement.shares.size(), {.bf16 = kSlotsMax, .int8 = kSlotsMax});
  for (size_t i = 0; i < members.kv.size(); ++i) {
    std::vector<AttentionDescriptor> layers = options_.layers;
    for (AttentionDescriptor& layer : layers) {
      layer = placement.heads.empty() ? layer : PartOf(layer, placement.heads[i]);
    }
    const KvSlots own = options_.kv.BothIn(members.kv[i].capacity_bytes, layers);
    KvSlots& all = slots[placement.share_of[i]];
    all = {.bf16 = std::min(all.bf16, own.bf16), .int8 = std::min(all.int8, own.int8)};
  }
  std::vector<core::MemoryNodeShare> int8 = placement.shares;
  for (size_t share = 0; share < slots.size(); ++share) {
    placement.shares[share].form = KvForm::kBF16;
    placement.shares[share].slots = static_cast<uint32_t>(slots[share].bf16);
    int8[share].form = KvForm::kInt8;
    int8[share].slots = static_cast<uint32_t>(slots[share].int8);
  }
  for (size_t i = 0; i < members.kv.size(); ++i) {
    placement.slots[i] = placement.shares[placement.share_of[i]].slots;
    placement.int8_slots.push_back(int8[placement.share_of[i]].slots);
  }
  placement.shares.insert(placement.shares.end(), int8.begin(), int8.end());
}

// A share of several nodes has as many slots of each as the fullest of these.
absl::Status EpochForming::PlaceHybrid(const EpochMembers& members, Placement& placement) const {
  const plan::SlotKinds kinds(members.activation_share.value_or(0));
  const uint32_t percent = members.fetch.hybrid->percent;
  std::vector<HybridRoom> room(placement.shares.size(), {.others = kSlotsMax, .hybrid = kSlotsMax});
  for (size_t i = 0; i < members.kv.size(); ++i) {
    const TokenBytes bytes = placement.heads.empty()
                                 ? TokenBytes{.kv = KvBytesPerToken(options_.layers),
                                              .activation = ActivationBytesPerToken(
                                                  members.fetch, options_.layers.size())}
                                 : BytesOfHeads(options_.layers, members.fetch, placement.heads[i]);
    const HybridRoom own = RoomIn(bytes, kinds, percent, members.kv[i].capacity_bytes);
    HybridRoom& all = room[placement.share_of[i]];
    all = {.others = std::min(all.others, own.others), .hybrid = std::min(all.hybrid, own.hybrid)};
  }
  plan::AttentionPaths others;
  for (const PreparedPolicy& policy : options_.policies) {
    if (policy.path != plan::AttentionPath::kHybrid) {
      others.Add(policy.path);
    }
  }
  const uint32_t least = options_.scheduler.SlotsAtOnce(options_.scheduler.sequence_tokens_max);
  std::vector<core::MemoryNodeShare> hybrid = placement.shares;
  for (size_t share = 0; share < room.size(); ++share) {
    if (std::min(room[share].others, room[share].hybrid) < least) {
      return absl::FailedPreconditionError(
          absl::StrCat(placement.shares[share].name, " has room for ", room[share].hybrid,
                       " tokens of policy fetch_hybrid (fetch.hybrid_percent ", percent, ") and ",
                       room[share].others, " of the others, but one request may have ", least,
                       " (limits.sequence_tokens_max); raise the capacity or lower the limit"));
    }
    placement.shares[share].paths = others;
    placement.shares[share].slots = room[share].others;
    placement.shares[share].activation_share = 0;
    hybrid[share].paths = {plan::AttentionPath::kHybrid};
    hybrid[share].slots = room[share].hybrid;
  }
  for (size_t i = 0; i < members.kv.size(); ++i) {
    placement.slots[i] = room[placement.share_of[i]].others;
    placement.hybrid_slots.push_back(room[placement.share_of[i]].hybrid);
  }
  placement.shares.insert(placement.shares.end(), hybrid.begin(), hybrid.end());
  absl::StrAppend(&placement.words, "; ", percent, "% of the room is for fetch_hybrid");
  return absl::OkStatus();
}

void FormedEpoch::NameNodes(plan::StepPlan& plan) const {
  if (!has_pairs()) {
    return;  // A share is named as its node, or its first one.
  }
  for (plan::SequenceJoin& join : plan.joins) {
    join.memory_node %= shares_of_form();
  }
  for (plan::SlotAllocation& allocation : plan.allocations) {
    allocation.memory_node %= shares_of_form();
  }
}

absl::StatusOr<uint32_t> EpochForming::SlotsOfPart(const EpochMember& member,
                                                   const plan::Stage& part) const {
  const std::vector<AttentionDescriptor> layers = plan::LayersOfStage(options_.layers, part);
  const uint64_t slots = options_.kv.SlotsIn(member.capacity_bytes, layers);
  const uint32_t least = options_.scheduler.SlotsAtOnce(options_.scheduler.sequence_tokens_max);
  if (slots < least) {
    return absl::FailedPreconditionError(
        absl::StrCat("compute node ", member.name, " has ", FormatBytes(member.capacity_bytes),
                     ": room for ", slots, " tokens of its ", part.layers, " layers and ",
                     layers.front().kv_heads, " KV heads, but one request may have ", least,
                     " (limits.sequence_tokens_max); raise its capacity to ",
                     FormatBytes(options_.kv.CapacityFor(least, layers)), " or lower the limit"));
  }
  return static_cast<uint32_t>(std::min<uint64_t>(slots, kSlotsMax));
}

absl::StatusOr<EpochForming::Placement> EpochForming::PlaceReplicas(
    const EpochMembers& members) const {
  Placement placement{.words = "request"};
  for (size_t i = 0; i < members.kv.size(); ++i) {
    const uint32_t replica = members.stages[i].replica;
    LAMINA_ASSIGN_OR_RETURN(const uint32_t slots, SlotsOfPart(members.kv[i], members.stages[i]));
    placement.share_of.push_back(replica);
    if (replica == placement.shares.size()) {
      placement.shares.push_back({.slots = slots});
    }
    core::MemoryNodeShare& share = placement.shares[replica];
    absl::StrAppend(&share.name, share.name.empty() ? "" : "+", members.kv[i].name);
    share.slots = std::min(share.slots, slots);
    share.bandwidth_bytes_per_second += members.bandwidth.bytes_per_second[i];
  }
  for (const uint32_t share : placement.share_of) {
    placement.slots.push_back(placement.shares[share].slots);
  }
  return placement;
}

// Where replicas keep K and V, each has lanes of its own.
uint32_t EpochForming::LanesOf(const EpochMembers& members, const Placement& placement) const {
  return members.local ? static_cast<uint32_t>(placement.shares.size()) * options_.replica_lanes
                       : options_.scheduler.lanes;
}

plan::EpochConfig EpochForming::ConfigOf(const EpochMembers& members,
                                         const Placement& placement) const {
  const core::SchedulerOptions& limits = options_.scheduler;
  const uint32_t prefill_lanes = PrefillLanesOf(members);
  plan::EpochConfig config{.epoch = members.epoch,
                           .mode = options_.mode,
                           .lanes = LanesOf(members, placement) + prefill_lanes,
                           .plan_ahead = limits.plan_ahead,
                           .rows_max = limits.rows_max + limits.prompt_rows_max,
                           .row_sequences_max = limits.rows_max,
                           .chunk_tokens_max = limits.step_tokens_max,
                           .step_tokens_max = limits.step_tokens_max,
                           .scratch_tokens = limits.scratch_tokens,
                           .sequence_tokens_max = limits.sequence_tokens_max,
                           .layers = options_.layers,
                           .attention = ChooseAttention(options_, members).arithmetic,
                           .compute_nodes = NamesOf(members.compute),
                           .stages = members.stages,
                           .memory_nodes = NamesOf(members.kv),
                           .slots = placement.slots,
                           .partition = options_.partition,
                           .heads = placement.heads,
                           .span_tokens = limits.span_tokens,
                           .transport = members.transport,
                           .prefill_nodes = members.prefill_nodes,
                           .prefill_lanes = prefill_lanes};
  config.int8_tails = options_.kv.tails;
  config.int8_slots = placement.int8_slots;
  config.hybrid_slots = placement.hybrid_slots;
  config.attention_paths = members.local ? plan::AttentionPaths{plan::AttentionPath::kLocal}
                                         : PathsOnMemoryNodes(options_, members.fetch);
  if (config.attention_paths.fetch()) {
    config.fetch_bytes = members.fetch.bytes;
    config.fetch_heads = members.fetch.heads;
    config.activation_width = members.fetch.activation_width;
    config.resident_tokens = members.fetch.resident_tokens;
    config.made_tokens_max = members.fetch.made_tokens_max;
    if (members.activation_share.has_value()) {
      config.activation_share = *members.activation_share;
      config.activation_width = config.activation_share > 0 ? members.fetch.activation_width : 0;
    }
    if (config.attention_paths.Has(plan::AttentionPath::kSparse)) {
      config.sparse_tokens = members.fetch.sparse_tokens;
      config.sparse_ratio = members.fetch.sparse_ratio;
    }
    if (config.attention_paths.Has(plan::AttentionPath::kStreaming)) {
      config.streaming = members.fetch.streaming;
    }
  }
  const bool waits =
      options_.device_waits && config.attention_paths.Has(plan::AttentionPath::kRemote);
  config.compute_waits = waits && AnyOnDevice(members.compute);
  config.memory_waits = waits && AnyOnDevice(members.kv);
  return config;
}

std::string EpochForming::DescribePartition(const EpochMembers& members,
                                            const std::string& words) const {
  if (options_.kv.keeps_int8()) {
    const uint64_t slot = KvSlotBytes(options_.layers, KvForm::kInt8);
    const bool both = options_.kv.has_both();
    return absl::StrCat(
        words, options_.partition_why.empty() ? "" : "; ", options_.partition_why,
        both ? absl::StrCat("; ", options_.kv.int8_percent, "% of the room is for int8") : "",
        "; int8: ", FormatBytes(slot), " a token, ",
        absl::StrFormat("%.2f", static_cast<double>(KvBytesPerToken(options_.layers)) /
                                    static_cast<double>(slot)),
        " times fewer than bf16, and ", FormatBytes(TailBytes(options_)),
        " for the open blocks of ", options_.kv.tails, " sequences; answers are lossy",
        both ? " where requests ask for it" : "");
  }
  if (members.local) {
    return absl::StrCat(words, "; policy local: K and V stay on ",
                        members.compute.size() == 1
                            ? absl::StrCat(members.compute.front().name, ", which attends itself")
                            : absl::StrCat(absl::StrJoin(NamesOf(members.compute), ", "),
                                           ", which attend themselves"));
  }
  return options_.partition_why.empty() ? words : absl::StrCat(words, "; ", options_.partition_why);
}

plan::EpochPeers PeersOf(const core::Membership& membership) {
  plan::EpochPeers peers{.epoch = membership.epoch()};
  for (const core::Member* member : membership.compute_members()) {
    peers.compute_regions.push_back(member->region);
  }
  for (const core::Member* member : membership.memory_members()) {
    peers.memory_regions.push_back(member->region);
  }
  return peers;
}

std::string DescribePrefill(const core::Membership& membership) {
  std::vector<std::string> names;
  absl::string_view replica;
  for (const core::Member* member : membership.compute_members()) {
    if (!member->prefill) {
      continue;
    }
    if (!member->replica.empty() && member->replica == replica) {
      absl::StrAppend(&names.back(), "+", member->name);
    } else {
      names.push_back(member->name);
    }
    replica = member->replica;
  }
  if (!names.empty()) {
    return absl::StrCat("dedicated: ", absl::StrJoin(names, ", "));
  }
  const bool expected = std::any_of(membership.all().begin(), membership.all().end(),
                                    [](const core::Member& member) { return member.prefill; });
  return expected ? "inline, for no prefill node is there" : "inline";
}

}  // namespace lamina::coordinator
