// SPDX-License-Identifier: Apache-2.0
#include "memory_node/memory_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "transport/registry.h"

namespace lamina::memory_node {

MemoryNode::MemoryNode(MemoryNodeOptions options, ThreadPool& pool)
    : options_(std::move(options)), pool_(pool) {}

MemoryNode::~MemoryNode() { LeaveEpoch(); }

absl::StatusOr<std::string> MemoryNode::Configure(const control::EpochConfig& config) {
  LeaveEpoch();
  const auto own = std::find(config.memory_nodes.begin(), config.memory_nodes.end(), options_.name);
  if (own == config.memory_nodes.end() || config.slots.size() != config.memory_nodes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the configuration of epoch ", config.epoch,
                                                   " does not name ", options_.name));
  }
  const auto node = static_cast<uint32_t>(own - config.memory_nodes.begin());
  const core::WindowShape shape{.compute_nodes = static_cast<uint32_t>(config.compute_nodes.size()),
                                .memory_nodes = static_cast<uint32_t>(config.memory_nodes.size()),
                                .lanes = config.lanes,
                                .rows_max = config.rows_max,
                                .kv_rows_max = config.chunk_tokens_max,
                                .layers = config.layers};
  LAMINA_RETURN_IF_ERROR(core::WindowLayout::Check(shape));
  const core::WindowLayout layout(shape);
  config_ = config;
  LAMINA_RETURN_IF_ERROR(MakeArena(config.slots[node]));
  LAMINA_ASSIGN_OR_RETURN(transport_, transport::MakeTransport(config.transport));
  LAMINA_ASSIGN_OR_RETURN(region_, transport_->CreateRegion({.name = options_.name + " queries",
                                                             .bytes = layout.query_region_bytes(),
                                                             .signal_words = layout.query_words(),
                                                             .epoch = config.epoch}));
  worker_ = std::make_unique<AttentionWorker>(
      AttentionWorker::Options{.config = config, .node = node, .kernel = options_.kernel},
      *transport_, *region_, *arena_, pool_, counters_);
  LogInfo("epoch ", config.epoch, " slots ", arena_->slots(), " arena ",
          FormatBytes(arena_->bytes()), " windows ", FormatBytes(layout.query_region_bytes()),
          " transport ", transport_->scheme());
  return region_->Descriptor();
}

// Keeps the arena of the epoch before when its shape is the same: nothing in it is referred to any
// more.
absl::Status MemoryNode::MakeArena(uint32_t slots) {
  if (arena_.has_value() && arena_->slots() == slots && arena_layers_ == config_->layers) {
    return absl::OkStatus();
  }
  arena_.reset();
  absl::StatusOr<kernels::KvArena> arena = kernels::KvArena::Create(config_->layers, slots);
  LAMINA_RETURN_IF_ERROR(arena.status());
  arena_ = *std::move(arena);
  arena_layers_ = config_->layers;
  return absl::OkStatus();
}

absl::Status MemoryNode::Connect(const control::EpochPeers& peers) {
  if (worker_ == nullptr || !config_.has_value() || peers.epoch != config_->epoch) {
    return absl::AbortedError(absl::StrCat("not configured for epoch ", peers.epoch));
  }
  std::vector<std::unique_ptr<transport::RemoteRegion>> replies;
  for (const std::string& descriptor : peers.compute_regions) {
    LAMINA_ASSIGN_OR_RETURN(auto region, transport_->OpenRegion(descriptor, peers.epoch));
    replies.push_back(std::move(region));
  }
  worker_->SetPeers(std::move(replies));
  thread_ = std::thread([this, worker = worker_.get(), epoch = peers.epoch] {
    if (!options_.cores.empty() && !PinThisThread(options_.cores)) {
      LogWarning("could not pin the worker to its cores");
    }
    std::string blamed;
    const absl::Status status = worker->Run(blamed);
    if (!status.ok() && reporter_ != nullptr) {
      LogError("epoch ", epoch, " failed ", status.message());
      reporter_->ReportFault(epoch, status, blamed);
    }
  });
  return absl::OkStatus();
}

void MemoryNode::TakePlan(core::StepPlan plan) {
  if (worker_ != nullptr) {
    worker_->PushPlan(std::move(plan));
  }
}

void MemoryNode::LeaveEpoch() {
  if (worker_ != nullptr) {
    worker_->Stop();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  worker_.reset();
  region_.reset();
  transport_.reset();
  config_.reset();
}

control::NodeCounters MemoryNode::Counters() const {
  return {.busy_seconds =
              static_cast<double>(counters_.busy_nanos.load(std::memory_order_relaxed)) * 1e-9,
          .bytes_sent = counters_.bytes_sent.load(std::memory_order_relaxed),
          .bytes_received = counters_.bytes_received.load(std::memory_order_relaxed),
          .refused_messages = counters_.refused_messages.load(std::memory_order_relaxed),
          .kv_bytes_read = counters_.kv_bytes_read.load(std::memory_order_relaxed),
          .units = counters_.units.load(std::memory_order_relaxed)};
}

}  // namespace lamina::memory_node
