// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/memory_node/unit_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "kernels/attention.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_pieces.h"
#include "transport/link_probe.h"
#include "transport/shm/shm_transport.h"

namespace lamina::memory_node {
namespace {

constexpr uint32_t kRowsMax = 8;
constexpr uint32_t kChunkTokensMax = 1024;

plan::WindowLayout LayoutOf(const plan::EpochConfig& config) {
  return plan::WindowLayout(plan::WindowShapeOf(config));
}

plan::EpochConfig ConfigOf(const UnitClusterOptions& options) {
  plan::EpochConfig config{.epoch = UnitCluster::kEpoch,
                           .mode = options.mode,
                           .lanes = options.lanes,
                           .rows_max = kRowsMax,
                           .chunk_tokens_max = kChunkTokensMax,
                           .scratch_tokens = kChunkTokensMax,
                           .sequence_tokens_max = UnitCluster::kContext,
                           .layers = std::vector(options.layers, options.layer),
                           .fetch_bytes = options.fetch_bytes,
                           .activation_width = options.activation_width,
                           .activation_share = options.activation_share,
                           .partition = options.partition,
                           .heads = ConsecutiveRanges(options.heads),
                           .span_tokens = options.span_tokens,
                           .transport = options.transport};
  config.int8_tails = options.int8_tails;
  config.made_tokens_max = options.made_tokens_max;
  if (options.fetch_bytes > 0) {
    const bool again = (options.activation_width > 0 && options.activation_share == 0) ||
                       options.made_tokens_max > 0;
    config.attention_paths = {options.sparse                 ? plan::AttentionPath::kSparse
                              : !options.streaming.empty()   ? plan::AttentionPath::kStreaming
                              : again                        ? plan::AttentionPath::kRecompute
                              : options.activation_share > 0 ? plan::AttentionPath::kHybrid
                                                             : plan::AttentionPath::kFetch};
    if (options.attends_too) {
      config.attention_paths.Add(plan::AttentionPath::kRemote);
    }
    const uint32_t all = config.attention_paths.bits() | options.also.bits();
    config.attention_paths = plan::AttentionPaths::FromBits(all);
    config.streaming = options.streaming;
    config.sparse_ratio = options.sparse ? 0.5 : 0;
    if (options.sparse && options.span_tokens > 0) {  // All tokens are named there.
      config.sparse_tokens = SparseTokens::kLocal;
      config.sparse_ratio = 1;
    }
  }
  const auto shards = static_cast<uint32_t>(options.shards.size());
  for (uint32_t node = 0; node < std::max(options.compute_nodes, shards); ++node) {
    config.compute_nodes.push_back(absl::StrCat("c", node));
  }
  uint32_t first = 0;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    config.stages.push_back({.layers = options.layers,
                             .shard = {.index = shard,
                                       .count = shards,
                                       .first_head = first,
                                       .heads = options.shards[shard],
                                       .first_column = 16 * shard,
                                       .columns = 16}});
    first += options.shards[shard];
  }
  for (uint32_t node = 0; node < options.memory_nodes; ++node) {
    config.memory_nodes.push_back(absl::StrCat("m", node));
    config.slots.push_back(UnitCluster::kSlots);
  }
  return config;
}

}  // namespace

UnitCluster::UnitCluster(const UnitClusterOptions& options)
    : options_(options), config_(ConfigOf(options)), layout_(LayoutOf(config_)) {
  if (!options_.make_transport && options_.transport == "shm://") {
    options_.make_transport = [](DeviceMemory* device) {
      return transport::MakeShmTransport(device);
    };
  } else if (!options_.make_transport) {
    network_ = std::make_unique<transport::FakeNetwork>(options_.network);
    options_.make_transport = [this](DeviceMemory* device) {
      return network_->MakeTransport(device);
    };
  }
  const absl::Status checked = plan::CheckEpoch(config_);
  EXPECT_TRUE(checked.ok()) << checked;
  for (uint32_t shard = 0; shard < plan::ShardsMax(config_.stages); ++shard) {
    schedules_.push_back(plan::ScheduleOf(config_, shard));
  }
  next_slot_.resize(config_.memory_nodes.size());
  reference_ = MakeReference(KvForm::kBF16);
  if (config_.int8_tails > 0 && config_.fetch_bytes == 0) {
    int8_reference_ = MakeReference(KvForm::kInt8);
  }
  for (uint32_t node = 0; node < config_.memory_nodes.size(); ++node) {
    MakeNode(node);
  }
  for (uint32_t node = 0; node < config_.compute_nodes.size(); ++node) {
    MakeComputeNode(node);
  }
}

// Sequence i has slots from i * kContext on, and with INT8 the tail i.
std::unique_ptr<kernels::KvDevice> UnitCluster::MakeReference(KvForm form) {
  plan::EpochConfig every_slot_has_kv = config_;
  every_slot_has_kv.activation_share = 0;
  every_slot_has_kv.int8_tails = form == KvForm::kInt8 ? kSequences : 0;
  if (config_.partition == Partition::kHead) {  // It has all heads.
    every_slot_has_kv.partition = Partition::kRequest;
    every_slot_has_kv.heads.clear();
  }
  const kernels::KvDeviceOptions wanted =
      AttentionWorker::DeviceOptions(every_slot_has_kv, /*node=*/0, form, kSequences * kContext);
  auto reference = kernels::CpuKvDevices(kernels::CpuAttention(), pool_)(wanted);
  EXPECT_TRUE(reference.ok()) << reference.status();
  EXPECT_TRUE((*reference)->Begin().ok());
  return *std::move(reference);
}

void UnitCluster::MakeNode(uint32_t index) {
  nodes_.push_back(std::make_unique<Node>());
  Node& node = *nodes_.back();
  node.transport = options_.make_transport(options_.window_memory);
  auto region = node.transport->CreateRegion({.name = "queries",
                                              .bytes = layout_.query_region_bytes(),
                                              .signal_words = layout_.query_region_words() + 1,
                                              .kind = options_.window_memory != nullptr
                                                          ? transport::MemoryKind::kDevice
                                                          : transport::MemoryKind::kHost,
                                              .epoch = kEpoch,
                                              .written_by_devices = options_.device_waits});
  ASSERT_TRUE(region.ok()) << region.status();
  node.region = *std::move(region);
  const kernels::KvDeviceOptions wanted = AttentionWorker::DeviceOptions(
      config_, index, config_.KvFormOf(plan::AttentionPath::kRemote), config_.slots[index]);
  const kernels::KvDeviceMaker make = options_.make_device
                                          ? options_.make_device
                                          : kernels::CpuKvDevices(kernels::CpuAttention(), pool_);
  auto device = make(wanted);
  ASSERT_TRUE(device.ok()) << device.status();
  node.device = *std::move(device);
  std::unique_ptr<kernels::WindowChannel> channel;
  if (options_.device_waits) {
    const absl::Status lanes =
        node.device->MakeStepLanes({.lanes = config_.lanes, .rows_max = config_.rows_max});
    ASSERT_TRUE(lanes.ok()) << lanes;
    auto made_channel =
        DeviceQueries::MakeChannel(config_, *node.region, *node.device, options_.peer_deadline);
    ASSERT_TRUE(made_channel.ok()) << made_channel.status();
    channel = *std::move(made_channel);
  }
  node.worker = std::make_unique<AttentionWorker>(
      AttentionWorker::Options{
          .config = config_, .node = index, .peer_deadline = options_.peer_deadline},
      *node.transport, *node.region, *node.device, pool_, node.counters, std::move(channel));
  if (options_.window_memory != nullptr) {
    auto replies =
        DeviceAllocation::Make(*options_.window_memory, node.worker->device_reply_bytes());
    ASSERT_TRUE(replies.ok()) << replies.status();
    node.device_replies = *std::move(replies);
    const absl::Status used = node.worker->UseDeviceMemory(node.device_replies.bytes());
    ASSERT_TRUE(used.ok()) << used;
  }
}

void UnitCluster::MakeComputeNode(uint32_t) {
  compute_.push_back(std::make_unique<ComputeNode>());
  ComputeNode& node = *compute_.back();
  node.transport = options_.make_transport(nullptr);
  node.region = *node.transport->CreateRegion({.name = "replies",
                                               .bytes = layout_.compute_region_bytes(),
                                               .signal_words = layout_.compute_region_words(),
                                               .epoch = kEpoch,
                                               .written_by_devices = options_.device_waits});
  for (const auto& memory : nodes_) {
    node.queries.push_back(*node.transport->OpenRegion(memory->region->Descriptor(), kEpoch));
  }
}

UnitCluster::~UnitCluster() {
  for (const auto& node : nodes_) {
    node->worker->Stop();
    if (node->thread.joinable()) {
      node->thread.join();
    }
    node->worker.reset();
  }
}

plan::EpochPeers UnitCluster::Descriptors() const {
  plan::EpochPeers peers{.epoch = kEpoch};
  for (const auto& compute : compute_) {
    peers.compute_regions.push_back(compute->region->Descriptor());
  }
  for (const auto& memory : nodes_) {
    peers.memory_regions.push_back(memory->region->Descriptor());
  }
  return peers;
}

void UnitCluster::Start(bool measure) {
  for (const auto& node : nodes_) {
    auto regions =
        OpenPeerRegions(*node->transport, config_, node->worker->epoch().node, Descriptors());
    ASSERT_TRUE(regions.ok()) << regions.status();
    node->worker->SetPeers(*std::move(regions));
    node->worker->RegisterArena();
    node->thread = std::thread([node = node.get()] {
      node->status = node->worker->Run();
      node->over = true;
    });
  }
  if (measure) {
    MeasureLinks();
  }
}

void UnitCluster::MeasureLinks() {
  const std::vector<std::byte> bytes(64);
  for (uint32_t c = 0; c < compute_.size(); ++c) {
    for (uint32_t m = 0; m < nodes_.size(); ++m) {
      const transport::LinkAsker asker{.peer = compute_[c]->queries[m].get(),
                                       .ask_word = layout_.query_probe_word(c),
                                       .bytes = bytes,
                                       .region = compute_[c]->region.get(),
                                       .answer_word = layout_.memory_probe_word(m)};
      ASSERT_TRUE(compute_[c]->transport->RegisterSource(bytes, transport::MemoryKind::kHost).ok());
      const auto speed = transport::MeasureLink(*compute_[c]->transport, asker,
                                                {.deadline = RealClock().Now() + kLong});
      ASSERT_TRUE(speed.ok()) << speed.status();
    }
  }
}

void UnitCluster::Stop() {
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    EXPECT_FALSE(ended(node)) << EndOf(node);
    nodes_[node]->worker->Stop();
    const absl::Status status = EndOf(node);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(refusals(node), 0u);
  }
}

absl::Status UnitCluster::EndOf(uint32_t memory_node) {
  if (nodes_[memory_node]->thread.joinable()) {
    nodes_[memory_node]->thread.join();
  }
  return nodes_[memory_node]->status;
}

uint64_t UnitCluster::Refused(const std::string& reason, uint32_t node) const {
  for (const auto& [name, count] : nodes_[node]->counters.refusals.ByReason()) {
    if (name == reason) {
      return count;
    }
  }
  ADD_FAILURE() << "no such reason: " << reason;
  return 0;
}

// --- Steps ---

// That of all its rows.
plan::AttentionPath UnitCluster::PathOf(uint32_t lane) const {
  using plan::AttentionPaths;
  if (!options_.attends_too) {
    return config_.attention_paths.only();
  }
  const AttentionPaths remote = {plan::AttentionPath::kRemote};
  const uint32_t others = config_.attention_paths.bits() & ~remote.bits();
  return (lane + 1 == config_.lanes ? remote : AttentionPaths::FromBits(others)).only();
}

uint32_t UnitCluster::HomeOf(uint32_t sequence) const {
  return sequence % static_cast<uint32_t>(nodes_.size());
}

uint32_t UnitCluster::NodeOfToken(uint32_t sequence, uint32_t token) const {
  return config_.partition == Partition::kTokenRange
             ? (sequence + token / config_.span_tokens) % static_cast<uint32_t>(nodes_.size())
             : HomeOf(sequence);
}

bool UnitCluster::HoldsRow(uint32_t node, uint32_t sequence, uint32_t position) const {
  if (config_.partition == Partition::kHead) {
    return true;
  }
  if (config_.partition == Partition::kRequest) {
    return HomeOf(sequence) == node;
  }
  for (uint32_t start = 0; start <= position; start += config_.span_tokens) {
    if (NodeOfToken(sequence, start) == node) {
      return true;
    }
  }
  return false;
}

// Slots with a gap before each extent, so that those of a sequence are scattered.
void UnitCluster::Grow(uint32_t sequence, uint32_t tokens, plan::StepPlan& plan) {
  Sequence& grown = sequences_[sequence];
  while (tokens > 0) {
    const uint32_t here =
        config_.span_tokens == 0
            ? tokens
            : std::min(tokens, config_.span_tokens - grown.tokens % config_.span_tokens);
    const uint32_t node = NodeOfToken(sequence, grown.tokens);
    // Spread over all nodes, the slots are the same on each.
    uint32_t& next = next_slot_[config_.partition == Partition::kHead ? 0 : node];
    const uint32_t first = options_.whole_tiles ? plan::FetchRun::WholeTiles(next + 1) : next + 1;
    plan.allocations.push_back({.sequence = sequence + 1,
                                .extent = {.first_slot = first, .tokens = here},
                                .memory_node = node});
    next = first + here;
    grown.tokens += here;
    tokens -= here;
  }
}

UnitCluster::Step UnitCluster::MakeStep(const StepSpec& spec) {
  Step step{.spec = spec};
  step.plan = {.epoch = kEpoch,
               .lane = spec.lane,
               .step = spec.step,
               .chunking = spec.chunking,
               .recomputed = spec.recomputed};
  std::vector<uint32_t> rows = spec.rows;
  if (config_.partition == Partition::kRequest) {  // As compute nodes sort them.
    std::stable_sort(rows.begin(), rows.end(),
                     [&](uint32_t a, uint32_t b) { return HomeOf(a) < HomeOf(b); });
  }
  for (const uint32_t sequence : rows) {
    const uint32_t position = sequences_[sequence].tokens;
    Grow(sequence, 1, step.plan);
    step.plan.rows.push_back({.sequence = sequence + 1, .position = position});
    step.sequences.push_back(sequence);
    step.positions.push_back(position);
  }
  for (const auto& [sequence, tokens] : spec.prompts) {
    const uint32_t first = sequences_[sequence].tokens;
    if (first == 0) {
      step.plan.joins.push_back({.id = sequence + 1,
                                 .tokens = std::vector<TokenId>(tokens, 1),
                                 .prompt_tokens = tokens,
                                 .tokens_max = kContext,
                                 .memory_node = HomeOf(sequence),
                                 .path = PathOf(spec.lane),
                                 .bare_tokens = options_.bare_tokens,
                                 .resident = options_.resident});
    }
    Grow(sequence, tokens, step.plan);
    step.plan.chunks.push_back(
        {.sequence = sequence + 1, .first_token = first, .tokens = tokens, .last = true});
    for (uint32_t token = 0; token < tokens; ++token) {
      step.sequences.push_back(sequence);
      step.positions.push_back(first + token);
    }
  }
  return step;
}

void UnitCluster::PushPlan(const Step& step) {
  for (const auto& node : nodes_) {
    node->worker->PushPlan(step.plan);
  }
}

std::vector<uint32_t> UnitCluster::RowsFor(const Step& step, uint32_t node, uint32_t& own) const {
  std::vector<uint32_t> rows;
  for (const bool owned : {true, false}) {
    for (uint32_t row = 0; row < step.plan.rows.size(); ++row) {
      const uint32_t sequence = step.sequences[row];
      const bool is_own = config_.partition == Partition::kHead ||
                          NodeOfToken(sequence, step.positions[row]) == node;
      if (is_own == owned && HoldsRow(node, sequence, step.positions[row])) {
        rows.push_back(row);
      }
    }
    own = owned ? static_cast<uint32_t>(rows.size()) : own;
  }
  return rows;
}

}  // namespace lamina::memory_node
