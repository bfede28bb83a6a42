// SPDX-License-Identifier: Apache-2.0
#include "memory_node/memory_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kv_form.h"
#include "common/link_options.h"
#include "common/log.h"
#include "common/memlock.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "control/kv_arena.h"
#include "control/transport_fault.h"
#include "memory_node/device_queries.h"
#include "plan/epoch_shape.h"

namespace lamina::memory_node {
namespace {}  // namespace

MemoryNode::MemoryNode(MemoryNodeOptions options, ThreadPool& pool)
    : options_(std::move(options)), pool_(pool) {}

MemoryNode::~MemoryNode() { LeaveEpoch(); }

absl::StatusOr<control::PreparedNode> MemoryNode::Configure(const plan::EpochConfig& config) {
  LeaveEpoch();
  const ActivityScope preparing(counters_.beat, ThreadActivity::kPreparing);
  LAMINA_ASSIGN_OR_RETURN(const uint32_t node,
                          plan::OwnIndex(config.memory_nodes, options_.name, config.epoch));
  LAMINA_RETURN_IF_ERROR(plan::CheckEpoch(config));
  const plan::WindowShape shape = plan::WindowShapeOf(config);
  LAMINA_RETURN_IF_ERROR(plan::WindowLayout::Check(shape));
  const plan::WindowLayout layout(shape);
  config_ = config;
  LAMINA_RETURN_IF_ERROR(control::TransportFault(MakeWindows()));
  LAMINA_RETURN_IF_ERROR(MakeDevice(
      AttentionWorker::DeviceOptions(config, node, config.KvFormOf(plan::AttentionPath::kRemote),
                                     config.slots[node]),
      kept_));
  LAMINA_RETURN_IF_ERROR(MakeInt8Device(node));
  const kernels::KvDevice* const int8 = kept_int8_.device.get();
  const AttentionWorker::Options options = {
      .config = config,
      .node = node,
      .peer_deadline = options_.peer_deadline,
      .spill = options_.spill,
      .report_spill =
          [reporter = reporter_](const plan::SpillReport& report) {
            if (reporter != nullptr) {
              reporter->ReportSpill(report);
            }
          },
      .int8_device = kept_int8_.device.get(),
      .tails = int8 == nullptr ? &kept_.tails : &kept_int8_.tails};
  const bool on_device = options_.device != "cpu";
  std::string obstacle;
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<kernels::WindowChannel> channel,
                          ChooseChannel(options.peer_deadline, obstacle));
  if (options_.spill != nullptr &&
      (kept_.device->reads() == nullptr || kept_.device->writes() == nullptr)) {
    return absl::UnimplementedError(absl::StrCat(
        "memory node ", options_.name, ": spill, on a device (", kept_.device->name(),
        ") that K and V cannot be copied back to; leave spill out of the cluster file"));
  }
  const bool waits = channel != nullptr;
  worker_ = std::make_unique<AttentionWorker>(options, *windows_.transport, *windows_.region,
                                              *kept_.device, pool_, counters_, std::move(channel));
  LAMINA_RETURN_IF_ERROR(UseDeviceWindows());
  RegisterArena();
  const std::string windows = absl::StrCat(transport::DescribeMemory(windows_.memory),
                                           on_device ? DescribeUse(waits, obstacle) : "");
  LogInfo("epoch ", config.epoch, " device ", kept_.device->name(), " slots ",
          kept_.device->slots(),
          int8 == nullptr ? "" : absl::StrCat(", and of int8 ", int8->slots()), " arena ",
          FormatBytes(kept_.device->bytes() + (int8 == nullptr ? 0 : int8->bytes())), " windows ",
          FormatBytes(layout.query_region_bytes()), " in ", windows, " transport ",
          windows_.transport->scheme());
  return control::PreparedNode{
      .region = windows_.region->Descriptor(), .windows = windows, .kv_arena = arena_};
}

// What may be pinned has to do for the windows, copies of pieces and replies; the last two come
// later.
void MemoryNode::RegisterArena() {
  kernels::KvReads* const reads = kept_.device->reads();
  const uint64_t arena = reads == nullptr ? 0 : reads->memory().size();
  if (!config_->attention_paths.fetch() ||
      !PinsMemory(plan::TransportUri(*config_, options_.verbs_uri)) ||
      arena <= MemlockLimit() - std::min(MemlockLimit(), pinned_bytes_)) {
    worker_->RegisterArena();
    return;
  }
  LogWarning("K and V are copied before they are put: RDMA would pin all of the arena, ",
             FormatBytes(arena), ", and the memlock limit is ", FormatBytes(MemlockLimit()),
             ": raise it by `ulimit -l unlimited` or LimitMEMLOCK=infinity");
}

// A device that has no memory for lanes, or whose trial of the kernels fails, serves without.
absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> MemoryNode::ChooseChannel(
    Nanos silence_max, std::string& obstacle) {
  const bool wanted = options_.device != "cpu" && config_->memory_waits;
  obstacle = wanted ? DeviceQueries::Obstacle(*config_, *windows_.region) : "";
  if (!wanted || !obstacle.empty()) {
    LAMINA_RETURN_IF_ERROR(kept_.device->MakeStepLanes({}));
    return nullptr;
  }
  absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> opened = OpenChannel(silence_max);
  if (!opened.ok()) {
    obstacle = std::string(opened.status().message());
    LAMINA_RETURN_IF_ERROR(kept_.device->MakeStepLanes({}));  // Nobody uses their memory.
    return nullptr;
  }
  return opened;
}

// While nobody waits on the device, since it takes memory. Whether the driver takes the windows of
// peers shows later; they are likely to be as good.
absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> MemoryNode::OpenChannel(Nanos silence_max) {
  LAMINA_RETURN_IF_ERROR(kept_.device->Begin());
  LAMINA_RETURN_IF_ERROR(
      kept_.device->MakeStepLanes({.lanes = config_->lanes, .rows_max = config_->rows_max}));
  return DeviceQueries::MakeChannel(*config_, *windows_.region, *kept_.device, silence_max);
}

// Says how a device uses windows: what was not asked for needs no reason.
std::string MemoryNode::DescribeUse(bool waits, const std::string& obstacle) const {
  if (waits) {
    const bool flushed = windows_.on_device() && !windows_.region->direct().pages.empty();
    return absl::StrCat(flushed ? ", flushed by a thread" : "", ", for which ", options_.device,
                        " waits itself");
  }
  return absl::StrCat(windows_.on_device() ? ", rows stay in " : ", rows are copied to ",
                      options_.device,
                      obstacle.empty() ? "" : ", which does not wait itself: ", obstacle);
}

absl::Status MemoryNode::MakeWindows() {
  const std::string uri = WithBusDirection(plan::TransportUri(*config_, options_.verbs_uri), "to");
  LAMINA_ASSIGN_OR_RETURN(std::shared_ptr<SharedBus> bus, OpenBusOf(uri));
  counters_.bus.Use(std::move(bus));
  if (config_->attention_paths.fetch()) {
    const plan::WindowLayout layout(plan::WindowShapeOf(*config_));
    pinned_bytes_ = layout.query_region_bytes() + AttentionWorker::SourceBytes(*config_);
    LAMINA_RETURN_IF_ERROR(
        CheckMemlock(uri, absl::StrCat("fetch.window: ", FormatBytes(config_->fetch_bytes)),
                     pinned_bytes_, MemlockLimit()));
  }
  LAMINA_ASSIGN_OR_RETURN(windows_,
                          MakeQueryWindows(*config_, {.node = options_.name,
                                                      .transport_uri = uri,
                                                      .secret = options_.secret,
                                                      .memory = options_.window_memory,
                                                      .place = options_.windows,
                                                      .device_waits = config_->memory_waits}));
  return absl::OkStatus();
}

// Rows of windows in the device's memory stay there, and outputs are put from there. Else the
// device is told to forget those of the epoch before.
absl::Status MemoryNode::UseDeviceWindows() {
  if (!windows_.on_device()) {
    return kept_.device->UseMemory({});
  }
  LAMINA_ASSIGN_OR_RETURN(
      device_replies_, DeviceAllocation::Make(*options_.window_memory,
                                              std::max<size_t>(worker_->device_reply_bytes(), 1)));
  return worker_->UseDeviceMemory(device_replies_.bytes());
}

// Keeps the device's arena of the epoch before when its shape is the same: what the coordinator
// knows to be stored there is there still. Lanes are no part of it.
absl::Status MemoryNode::MakeDevice(const kernels::KvDeviceOptions& options, KeptDevice& kept) {
  if (kept.Keeps(options)) {
    kept.tails.BeginEpoch();
    return absl::OkStatus();
  }
  kept.device.reset();
  LAMINA_ASSIGN_OR_RETURN(kept.device, options_.make_device(options));
  arena_ = control::DrawKvArena();
  kept.options = options;
  kept.tails = plan::Tails(options.int8_slots > 0 ? options.slots / kInt8BlockTokens : 0);
  return absl::OkStatus();
}

absl::Status MemoryNode::MakeInt8Device(uint32_t node) {
  if (config_->int8_slots.empty()) {
    kept_int8_.device.reset();
    return absl::OkStatus();
  }
  return MakeDevice(
      AttentionWorker::DeviceOptions(*config_, node, KvForm::kInt8, config_->int8_slots[node]),
      kept_int8_);
}

absl::Status MemoryNode::Connect(const plan::EpochPeers& peers) {
  if (worker_ == nullptr || !config_.has_value() || peers.epoch != config_->epoch) {
    return absl::AbortedError(absl::StrCat("not configured for epoch ", peers.epoch));
  }
  LAMINA_RETURN_IF_ERROR(OpenPeers(peers));
  thread_.Start(
      options_.cores, peers.epoch, [worker = worker_.get()] { return worker->Run(); }, reporter_);
  return absl::OkStatus();
}

absl::Status MemoryNode::OpenPeers(const plan::EpochPeers& peers) {
  const ActivityScope connecting(counters_.beat, ThreadActivity::kConnecting);
  LAMINA_ASSIGN_OR_RETURN(PeerRegions regions,
                          OpenPeerRegions(*windows_.transport, *config_, worker_->epoch().node,
                                          peers, &counters_.beat));
  worker_->SetPeers(std::move(regions));
  return absl::OkStatus();
}

void MemoryNode::TakePlan(plan::StepPlan plan) {
  if (worker_ != nullptr) {
    worker_->PushPlan(std::move(plan));
  }
}

void MemoryNode::LeaveEpoch() {
  if (worker_ != nullptr) {
    worker_->Stop();
  }
  thread_.Join();
  worker_.reset();
  windows_.region.reset();
  windows_ = {};
  device_replies_ = {};
  config_.reset();
}

telemetry::NodeCounters MemoryNode::Counters() const {
  telemetry::NodeCounters counters = {
      .bytes_sent = counters_.bytes_sent.load(std::memory_order_relaxed),
      .bytes_received = counters_.bytes_received.load(std::memory_order_relaxed),
      .kv_bytes_read = counters_.kv_bytes_read.load(std::memory_order_relaxed),
      .units = counters_.units.load(std::memory_order_relaxed),
      .device_units = counters_.device_units.load(std::memory_order_relaxed),
      .activity = counters_.beat.activity(),
      .beats = counters_.beat.beats() + pool_.caller_steps()};
  telemetry::Count(counters_.meter, counters_.refusals, /*is_memory=*/true, counters);
  counters.unit_seconds_fixed = counters_.unit_line.fixed.load(std::memory_order_relaxed);
  if (options_.spill != nullptr) {
    counters.spill = options_.spill->Count();
  }
  counters.unit_seconds_slope = counters_.unit_line.slope.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace lamina::memory_node
