// SPDX-License-Identifier: Apache-2.0
#include "compute_node/shard_exchange.h"

#include <cstring>

#include "common/status_macros.h"
#include "plan/epoch_shape.h"
#include "transport/put_all.h"

namespace lamina::compute_node {
namespace {

// The nodes of the own replica and stage, by shard.
std::vector<uint32_t> ShardNodes(const plan::EpochConfig& config, uint32_t node) {
  const plan::Stage own = plan::StageOf(config, node);
  std::vector<uint32_t> nodes(own.shard.count, node);
  for (uint32_t other = 0; other < config.stages.size() && own.shard.count > 1; ++other) {
    const plan::Stage& stage = config.stages[other];
    if (stage.replica == own.replica && stage.first_layer == own.first_layer) {
      nodes[stage.shard.index] = other;
    }
  }
  return nodes;
}

}  // namespace

ShardExchange::ShardExchange(const WorkerContext& context)
    : context_(context),
      shard_(plan::StageOf(context.config, context.node).shard),
      nodes_(ShardNodes(context.config, context.node)),
      lanes_(context.config.lanes) {
  parts_.reserve(nodes_.size());
  if (shard_.count == 1) {
    return;
  }
  const size_t rows_max = plan::StepRowsMax(context.config);
  for (uint32_t lane = 0; lane < context.config.lanes; ++lane) {
    if (context.schedule.Runs(context.node, lane)) {
      for (std::vector<std::byte>& part : lanes_[lane].parts) {
        part.resize(sizeof(plan::WindowHeader) +
                    rows_max * context.executor.program().PartRowBytesMax());
      }
    }
  }
}

uint64_t ShardExchange::bytes() const {
  uint64_t bytes = 0;
  for (const LaneState& state : lanes_) {
    for (const std::vector<std::byte>& part : state.parts) {
      bytes += part.size();
    }
  }
  return bytes;
}

absl::Status ShardExchange::RegisterSources() {
  for (const LaneState& state : lanes_) {
    for (const std::vector<std::byte>& part : state.parts) {
      if (!part.empty()) {
        LAMINA_RETURN_IF_ERROR(
            context_.transport.RegisterSource(part, transport::MemoryKind::kHost));
      }
    }
  }
  return absl::OkStatus();
}

void ShardExchange::BeginSum(Lane& lane, size_t reduce) {
  ++lanes_[lane.index].sums;
  context_.executor.sums().Place(lane.slice, reduce,
                                 OwnPart(lane).data() + sizeof(plan::WindowHeader), lane.buffers);
}

plan::WindowHeader ShardExchange::PartHeader(const Lane& lane, uint32_t sender) const {
  plan::WindowHeader header =
      context_.HeaderOf(lane, lane.slice, static_cast<uint32_t>(lane.positions.size()), sender);
  header.reduction = lanes_[lane.index].sums;
  return header;
}

// The part lies in OwnPart() behind its header, and goes out with it at once.
absl::Status ShardExchange::Send(Lane& lane) {
  const uint64_t sums = lanes_[lane.index].sums;
  std::vector<std::byte>& part = OwnPart(lane);
  const plan::WindowHeader header = PartHeader(lane, context_.node);
  std::memcpy(part.data(), &header, sizeof(header));
  const size_t bytes = sizeof(header) + lane.positions.size() *
                                            context_.executor.sums().RowBytes(lane.slice, lane.op);
  const transport::SignalUpdate signal{.word = context_.layout.part_word(shard_.index, lane.index),
                                       .value = sums};
  const size_t window = context_.layout.PartWindow(shard_.index, lane.index, sums);
  for (const uint32_t node : nodes_) {
    if (node == context_.node) {
      continue;
    }
    LAMINA_RETURN_IF_ERROR(context_.Tell(lane, ComputePeer(node), telemetry::WorkKind::kReduce,
                                         window, {part.data(), bytes}, signal));
  }
  context_.transport.Progress();
  return absl::OkStatus();
}

bool ShardExchange::IsHere(const Lane& lane, uint32_t shard) const {
  return shard == shard_.index || context_.region.LoadSignal(context_.layout.part_word(
                                      shard, lane.index)) >= lanes_[lane.index].sums;
}

AwaitedSignal ShardExchange::NextSignal(const Lane& lane) const {
  uint32_t shard = 0;
  while (shard < nodes_.size() && IsHere(lane, shard)) {
    ++shard;
  }
  if (shard == nodes_.size()) {
    shard = shard_.index == 0 ? 1 : 0;
  }
  return {.peer = ComputePeer(nodes_[shard]),
          .word = context_.layout.part_word(shard, lane.index),
          .value = lanes_[lane.index].sums};
}

absl::StatusOr<bool> ShardExchange::Take(Lane& lane) {
  for (uint32_t shard = 0; shard < nodes_.size(); ++shard) {
    if (!IsHere(lane, shard)) {
      return false;
    }
  }
  const size_t rows = lane.positions.size();
  const size_t bytes = rows * context_.executor.sums().RowBytes(lane.slice, lane.op);
  parts_.clear();
  for (uint32_t shard = 0; shard < nodes_.size(); ++shard) {
    const uint32_t node = nodes_[shard];
    const std::byte* part = OwnPart(lane).data();
    if (node != context_.node) {
      const PeerId peer = ComputePeer(node);
      LAMINA_ASSIGN_OR_RETURN(
          part, context_.windows.Read(
                    context_.layout.PartWindow(shard, lane.index, lanes_[lane.index].sums),
                    sizeof(plan::WindowHeader) + bytes));
      plan::WindowHeader header;
      std::memcpy(&header, part, sizeof(header));
      LAMINA_RETURN_IF_ERROR(context_.peers.CheckWindow(peer, header, PartHeader(lane, node)));
      telemetry::AddTo(context_.counters.bytes_received, sizeof(header) + bytes);
    }
    parts_.push_back(reinterpret_cast<const float*>(part + sizeof(plan::WindowHeader)));
  }
  if (rows > 0) {
    context_.executor.sums().Sum(lane.slice, lane.op, parts_, rows, lane.buffers);
  }
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kReduce, lane.slice);
  return true;
}

}  // namespace lamina::compute_node
