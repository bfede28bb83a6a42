// SPDX-License-Identifier: Apache-2.0
//
// Steps that the device serves by itself (kernels/kv_waits.h): what fits, launches ahead of the
// data, and looks at how far it is. Units are counted as if the worker had served them; of their
// time the device tells how long it worked, the rest was waiting for queries.

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/blame.h"
#include "memory_node/attention_worker.h"

namespace lamina::memory_node {
namespace {

// A lane has a stream with a kernel that polls. Each wants a queue of the driver to itself, as does
// the stream that stores: it has 32 (daemon/daemon.h, GiveCudaStreamsTheirOwnQueues()).
constexpr uint32_t kWaitingLanesMax = 8;
// Units of a lane ahead of those seen to be done. Some launches each, of about a thousand that a
// driver takes before a launch waits; and far more than pass between two looks.
constexpr uint32_t kUnitsAhead = 16;
// Looks come as often as this while units pass, more seldom the longer nothing does.
constexpr Nanos kLookMin = Micros(50);
constexpr Nanos kLookMax = Millis(50);
constexpr int kLooksSlower = 4;  // The pause is this part of the time since.
// Without progress for so long the device is asked whether it still works.
constexpr Nanos kDoubtful = Millis(10);

uint64_t* WordOf(const transport::DirectMemory& memory, uint32_t word) {
  return reinterpret_cast<uint64_t*>(memory.words + word * memory.word_stride);
}

}  // namespace

std::string AttentionWorker::WaitsObstacle(const plan::EpochConfig& config,
                                           transport::Region& region) {
  if (plan::ShardsOf(config) > 1) {
    return absl::StrCat("rows come in parts, of ", plan::ShardsOf(config), " shards");
  }
  if (config.partition == Partition::kTokenRange) {
    return "partition token_range";
  }
  if (config.lanes > kWaitingLanesMax) {
    return absl::StrCat(config.lanes, " lanes, at most ", kWaitingLanesMax);
  }
  if (region.memory().path != transport::MemoryPath::kHost) {
    return "windows lie in its memory, and it waits for those in the host's";
  }
  if (region.direct().empty()) {
    return absl::StrCat("the device does not reach windows of ", config.transport);
  }
  return "";
}

// Without windows that the driver takes, the worker serves all units, as it would have otherwise.
void AttentionWorker::OpenWaits() {
  if (waits_ == nullptr) {
    return;
  }
  const absl::Status opened = OpenWindows();
  waits_open_ = opened.ok();
  if (!waits_open_) {
    LogWarning("epoch ", options_.config.epoch,
               " the device cannot wait for windows: ", opened.message(),
               "; rows are copied to it instead");
    return;
  }
  device_units_.reserve(lanes_.size() * layout_.layer_count());
  waiting_rows_.reserve(options_.config.rows_max);
}

// The own ones, and those of all compute nodes: each may be the next to be answered.
absl::Status AttentionWorker::OpenWindows() {
  queries_ = region_.direct();
  std::vector<absl::Span<std::byte>> pages = {queries_.pages};
  for (size_t node = 0; node < replies_.size(); ++node) {
    reply_windows_.push_back(replies_[node]->direct());
    if (queries_.empty() || reply_windows_.back().empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the windows of ", options_.config.compute_nodes[node], " are not direct memory"));
    }
    pages.push_back(reply_windows_.back().pages);
  }
  return waits_->Open(pages, options_.peer_deadline);
}

uint32_t AttentionWorker::RunnerOf(uint32_t lane_index, uint32_t slice) const {
  const Lane& lane = lanes_[lane_index];
  return schedules_[lane.parts.front().shard].NodeOf(lane_index, lane.step, slice, lane.pinned);
}

// Decides on a step that begins.
absl::Status AttentionWorker::GiveToDevice(Lane& lane) {
  if (!waits_open_ || lane.rows.empty() || lane.chunk_tokens > 0 || lane.parts.size() != 1) {
    return absl::OkStatus();
  }
  const auto rows = static_cast<uint32_t>(lane.rows.size());
  for (const AttentionDescriptor& layer : layers_) {
    if (plan::PiecesOf(lane.chunking, rows, layer.kv_heads).count() > 1) {
      return absl::OkStatus();
    }
  }
  waiting_rows_.clear();
  for (const Row& row : lane.rows) {
    waiting_rows_.push_back(
        {.extents = row.sequence->extents, .position = row.position, .slot = row.slot.first_slot});
  }
  if (!waits_->Fits(waiting_rows_)) {
    return absl::OkStatus();
  }
  const auto lane_index = static_cast<uint32_t>(&lane - lanes_.data());
  LAMINA_RETURN_IF_ERROR(waits_->BeginStep(lane_index, waiting_rows_));
  lane.on_device = true;
  lane.launched = 0;
  lane.seen = 0;
  return LaunchAhead(lane_index);
}

absl::Status AttentionWorker::LaunchAhead(uint32_t lane_index) {
  Lane& lane = lanes_[lane_index];
  const uint32_t end = std::min(layout_.layer_count(), lane.seen + kUnitsAhead);
  for (; lane.launched < end; ++lane.launched) {
    LAMINA_RETURN_IF_ERROR(waits_->Launch(lane_index, UnitOf(lane_index, lane.launched)));
    progress_ = RealClock().Now();
  }
  return absl::OkStatus();
}

plan::WindowHeader AttentionWorker::QueryHeader(uint32_t lane_index, uint32_t layer) const {
  const Lane& lane = lanes_[lane_index];
  return {.lane = lane_index,
          .epoch = options_.config.epoch,
          .step = lane.step,
          .layer = layer,
          .rows = static_cast<uint32_t>(lane.rows.size()),
          .sender = RunnerOf(lane_index, layer)};
}

// From the compute node that runs the layer's slice to the one that runs the next.
kernels::WaitingUnit AttentionWorker::UnitOf(uint32_t lane_index, uint32_t layer) const {
  const uint64_t value = layout_.SignalValue(lanes_[lane_index].step, layer);
  const plan::WindowHeader query = QueryHeader(lane_index, layer);
  plan::WindowHeader reply = query;
  reply.sender = options_.node;
  const transport::DirectMemory& to = reply_windows_[RunnerOf(lane_index, layer + 1)];
  return {.layer = layer,
          .signal = WordOf(queries_, layout_.query_word(query.sender, lane_index)),
          .at_least = value,
          .query = queries_.bytes.data() + layout_.QueryWindow(query.sender, lane_index, value),
          .expected = kernels::StampOf(query),
          .reply = to.bytes.data() + layout_.ReplyWindow(options_.node, lane_index, value),
          .stamp = kernels::StampOf(reply),
          .reply_signal = WordOf(to, layout_.reply_word(options_.node, lane_index)),
          .reply_value = value};
}

absl::Status AttentionWorker::LookAtDevice() {
  if (!waits_open_) {
    return absl::OkStatus();
  }
  waits_->Beat();
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].on_device) {
      uint32_t sender = 0;
      if (absl::Status looked = LookAtLane(lane, sender); !looked.ok()) {
        return control::Blame(std::move(looked), options_.config.compute_nodes[sender]);
      }
    }
  }
  LapDeviceUnits();
  return absl::OkStatus();
}

// Also ends the step, and begins the next one if its plan is here. `sender` is the compute node of
// the unit that was looked at last.
absl::Status AttentionWorker::LookAtLane(uint32_t lane_index, uint32_t& sender) {
  Lane& lane = lanes_[lane_index];
  while (lane.on_device && lane.seen < lane.launched) {
    sender = RunnerOf(lane_index, lane.seen);
    const kernels::UnitState state = waits_->Look(lane_index, lane.seen);
    if (state.outcome == kernels::WaitOutcome::kPending) {
      return RealClock().Now() - progress_ > kDoubtful ? waits_->Check(lane_index)
                                                       : absl::OkStatus();
    }
    if (state.outcome != kernels::WaitOutcome::kOk) {
      return DeviceFailure(lane_index, state.outcome);
    }
    NoteDeviceUnit(lane_index, state.nanos);
    if (++lane.seen < layout_.layer_count()) {
      LAMINA_RETURN_IF_ERROR(LaunchAhead(lane_index));
      continue;
    }
    LapDeviceUnits();  // While the lane's rows are those of the step.
    lane.on_device = false;
    lane.step = 0;
    LAMINA_RETURN_IF_ERROR(Advance(lane));
    Lap(telemetry::WorkPart::kTables, lane_index, lane.parts.front().value, sender);
  }
  return absl::OkStatus();
}

// Counts what the worker counts of a unit that it serves.
void AttentionWorker::NoteDeviceUnit(uint32_t lane_index, Nanos nanos) {
  Lane& lane = lanes_[lane_index];
  Part& part = lane.parts.front();
  part.value = layout_.SignalValue(lane.step, lane.seen);
  part.unit_nanos = nanos;
  const AttentionDescriptor& shape = layers_[lane.seen];
  uint64_t context = 0;
  for (const Row& row : lane.rows) {
    context += row.position + 1;
  }
  const uint64_t read = context * 2 * shape.kv_width() * sizeof(BFloat16);
  const size_t header = sizeof(plan::WindowHeader);
  const size_t sent = header + lane.rows.size() * shape.q_width() * sizeof(BFloat16);
  progress_ = RealClock().Now();
  device_units_.push_back({.lane = lane_index,
                           .sender = RunnerOf(lane_index, lane.seen),
                           .value = part.value,
                           .nanos = nanos,
                           .read_bytes = read});
  telemetry::AddTo(counters_.kv_bytes_read, read);
  telemetry::AddTo(counters_.bytes_received,
                   header + lane.rows.size() * shape.qkv_width() * sizeof(BFloat16));
  telemetry::AddTo(counters_.bytes_sent, sent);
  telemetry::AddTo(counters_.units, 1);
  telemetry::AddTo(counters_.device_units, 1);
  telemetry::LinkCounters& link = *links_[RunnerOf(lane_index, lane.seen + 1)];
  telemetry::AddTo(link.bytes, sent);
  telemetry::AddTo(link.puts, 1);
  NoteUnit(lane, part);
}

// The time since the last lap: first waiting, then, as far as the device worked in it, attention.
// Lanes that worked side by side share it, and their senders the wait.
void AttentionWorker::LapDeviceUnits() {
  if (device_units_.empty()) {
    return;
  }
  const Nanos now = RealClock().Now();
  Nanos worked = 0;
  for (const DeviceUnit& unit : device_units_) {
    worked += unit.nanos;
  }
  Nanos at = std::max(lap_, now - worked);
  const auto waited = static_cast<uint64_t>(at - lap_) / device_units_.size();
  counters_.meter.LapUntil({.start = lap_, .end = at, .part = telemetry::WorkPart::kWaitQuery});
  for (const DeviceUnit& unit : device_units_) {
    telemetry::AddTo(links_[unit.sender]->waited_nanos, waited);
    const Nanos end = std::min(now, at + unit.nanos);
    counters_.meter.LapUntil(
        {.start = at,
         .end = end,
         .part = telemetry::WorkPart::kAttend,
         .lane = static_cast<uint8_t>(unit.lane),
         .peer = static_cast<uint8_t>(unit.sender),
         .layer = static_cast<uint16_t>(layout_.LayerOf(unit.value)),
         .rows = static_cast<uint16_t>(lanes_[unit.lane].rows.size()),
         .step = static_cast<uint32_t>(layout_.StepOf(unit.value)),
         .bytes = static_cast<uint32_t>(std::min<uint64_t>(unit.read_bytes, UINT32_MAX))});
    at = end;
  }
  lap_ = at;
  device_units_.clear();
}

absl::Status AttentionWorker::DeviceFailure(uint32_t lane_index, kernels::WaitOutcome outcome) {
  const Lane& lane = lanes_[lane_index];
  const std::string where =
      absl::StrCat("lane ", lane_index, " step ", lane.step, " layer ", lane.seen);
  if (outcome == kernels::WaitOutcome::kAborted) {
    return absl::CancelledError(absl::StrCat(where, ": stopped while the device waited"));
  }
  if (outcome == kernels::WaitOutcome::kTimeout) {
    return absl::DeadlineExceededError(absl::StrCat(where,
                                                    ": the device has not heard of the worker for ",
                                                    ToSeconds(options_.peer_deadline), " s"));
  }
  // The window is still what the device saw: its sender waits for the reply.
  const uint64_t value = layout_.SignalValue(lane.step, lane.seen);
  const plan::WindowHeader expected = QueryHeader(lane_index, lane.seen);
  plan::WindowHeader header;
  std::memcpy(&header,
              queries_.bytes.data() + layout_.QueryWindow(expected.sender, lane_index, value),
              sizeof(header));
  LAMINA_RETURN_IF_ERROR(CheckWindow(header, expected));
  return absl::InternalError(
      absl::StrCat(where, ": the device refused a window that now fits the plan"));
}

Nanos AttentionWorker::NextLook() const {
  return std::clamp((RealClock().Now() - progress_) / kLooksSlower, kLookMin, kLookMax);
}

}  // namespace lamina::memory_node
