// SPDX-License-Identifier: Apache-2.0
#include "compute_node/device_remote_attention.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/blame.h"

namespace lamina::compute_node {
namespace {

// While nothing can be ordered the thread yields for so long, then it pauses.
constexpr Nanos kYield = Millis(1);
constexpr Nanos kPause = Micros(50);

// Whether all slices of the lane's decode steps run on the node. Lanes rotate or they do not,
// whatever the step; those with chunks are not asked about.
bool Stays(const plan::EpochConfig& config, const plan::PipelineSchedule& schedule, uint32_t node,
           uint32_t lane) {
  const auto slices = static_cast<uint32_t>(config.layers.size()) + 1;
  for (uint32_t slice = 0; slice < slices; ++slice) {
    if (schedule.NodeOf(lane, /*step=*/1, slice, /*pinned=*/false) != node) {
      return false;
    }
  }
  return true;
}

bool AnyLaneStays(const plan::EpochConfig& config, uint32_t node) {
  const plan::PipelineSchedule schedule =
      plan::ScheduleOf(config, plan::StageOf(config, node).shard.index);
  for (uint32_t lane = 0; lane < config.lanes; ++lane) {
    if (Stays(config, schedule, node, lane)) {
      return true;
    }
  }
  return false;
}

}  // namespace

absl::Status DeviceRemoteAttention::Prepare() {
  kernels::ComputeDevice& device = context_.executor.device();
  const plan::EpochConfig& config = context_.config;
  for (uint32_t lane = 0; lane < config.lanes; ++lane) {
    lanes_[lane].stays = Stays(config, context_.schedule, context_.node, lane);
  }
  why_copied_ = WhyRowsAreCopied();
  if (why_copied_.empty()) {
    const auto peers = static_cast<uint32_t>(config.memory_nodes.size());
    auto channel = device.MakeChannel({.own = kernels::HostWindowsOf(context_.region.direct()),
                                       .peers = peers,
                                       .lanes = config.lanes,
                                       .timeout = context_.peer_deadline});
    if (!channel.ok()) {
      why_copied_ = std::string(channel.status().message());
    } else {
      channel_ = *std::move(channel);
      rows_in_.reserve(peers);
    }
  }
  LogInfo("epoch ", config.epoch, " rows of decode steps are ",
          channel_ != nullptr ? "exchanged by " : "copied to ", device.name(),
          channel_ != nullptr ? "" : ": ", why_copied_);
  return by_host_->Prepare();
}

void DeviceRemoteAttention::Abort() {
  if (channel_ != nullptr) {
    channel_->Abort();
  }
}

std::string DeviceRemoteAttention::Obstacle(const plan::EpochConfig& config, uint32_t own) {
  if (!config.compute_waits) {
    return "device_waits is off";
  }
  if (plan::ShardsOf(config) > 1) {
    return "its replica has shards";
  }
  if (plan::IsPrefillNode(config, config.compute_nodes[own])) {
    return "it runs prefill only";
  }
  if (!AnyLaneStays(config, own)) {
    return "no lane stays on one compute node";
  }
  if (ByHead(config) || BySpan(config)) {
    return "the partition is not by request";
  }
  for (const AttentionDescriptor& layer : config.layers) {
    if (layer.qkv_width() * sizeof(BFloat16) % kernels::kChannelAlignment != 0 ||
        layer.q_width() * sizeof(BFloat16) % kernels::kChannelAlignment != 0) {
      return absl::StrCat("its rows are no multiples of ", kernels::kChannelAlignment, " bytes");
    }
  }
  return "";
}

// What in the epoch, or of its windows, is in the way. Empty: nothing is.
std::string DeviceRemoteAttention::WhyRowsAreCopied() const {
  const std::string obstacle = Obstacle(context_.config, context_.node);
  return obstacle.empty() && context_.region.direct().empty()
             ? absl::StrCat("windows of ", context_.config.transport, " are the transport's alone")
             : obstacle;
}

std::string DeviceRemoteAttention::Describe() const {
  const std::string& device = context_.executor.device().name();
  const bool flushed = context_.windows.on_device() && !context_.region.direct().pages.empty();
  return channel_ != nullptr
             ? absl::StrCat(flushed ? ", flushed by a thread" : "", ", exchanged by ", device,
                            " in steps of decode rows alone")
             : absl::StrCat(", rows are copied to ", device,
                            why_copied_.empty() ? "" : absl::StrCat(" (", why_copied_, ")"));
}

absl::Status DeviceRemoteAttention::Open() {
  LAMINA_RETURN_IF_ERROR(by_host_->Open());
  if (channel_ == nullptr) {
    return absl::OkStatus();
  }
  landings_.Watch(context_.region.direct().landings);
  std::vector<kernels::HostWindows> windows;
  for (uint32_t node = 0; node < context_.peers.memory_nodes(); ++node) {
    const transport::DirectMemory memory = context_.peers.Region(MemoryPeer(node))->direct();
    windows.push_back(kernels::HostWindowsOf(memory));
    sends_.Add(memory.outbox, MemoryPeer(node));
    landings_.Add(MemoryPeer(node), context_.layout.reply_word(node, 0));
  }
  const absl::Status opened = channel_->SetPeers(windows);
  open_ = opened.ok();
  if (!opened.ok()) {
    LogWarning("epoch ", context_.config.epoch, " rows of all steps are copied to ",
               context_.executor.device().name(), ": ", opened.message());
  }
  return absl::OkStatus();
}

absl::Status DeviceRemoteAttention::BeginStep(Lane& lane, const PathRows& rows) {
  LaneState& state = lanes_[lane.index];
  state.takes = CanTake(lane, rows);
  state.take_due = false;
  return by_host_->BeginStep(lane, rows);
}

// Prompts' rows attend here and go out through stagings; chunks of rows have several values.
bool DeviceRemoteAttention::CanTake(const Lane& lane, const PathRows& rows) const {
  const plan::Chunking& chunking = lane.plan.chunking;
  return open_ && lanes_[lane.index].stays && rows.decode.count > 0 &&
         rows.decode.count == lane.positions.size() && chunking.chunks <= 1 &&
         !chunking.query_first;
}

bool DeviceRemoteAttention::Await(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  state.take_due = state.takes;
  return state.takes || by_host_->Await(lane);
}

absl::StatusOr<bool> DeviceRemoteAttention::BeforeSlice(Lane& lane) {
  if (!lanes_[lane.index].take_due) {
    return true;
  }
  LAMINA_RETURN_IF_ERROR(OrderTake(lane));
  return lane.slice + 1 < context_.executor.slice_count();
}

absl::Status DeviceRemoteAttention::OrderTake(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  const uint32_t layer = lane.slice - 1;
  const uint32_t index = lane.index;
  const uint64_t value = context_.UnitValue(lane, layer);
  const auto out =
      context_.executor.DeviceAttentionRows(layer, lane.positions.size(), lane.buffers);
  rows_in_.clear();
  for (uint32_t node = 0; node < by_host_->RowsOf(lane).nodes.size(); ++node) {
    const RowRange& rows = by_host_->RowsOf(lane).nodes[node].rows;
    if (rows.count > 0) {
      rows_in_.push_back({.peer = node,
                          .window = context_.layout.ReplyWindow(node, index, value),
                          .stamp = kernels::StampOf(by_host_->ReplyHeader(lane, layer, node)),
                          .rows = out.row(rows.first),
                          .bytes = rows.count * out.cols * sizeof(BFloat16),
                          .word = context_.layout.reply_word(node, index),
                          .value = value});
    }
  }
  state.take_due = false;
  state.taking = true;
  state.taking_layer = layer;
  return channel_->Take(index, plan::UnitOf(value), rows_in_);
}

absl::Status DeviceRemoteAttention::Attend(Lane& lane) {
  return lanes_[lane.index].takes ? Send(lane) : by_host_->Attend(lane);
}

absl::Status DeviceRemoteAttention::Send(Lane& lane) {
  const uint32_t index = lane.index;
  const uint64_t value = context_.UnitValue(lane, lane.slice);
  const auto qkv = context_.executor.DeviceQkvRows(lane.slice, lane.positions.size(), lane.buffers);
  for (uint32_t node = 0; node < by_host_->RowsOf(lane).nodes.size(); ++node) {
    const RowRange& rows = by_host_->RowsOf(lane).nodes[node].rows;
    if (rows.count == 0) {
      continue;
    }
    const size_t bytes = rows.count * qkv.cols * sizeof(BFloat16);
    LAMINA_RETURN_IF_ERROR(control::Blame(
        channel_->Send(index, plan::UnitOf(value),
                       {.peer = node,
                        .window = context_.layout.QueryWindow(context_.node, index, value),
                        .stamp = kernels::StampOf(by_host_->QueryHeader(lane, node)),
                        .rows = qkv.row(rows.first),
                        .bytes = bytes,
                        .word = context_.layout.query_word(context_.node, index),
                        .value = value}),
        context_.peers.Name(MemoryPeer(node))));
    const size_t sent = sizeof(plan::WindowHeader) + bytes;
    const PeerId peer = MemoryPeer(node);
    context_.peers.CountSent(
        peer, {.rows = sent},
        context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kSend, lane.slice, peer, sent));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DeviceRemoteAttention::Poll(Lane& lane) {
  const uint32_t index = lane.index;
  if (!lanes_[index].takes) {
    LAMINA_ASSIGN_OR_RETURN(const bool all, by_host_->Poll(lane));
    if (all) {
      landings_.Record();
    }
    return all;
  }
  LAMINA_ASSIGN_OR_RETURN(const bool taken, channel_->HasTaken(index));
  if (!taken) {
    return false;
  }
  if (const auto failed = channel_->FailureOf(index); failed.has_value()) {
    return FaultOf(lane, *failed);
  }
  if (LaneState& state = lanes_[index]; state.taking) {
    state.taking = false;
    NoteTaken(lane);
  }
  return true;
}

// What the thread would have said, had it looked at the window itself, of what the device saw:
// behind these words a header has zeros.
absl::Status DeviceRemoteAttention::FaultOf(const Lane& lane, const kernels::FailedTake& failed) {
  if (failed.outcome == kernels::WaitOutcome::kAborted) {
    return absl::CancelledError("the device's wait was aborted");
  }
  const PeerId peer = MemoryPeer(failed.peer);
  if (failed.outcome == kernels::WaitOutcome::kTimeout) {
    return context_.peers.NothingFrom(peer, context_.peer_deadline);
  }
  plan::WindowHeader header;
  std::memcpy(static_cast<void*>(&header), &failed.stamp, sizeof(failed.stamp));
  LAMINA_RETURN_IF_ERROR(context_.peers.CheckWindow(
      peer, header, by_host_->ReplyHeader(lane, lanes_[lane.index].taking_layer, failed.peer)));
  const std::string& name = context_.peers.Name(peer);
  return control::Blame(
      absl::InternalError(absl::StrCat(context_.executor.device().name(), " refused a window of ",
                                       name, " whose header is that of the unit")),
      name);
}

// The outputs of a layer have come. The device stood still for them until just now, and had work
// before, by its own clock.
void DeviceRemoteAttention::NoteTaken(Lane& lane) {
  const uint32_t layer = lanes_[lane.index].taking_layer;
  const uint32_t index = lane.index;
  const size_t row_bytes = context_.config.layers[layer].q_width() * sizeof(BFloat16);
  lane.buffers.NoteRun();
  telemetry::AddTo(context_.counters.device_units, 1);
  Nanos waited = 0;
  size_t received = 0;
  for (uint32_t node = 0; node < by_host_->RowsOf(lane).nodes.size(); ++node) {
    if (by_host_->RowsOf(lane).nodes[node].rows.count == 0) {
      continue;
    }
    const Nanos for_node = channel_->WaitedFor(index, node);
    context_.peers.CountWait(MemoryPeer(node), for_node);
    waited += for_node;
    received +=
        sizeof(plan::WindowHeader) + by_host_->RowsOf(lane).nodes[node].rows.count * row_bytes;
  }
  telemetry::AddTo(context_.counters.bytes_received, received);
  EndTakeIntervals(lane, waited);
  sends_.Record();
  landings_.Record();
  if (layer > 0) {  // When the step's first slice began is not known.
    const uint64_t unit = plan::UnitOf(context_.UnitValue(lane, layer));
    lane.slices_nanos += channel_->SentAfter(index, unit).value_or(0);
    ++lane.slices_run;
  }
}

// The device works, then waits for one peer after the other.
void DeviceRemoteAttention::EndTakeIntervals(const Lane& lane, Nanos waited) {
  const uint32_t layer = lanes_[lane.index].taking_layer;
  const Nanos now = RealClock().Now();
  context_.intervals.EndIntervalAt(lane, telemetry::WorkKind::kDense, layer,
                                   std::max(context_.intervals.end(), now - waited));
  for (uint32_t node = 0; node < by_host_->RowsOf(lane).nodes.size(); ++node) {
    if (by_host_->RowsOf(lane).nodes[node].rows.count > 0) {
      const Nanos end = context_.intervals.end() + channel_->WaitedFor(lane.index, node);
      context_.intervals.EndIntervalAt(lane, telemetry::WorkKind::kWaitAttention, layer,
                                       std::min(end, now), MemoryPeer(node));
    }
  }
}

void DeviceRemoteAttention::AppendAwaited(const Lane& lane,
                                          std::vector<AwaitedSignal>& awaited) const {
  if (!lanes_[lane.index].takes) {
    by_host_->AppendAwaited(lane, awaited);
  }
}

// Device and peers get on without this thread.
std::optional<Nanos> DeviceRemoteAttention::PollPause(const Lane& lane) const {
  if (!lanes_[lane.index].takes) {
    return std::nullopt;
  }
  return RealClock().Now() - context_.intervals.end() < kYield ? 0 : kPause;
}

}  // namespace lamina::compute_node
