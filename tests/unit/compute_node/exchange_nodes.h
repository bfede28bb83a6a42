// SPDX-License-Identifier: Apache-2.0
//
// ExchangeNodes: the compute nodes of an epoch as the parts of their workers see it, over a network
// that delays and reorders. Nothing runs by itself: the test calls the parts in the order that it
// wants to see.
//
// Threading: the test's thread.

#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compute_node/peers.h"
#include "compute_node/worker_context.h"
#include "plan/epoch_shape.h"
#include "tests/unit/compute_node/slice_program.h"
#include "transport/fake/fake_network.h"

namespace lamina::compute_node {

// A compute node with what the parts of its worker share.
struct ExchangeNode {
  ExchangeNode(plan::EpochConfig own_config, uint32_t node, const plan::WindowShape& shape,
               SliceExecutor& node_executor, ThreadPool& pool, Nanos timeout,
               transport::FakeNetwork& network)
      : config(std::move(own_config)),
        executor(node_executor),
        transport(network.MakeTransport()),
        region(*transport->CreateRegion(
            {.name = config.compute_nodes[node],
             .bytes = plan::WindowLayout(shape).compute_region_bytes(),
             .signal_words = plan::WindowLayout(shape).compute_region_words(),
             .epoch = config.epoch})),
        peers(config, node, timeout, *transport, abort, counters),
        context{.config = config,
                .node = node,
                .layout = plan::WindowLayout(shape),
                .schedule = plan::ScheduleOf(config, plan::StageOf(config, node).shard.index),
                .peer_deadline = timeout,
                .executor = executor,
                .pool = pool,
                .transport = *transport,
                .region = *region,
                .windows = windows,
                .peers = peers,
                .sequences = sequences,
                .intervals = intervals,
                .counters = counters,
                .pieces_taken = pieces_taken} {}

  // Lane `index` with buffers from which puts may be made. Requires: the device has begun.
  Lane MakeLane(uint32_t index) {
    Lane lane;
    lane.index = index;
    lane.plan = {.epoch = config.epoch, .lane = index, .step = 1};
    auto buffers = executor.MakeBuffers(config.rows_max + config.chunk_tokens_max);
    EXPECT_TRUE(buffers.ok()) << buffers.status();
    lane.buffers = *std::move(buffers);
    for (const absl::Span<std::byte> bytes : lane.buffers.Allocations()) {
      EXPECT_TRUE(transport->RegisterSource(bytes, transport::MemoryKind::kHost).ok());
    }
    return lane;
  }

  uint64_t Refused(const std::string& reason) const {
    for (const auto& [name, count] : counters.refusals.ByReason()) {
      if (name == reason) {
        return count;
      }
    }
    return 0;
  }

  telemetry::LinkCount LinkTo(const std::string& peer) const {
    for (const telemetry::LinkCount& link : counters.meter.Links()) {
      if (link.peer == peer) {
        return link;
      }
    }
    return {};
  }

  const plan::EpochConfig config;
  SliceExecutor& executor;
  const std::unique_ptr<transport::Transport> transport;
  const std::unique_ptr<transport::Region> region;
  WindowReader windows{*region, nullptr};
  transport::AbortWord abort{0};
  StepCounters counters;
  Intervals intervals{counters.meter};
  SequenceTable sequences;
  PiecesTaken pieces_taken;
  Peers peers;
  const WorkerContext context;
};

class ExchangeNodes {
 public:
  static constexpr uint64_t kEpoch = 7;
  static constexpr Nanos kLong = Seconds(60);  // Only a failure waits for it.

  explicit ExchangeNodes(const transport::FakeNetworkOptions& network) : network_(network) {}
  ~ExchangeNodes() {
    for (const auto& node : nodes_) {
      node->peers.Disconnect();
    }
  }
  ExchangeNodes(const ExchangeNodes&) = delete;
  ExchangeNodes& operator=(const ExchangeNodes&) = delete;

  // An epoch over the executor's layers; the caller fills in the rest.
  static plan::EpochConfig ConfigFor(const SliceExecutor& executor,
                                     std::vector<std::string> compute_nodes) {
    plan::EpochConfig config{.epoch = kEpoch,
                             .lanes = 2,
                             .plan_ahead = 2,
                             .rows_max = 4,
                             .chunk_tokens_max = 4,
                             .scratch_tokens = 16,
                             .sequence_tokens_max = 64,
                             .compute_nodes = std::move(compute_nodes),
                             .memory_nodes = {"m0"},
                             .slots = {64},
                             .transport = "fake://unnamed"};
    for (uint32_t layer = 0; layer + 1 < executor.slice_count(); ++layer) {
      config.layers.push_back(executor.attention(layer).descriptor);
    }
    return config;
  }

  // The next compute node, which runs on `executor`, and whose config is that of its shard.
  ExchangeNode& Add(const plan::EpochConfig& config, const plan::WindowShape& shape,
                    SliceExecutor& executor, Nanos timeout = kLong) {
    const auto node = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back(
        std::make_unique<ExchangeNode>(plan::OfShard(config, plan::StageOf(config, node).shard),
                                       node, shape, executor, pool_, timeout, network_));
    return *nodes_.back();
  }

  // Opens the regions of all for all. Memory nodes have none.
  void Connect() {
    for (const auto& node : nodes_) {
      std::vector<std::unique_ptr<transport::RemoteRegion>> compute(nodes_.size());
      for (uint32_t peer = 0; peer < nodes_.size(); ++peer) {
        if (peer != node->context.node) {
          compute[peer] = *node->transport->OpenRegion(nodes_[peer]->region->Descriptor(), kEpoch);
        }
      }
      node->peers.Connect({}, std::move(compute));
    }
  }

  // Steps of the network until all that was put has come.
  void Settle() {
    for (int step = 0; step < 1000; ++step) {
      for (const auto& node : nodes_) {
        node->transport->Progress();
      }
    }
  }

  // Puts bytes of the test's own to a window of `to`, as a node that is wrong would.
  void PutAs(ExchangeNode& from, uint32_t to, size_t offset, const std::vector<std::byte>& window,
             const transport::SignalUpdate& signal) {
    ASSERT_TRUE(from.transport->RegisterSource(window, transport::MemoryKind::kHost).ok());
    const absl::Status put = from.peers.Put(ComputePeer(to), offset, window, &signal);
    ASSERT_TRUE(put.ok()) << put;
    Settle();
  }

  ExchangeNode& operator[](size_t node) { return *nodes_[node]; }
  size_t size() const { return nodes_.size(); }
  ThreadPool& pool() { return pool_; }

 private:
  transport::FakeNetwork network_;
  ThreadPool pool_{{}};
  std::vector<std::unique_ptr<ExchangeNode>> nodes_;
};

// A window header that is not the right one, as a sender that is wrong or late would write it.
struct WrongHeader {
  std::string name;
  std::string reason;  // Under which it is counted.
  std::string says;
  void (*change)(plan::WindowHeader&);
  absl::StatusCode code = absl::StatusCode::kInternal;
};

}  // namespace lamina::compute_node
