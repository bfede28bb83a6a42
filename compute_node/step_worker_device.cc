// SPDX-License-Identifier: Apache-2.0
//
// Steps whose rows the device exchanges with memory nodes by itself: decode rows alone, whole, of
// one compute node. At each of the lane's turns it is given a unit ahead of time: wait for the
// outputs before, take them, run the slice, send. The next turn comes when that wait has ended, so
// that the device always has one unit of the lane to go on with, and other lanes' units between.
//
// Behind the last outputs the tail goes as in every step: its end waits for the device.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "compute_node/step_worker.h"
#include "coordinator/core/row_chunks.h"

namespace lamina::compute_node {
namespace {

// While nothing can be ordered the thread yields for so long, then it naps.
constexpr Nanos kYield = Millis(1);
constexpr Nanos kNap = Micros(50);

kernels::HostWindows WindowsOf(const transport::DirectMemory& memory) {
  return {.bytes = memory.bytes,
          .words = memory.words,
          .word_stride = memory.word_stride,
          .pages = memory.pages};
}

uint8_t MemoryPeer(uint32_t node) {
  return static_cast<uint8_t>(control::TraceEvent::kMemoryPeer + node);
}

}  // namespace

// Of the epoch. Empty: nothing is in the way.
std::string StepWorker::WhyRowsAreCopied() const {
  const control::EpochConfig& config = options_.config;
  if (!config.compute_waits) {
    return "device_waits is off";
  }
  if (config.compute_nodes.size() > 1) {
    return "there are several compute nodes";
  }
  if (by_head() || by_span()) {
    return "the partition is not by request";
  }
  for (const AttentionDescriptor& layer : config.layers) {
    if (layer.qkv_width() * sizeof(BFloat16) % kernels::kExchangeAlignment != 0 ||
        layer.q_width() * sizeof(BFloat16) % kernels::kExchangeAlignment != 0) {
      return absl::StrCat("its rows are no multiples of ", kernels::kExchangeAlignment, " bytes");
    }
  }
  if (region_.direct().empty()) {
    return absl::StrCat("windows of ", config.transport, " are the transport's alone");
  }
  return "";
}

void StepWorker::MakeExchange() {
  if (executor_.device().is_host() || local_ != nullptr) {
    return;
  }
  why_copied_ = WhyRowsAreCopied();
  if (why_copied_.empty()) {
    const auto peers = static_cast<uint32_t>(options_.config.memory_nodes.size());
    auto exchange = executor_.device().MakeExchange({.own = WindowsOf(region_.direct()),
                                                     .peers = peers,
                                                     .lanes = options_.config.lanes,
                                                     .patience = options_.peer_deadline});
    if (!exchange.ok()) {
      why_copied_ = std::string(exchange.status().message());
    } else {
      exchange_ = *std::move(exchange);
      rows_in_.reserve(peers);
    }
  }
  LogInfo("epoch ", options_.config.epoch, " rows of decode steps are ",
          exchange_ != nullptr ? "exchanged by " : "copied to ", executor_.device().name(),
          exchange_ != nullptr ? "" : ": ", why_copied_);
}

std::string StepWorker::DescribeRows() const {
  if (executor_.device().is_host()) {
    return "";
  }
  const std::string& device = executor_.device().name();
  return exchange_ != nullptr
             ? absl::StrCat(", exchanged by ", device, " in steps of decode rows alone")
             : absl::StrCat(", rows are copied to ", device,
                            why_copied_.empty() ? "" : absl::StrCat(" (", why_copied_, ")"));
}

// By the thread that runs. If the device does not reach a peer all steps go the host's way.
void StepWorker::OpenWindows() {
  if (exchange_ == nullptr) {
    return;
  }
  std::vector<kernels::HostWindows> windows;
  for (const std::unique_ptr<transport::RemoteRegion>& peer : queries_) {
    windows.push_back(WindowsOf(peer->direct()));
  }
  const absl::Status opened = exchange_->SetPeers(windows);
  windows_open_ = opened.ok();
  if (!opened.ok()) {
    LogWarning("epoch ", options_.config.epoch, " rows of all steps are copied to ",
               executor_.device().name(), ": ", opened.message());
  }
}

// Prompts' rows attend here and go out through stagings; chunks of rows have several values.
bool StepWorker::GoesByDevice(const Lane& lane) const {
  const core::Chunking& chunking = lane.plan.chunking;
  return windows_open_ && lane.chunks.empty() && lane.decode_rows > 0 && chunking.chunks <= 1 &&
         !chunking.query_first;
}

// Orders the outputs that the lane's slice reads.
absl::Status StepWorker::TakeByDevice(Lane& lane) {
  const uint32_t layer = lane.slice - 1;
  const uint32_t index = IndexOf(lane);
  const uint64_t value = UnitValue(lane, layer);
  const auto out = executor_.DeviceAttentionRows(layer, lane.positions.size(), lane.buffers);
  rows_in_.clear();
  for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
    const RowRange& rows = lane.nodes[node].rows;
    if (rows.count > 0) {
      rows_in_.push_back({.peer = node,
                          .window = layout_.ReplyWindow(node, index, value),
                          .stamp = kernels::StampOf(ReplyHeader(lane, layer, node)),
                          .rows = out.row(rows.first),
                          .bytes = rows.count * out.cols * sizeof(BFloat16),
                          .word = layout_.reply_word(node, index),
                          .value = value});
    }
  }
  lane.take_due = false;
  lane.taking = true;
  lane.taking_layer = layer;
  return exchange_->Take(index, core::UnitOf(value), rows_in_);
}

// Orders that the rows of the lane's slice leave.
absl::Status StepWorker::SendByDevice(Lane& lane) {
  const uint32_t index = IndexOf(lane);
  const uint64_t value = UnitValue(lane, lane.slice);
  const auto qkv = executor_.DeviceQkvRows(lane.slice, lane.positions.size(), lane.buffers);
  for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
    const RowRange& rows = lane.nodes[node].rows;
    if (rows.count == 0) {
      continue;
    }
    const size_t bytes = rows.count * qkv.cols * sizeof(BFloat16);
    LAMINA_RETURN_IF_ERROR(
        exchange_->Send(index, core::UnitOf(value),
                        {.peer = node,
                         .window = layout_.QueryWindow(options_.node, index, value),
                         .stamp = kernels::StampOf(QueryHeader(lane, node)),
                         .rows = qkv.row(rows.first),
                         .bytes = bytes,
                         .word = layout_.query_word(options_.node, index),
                         .value = value}));
    const size_t sent = sizeof(core::WindowHeader) + bytes;
    CountSent(*memory_links_[node], sent,
              LapOf(lane, control::WorkPart::kSend, lane.slice, MemoryPeer(node), sent));
  }
  return absl::OkStatus();
}

// Whether the outputs that were ordered last are there, so that more can be ordered.
absl::StatusOr<bool> StepWorker::HasGotOn(Lane& lane, std::string& blamed) {
  const uint32_t index = IndexOf(lane);
  LAMINA_ASSIGN_OR_RETURN(const bool taken, exchange_->HasTaken(index));
  if (!taken) {
    return false;
  }
  if (const auto failed = exchange_->FailureOf(index); failed.has_value()) {
    return FaultOf(lane, *failed, blamed);
  }
  if (lane.taking) {
    lane.taking = false;
    NoteTaken(lane);
  }
  return true;
}

// What the thread would have said, had it looked at the window itself.
absl::Status StepWorker::FaultOf(const Lane& lane, const kernels::FailedTake& failed,
                                 std::string& blamed) {
  if (failed.outcome == kernels::WaitOutcome::kAborted) {
    return absl::CancelledError("the device's wait was aborted");
  }
  blamed = options_.config.memory_nodes[failed.peer];
  if (failed.outcome == kernels::WaitOutcome::kTimeout) {
    return NothingFrom(blamed);
  }
  const uint32_t index = IndexOf(lane);
  const uint64_t value = UnitValue(lane, lane.taking_layer);
  core::WindowHeader header;
  std::memcpy(&header, region_.bytes().data() + layout_.ReplyWindow(failed.peer, index, value),
              sizeof(header));
  LAMINA_RETURN_IF_ERROR(
      CheckWindow(header, ReplyHeader(lane, lane.taking_layer, failed.peer), blamed));
  return absl::InternalError(absl::StrCat(executor_.device().name(), " refused a window of ",
                                          blamed, " whose header is that of the unit"));
}

// The outputs of a layer have come. The device stood still for them until just now, and had work
// before, by its own clock.
void StepWorker::NoteTaken(Lane& lane) {
  const uint32_t layer = lane.taking_layer;
  const uint32_t index = IndexOf(lane);
  const size_t row_bytes = options_.config.layers[layer].q_width() * sizeof(BFloat16);
  executor_.NoteRun(lane.buffers);
  control::AddTo(counters_.device_units, 1);
  Nanos waited = 0;
  Nanos longest = -1;
  uint8_t peer = control::TraceEvent::kNoPeer;
  size_t received = 0;
  for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
    if (lane.nodes[node].rows.count == 0) {
      continue;
    }
    const Nanos for_node = exchange_->WaitedFor(index, node);
    control::AddTo(memory_links_[node]->waited_nanos, static_cast<uint64_t>(for_node));
    waited += for_node;
    received += sizeof(core::WindowHeader) + lane.nodes[node].rows.count * row_bytes;
    if (for_node > longest) {
      longest = for_node;
      peer = MemoryPeer(node);
    }
  }
  control::AddTo(counters_.bytes_received, received);
  const Nanos now = RealClock().Now();
  LapUntil(lane, control::WorkPart::kDense, layer, std::max(lap_, now - waited));
  LapUntil(lane, control::WorkPart::kWaitAttention, layer, now, peer);
  if (layer > 0) {  // Of the step's first slice it is not known when it began.
    lane.slices_nanos += exchange_->SentAfter(index);
    ++lane.slices_run;
  }
}

// Device and peers get on without this thread.
void StepWorker::NapBesideDevice() const {
  if (RealClock().Now() - lap_ < kYield) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kNap));
  }
}

}  // namespace lamina::compute_node
