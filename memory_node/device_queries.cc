// SPDX-License-Identifier: Apache-2.0
#include "memory_node/device_queries.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/blame.h"
#include "plan/epoch_shape.h"
#include "plan/row_pieces.h"

namespace lamina::memory_node {
namespace {

// A lane has a stream with a kernel that polls. Each wants a queue of the driver to itself, as does
// the stream that stores: it has 32 (daemon/daemon.h, GiveCudaStreamsTheirOwnQueues()).
constexpr uint32_t kWaitingLanesMax = 8;
// Units of a lane ahead of those seen to be done. Some launches each, of about a thousand that a
// driver takes before a launch waits; and far more than pass between two looks. Records of as many
// sends are kept.
constexpr uint32_t kUnitsAhead = 16;
// Looks come as often as this while units pass, more seldom the longer nothing does.
constexpr Nanos kLookMin = Micros(50);
constexpr Nanos kLookMax = Millis(50);
constexpr int kLooksSlower = 4;  // The pause is this part of the time since.
// Without progress for so long the device is asked whether it still works.
constexpr Nanos kDoubtful = Millis(10);

kernels::KvStepAttention& StepAttentionOf(kernels::KvDevice& device) {
  LAMINA_CHECK(device.step_attention() != nullptr);
  return *device.step_attention();
}

}  // namespace

DeviceQueries::DeviceQueries(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed,
                             UnitMeter& meter, QueryParts& parts,
                             std::unique_ptr<kernels::WindowChannel> channel)
    : epoch_(epoch),
      checks_(checks),
      feed_(feed),
      meter_(meter),
      parts_(parts),
      attention_(StepAttentionOf(epoch.device)),
      channel_(std::move(channel)),
      sends_(epoch.counters.meter.ring(), epoch.layout, epoch.layout.reply_word(epoch.node, 0)),
      landings_(epoch.counters.meter.ring(), epoch.layout),
      progress_(epoch.config.lanes) {}

std::string DeviceQueries::Obstacle(const plan::EpochConfig& config, transport::Region& region) {
  if (plan::ShardsOf(config) > 1) {
    return absl::StrCat("rows come in parts, of ", plan::ShardsOf(config), " shards");
  }
  if (config.partition == Partition::kTokenRange) {
    return "partition token_range";
  }
  if (config.lanes > kWaitingLanesMax) {
    return absl::StrCat(config.lanes, " lanes, at most ", kWaitingLanesMax);
  }
  if (region.direct().empty()) {
    return region.memory().path != transport::MemoryPath::kHost
               ? absl::StrCat("windows of ", config.transport,
                              " in its memory have no words for it")
               : absl::StrCat("the device does not reach windows of ", config.transport);
  }
  return "";
}

absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> DeviceQueries::MakeChannel(
    const plan::EpochConfig& config, transport::Region& region, kernels::KvDevice& device,
    Nanos silence_max) {
  LAMINA_ASSIGN_OR_RETURN(
      std::unique_ptr<kernels::WindowChannel> channel,
      device.MakeChannel({.own = kernels::HostWindowsOf(region.direct()),
                          .peers = static_cast<uint32_t>(config.compute_nodes.size()),
                          .lanes = config.lanes,
                          .timeout = silence_max,
                          .counts_beats = true,
                          .sends_kept = kUnitsAhead}));
  if (channel == nullptr) {
    return absl::UnimplementedError(absl::StrCat(device.name(), " cannot wait"));
  }
  return channel;
}

absl::Status DeviceQueries::Open() {
  const absl::Status opened = OpenPeers();
  open_ = opened.ok();
  if (!open_) {
    LogWarning("epoch ", epoch_.config.epoch,
               " the device cannot wait for windows: ", opened.message(),
               "; rows are copied to it instead");
    return absl::OkStatus();
  }
  done_.reserve(feed_.lanes().size() * epoch_.layout.layer_count());
  step_rows_.reserve(epoch_.config.rows_max);
  return absl::OkStatus();
}

// The reply windows of all compute nodes: each may be the next to be answered.
absl::Status DeviceQueries::OpenPeers() {
  std::vector<kernels::HostWindows> replies;
  landings_.Watch(epoch_.region.direct().landings);
  for (uint32_t node = 0; node < epoch_.peers.compute.size(); ++node) {
    const transport::DirectMemory memory = epoch_.peers.compute[node]->direct();
    if (memory.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the windows of ", epoch_.NameOf(node), " are not direct memory"));
    }
    replies.push_back(kernels::HostWindowsOf(memory));
    sends_.Add(memory.outbox, static_cast<uint16_t>(node));
    landings_.Add(static_cast<uint16_t>(node), epoch_.layout.query_word(node, 0));
  }
  return channel_->SetPeers(replies);
}

// The windows outlive what the device does with them.
void DeviceQueries::Close() {
  channel_->Close();
  sends_.Clear();
  landings_.Clear();
}

// Steps of decode rows in one piece, which come in one part.
bool DeviceQueries::Fits(const Lane& lane) {
  if (!open_ || lane.rows.empty() || lane.chunk_tokens > 0 || parts_.of(lane).size() != 1) {
    return false;
  }
  const auto rows = static_cast<uint32_t>(lane.rows.size());
  for (const AttentionDescriptor& layer : epoch_.layers) {
    if (plan::PiecesOf(lane.chunking, rows, layer.kv_heads).count() > 1) {
      return false;
    }
  }
  step_rows_.clear();
  for (const Row& row : lane.rows) {
    step_rows_.push_back(
        {.extents = row.sequence->extents, .position = row.position, .slot = row.slot.first_slot});
  }
  return attention_.Fits(step_rows_);
}

absl::StatusOr<bool> DeviceQueries::TakeStep(Lane& lane) {
  if (!Fits(lane)) {
    return false;
  }
  LAMINA_RETURN_IF_ERROR(attention_.BeginStep(lane.index, step_rows_));
  progress_[lane.index] = {};
  LAMINA_RETURN_IF_ERROR(EnqueueAhead(lane));
  return true;
}

absl::Status DeviceQueries::EnqueueAhead(const Lane& lane) {
  Progress& progress = progress_[lane.index];
  const uint32_t end = std::min(epoch_.layout.layer_count(), progress.seen + kUnitsAhead);
  for (; progress.enqueued < end; ++progress.enqueued) {
    LAMINA_RETURN_IF_ERROR(EnqueueUnit(lane, progress.enqueued));
    progressed_ = RealClock().Now();
  }
  return absl::OkStatus();
}

// From the compute node that runs the layer's slice to the one that runs the next.
absl::Status DeviceQueries::EnqueueUnit(const Lane& lane, uint32_t layer) {
  const plan::WindowLayout& layout = epoch_.layout;
  const AttentionDescriptor& shape = epoch_.layers[layer];
  const uint64_t value = layout.SignalValue(lane.step, layer);
  const uint64_t unit = plan::UnitOf(value);
  const plan::WindowHeader query = checks_.Planned(RunnerOf(lane, layer), lane, layer);
  plan::WindowHeader reply = query;
  reply.sender = epoch_.node;
  const kernels::RowsIn in = {.peer = query.sender,
                              .window = layout.QueryWindow(query.sender, lane.index, value),
                              .stamp = kernels::StampOf(query),
                              .rows = attention_.rows(lane.index),
                              .bytes = lane.rows.size() * shape.qkv_width() * sizeof(BFloat16),
                              .word = layout.query_word(query.sender, lane.index),
                              .value = value};
  LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(channel_->Take(lane.index, unit, {&in, 1})));
  LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(attention_.Attend(lane.index, layer)));
  const uint32_t receiver = RunnerOf(lane, layer + 1);
  return control::Blame(
      channel_->Send(lane.index, unit,
                     {.peer = receiver,
                      .window = layout.ReplyWindow(epoch_.node, lane.index, value),
                      .stamp = kernels::StampOf(reply),
                      .rows = attention_.outputs(lane.index),
                      .bytes = lane.rows.size() * shape.q_width() * sizeof(BFloat16),
                      .word = layout.reply_word(epoch_.node, lane.index),
                      .value = value}),
      epoch_.NameOf(receiver));
}

void DeviceQueries::AppendAwaited(std::vector<transport::SignalCondition>& conditions) {
  for (const Lane& lane : feed_.lanes()) {
    for (uint32_t node = 0; lane.server == this && node < epoch_.peers.compute.size(); ++node) {
      conditions.push_back(
          {.word = epoch_.layout.query_word(node, lane.index), .at_least = epoch_.StepEnd(lane)});
    }
  }
}

Nanos DeviceQueries::LookAt(Nanos) const {
  return open_ ? looked_ + std::clamp((looked_ - progressed_) / kLooksSlower, kLookMin, kLookMax)
               : kNever;
}

absl::Status DeviceQueries::Look() {
  channel_->Beat();
  for (Lane& lane : feed_.lanes()) {
    uint32_t sender = 0;
    if (absl::Status looked = LookAtLane(lane, sender); !looked.ok()) {
      return control::Blame(std::move(looked), epoch_.NameOf(sender));
    }
  }
  EndUnitIntervals();
  sends_.Record();
  landings_.Record();
  LAMINA_RETURN_IF_ERROR(feed_.TakePlans());
  looked_ = RealClock().Now();
  return absl::OkStatus();
}

// Also ends the step, and begins the next one if its plan is here.
absl::Status DeviceQueries::LookAtLane(Lane& lane, uint32_t& sender) {
  Progress& progress = progress_[lane.index];
  while (lane.server == this && progress.seen < progress.enqueued) {
    sender = RunnerOf(lane, progress.seen);
    const uint64_t value = epoch_.layout.SignalValue(lane.step, progress.seen);
    // The failure first: a unit before the one that failed shows in its record then.
    const std::optional<kernels::FailedTake> failed = channel_->FailureOf(lane.index);
    const std::optional<Nanos> nanos = channel_->SentAfter(lane.index, plan::UnitOf(value));
    if (!nanos.has_value() && failed.has_value()) {
      return Failure(lane, *failed);
    }
    if (!nanos.has_value()) {
      return RealClock().Now() - progressed_ > kDoubtful
                 ? epoch_.OwnFault(channel_->Check(lane.index))
                 : absl::OkStatus();
    }
    NoteUnit(lane, *nanos);
    if (++progress.seen < epoch_.layout.layer_count()) {
      LAMINA_RETURN_IF_ERROR(EnqueueAhead(lane));
      continue;
    }
    EndUnitIntervals();  // While the lane's rows are those of the step.
    LAMINA_RETURN_IF_ERROR(feed_.EndStep(lane));
    meter_.EndInterval(telemetry::WorkKind::kTables, lane, parts_.of(lane).front().value, sender);
  }
  return absl::OkStatus();
}

// Counts what the data thread counts of a unit that it serves.
void DeviceQueries::NoteUnit(const Lane& lane, Nanos nanos) {
  const uint32_t layer = progress_[lane.index].seen;
  const uint64_t value = epoch_.layout.SignalValue(lane.step, layer);
  parts_.of(lane).front().value = value;
  const AttentionDescriptor& shape = epoch_.layers[layer];
  const uint64_t read = lane.context_tokens() * 2 * shape.kv_width() * sizeof(BFloat16);
  const size_t header = sizeof(plan::WindowHeader);
  const size_t sent = header + lane.rows.size() * shape.q_width() * sizeof(BFloat16);
  progressed_ = RealClock().Now();
  done_.push_back({.lane = &lane,
                   .sender = RunnerOf(lane, layer),
                   .value = value,
                   .nanos = nanos,
                   .waited = channel_->WaitedBefore(lane.index, plan::UnitOf(value)),
                   .read_bytes = read});
  WorkerCounters& counters = epoch_.counters;
  telemetry::AddTo(counters.kv_bytes_read, read);
  telemetry::AddTo(counters.bytes_received,
                   header + lane.rows.size() * shape.qkv_width() * sizeof(BFloat16));
  telemetry::AddTo(counters.bytes_sent, sent);
  telemetry::AddTo(counters.units, 1);
  telemetry::AddTo(counters.device_units, 1);
  telemetry::LinkCounters& link = meter_.link(RunnerOf(lane, layer + 1));
  telemetry::AddTo(link.bytes, sent);
  telemetry::AddTo(link.puts, 1);
  meter_.NoteUnit(lane, layer, nanos);
}

// The time since the last interval: first waiting, then, as far as the device worked in it,
// attention. Lanes that worked side by side share it, and their senders the wait.
void DeviceQueries::EndUnitIntervals() {
  if (done_.empty()) {
    return;
  }
  const Nanos now = RealClock().Now();
  Nanos worked = 0;
  for (const DoneUnit& unit : done_) {
    worked += unit.nanos;
  }
  Nanos at = std::max(meter_.end(), now - worked);
  const auto waited = static_cast<uint64_t>(at - meter_.end()) / done_.size();
  const uint32_t sender = done_.front().sender;
  const bool one_sender = std::all_of(done_.begin(), done_.end(),
                                      [=](const DoneUnit& unit) { return unit.sender == sender; });
  meter_.EndIntervalAt(
      {.start = meter_.end(),
       .end = at,
       .part = telemetry::WorkKind::kWaitQuery,
       .peer = one_sender ? static_cast<uint16_t>(sender) : telemetry::TraceEvent::kNoPeer});
  for (const DoneUnit& unit : done_) {
    telemetry::AddTo(meter_.link(unit.sender).waited_nanos, waited);
    const Nanos end = std::min(now, at + unit.nanos);
    meter_.EndIntervalAt(
        {.start = at,
         .end = end,
         .part = telemetry::WorkKind::kAttend,
         .lane = static_cast<uint8_t>(unit.lane->index),
         .peer = static_cast<uint16_t>(unit.sender),
         .layer = static_cast<uint16_t>(epoch_.layout.LayerOf(unit.value)),
         .rows = static_cast<uint16_t>(unit.lane->rows.size()),
         .step = static_cast<uint32_t>(epoch_.layout.StepOf(unit.value)),
         .bytes = static_cast<uint32_t>(std::min<uint64_t>(unit.read_bytes, UINT32_MAX))});
    at = end;
  }
  if (epoch_.counters.meter.ring().on()) {
    RecordWaits(now);
  }
  done_.clear();
}

// For the timeline: the device's clock tells lengths alone. So the last unit of a lane ends now,
// and what the device did before lies before that.
void DeviceQueries::RecordWaits(Nanos now) {
  for (size_t i = 0; i < done_.size(); ++i) {
    const DoneUnit& unit = done_[i];
    Nanos end = now - unit.nanos;
    for (size_t later = i + 1; later < done_.size(); ++later) {
      end -= done_[later].lane == unit.lane ? done_[later].nanos + done_[later].waited : 0;
    }
    epoch_.counters.meter.ring().Record(
        {.start = end - unit.waited,
         .end = end,
         .part = telemetry::WorkKind::kDeviceWait,
         .lane = static_cast<uint8_t>(unit.lane->index),
         .peer = static_cast<uint16_t>(unit.sender),
         .layer = static_cast<uint16_t>(epoch_.layout.LayerOf(unit.value)),
         .rows = static_cast<uint16_t>(unit.lane->rows.size()),
         .step = static_cast<uint32_t>(epoch_.layout.StepOf(unit.value))});
  }
}

absl::Status DeviceQueries::Failure(const Lane& lane, const kernels::FailedTake& failed) {
  const kernels::WaitOutcome outcome = failed.outcome;
  const uint32_t layer = progress_[lane.index].seen;
  const std::string where =
      absl::StrCat("lane ", lane.index, " step ", lane.step, " layer ", layer);
  if (outcome == kernels::WaitOutcome::kAborted) {
    return absl::CancelledError(absl::StrCat(where, ": stopped while the device waited"));
  }
  if (outcome == kernels::WaitOutcome::kTimeout) {
    return epoch_.OwnFault(absl::DeadlineExceededError(
        absl::StrCat(where, ": the device has not heard of the worker for ",
                     ToSeconds(epoch_.peer_deadline), " s")));
  }
  // What the device saw: behind these words a header has zeros.
  const uint32_t sender = RunnerOf(lane, layer);
  plan::WindowHeader header;
  std::memcpy(static_cast<void*>(&header), &failed.stamp, sizeof(failed.stamp));
  LAMINA_RETURN_IF_ERROR(checks_.ByPlan(header, sender, lane, layer));
  return checks_.Overwritten(sender, lane, layer, outcome == kernels::WaitOutcome::kStale);
}

}  // namespace lamina::memory_node
