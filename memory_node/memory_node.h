// SPDX-License-Identifier: Apache-2.0
//
// MemoryNode: one memory node's part in the cluster, epoch by epoch. Owns the device, the region
// that compute nodes write, and the thread of the AttentionWorker.
//
// Threading: as NodeHandler says; the worker has a thread of its own.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/cluster_secret.h"
#include "common/device_memory.h"
#include "common/thread_pool.h"
#include "common/window_place.h"
#include "control/epoch_thread.h"
#include "control/node_handler.h"
#include "kernels/kv_device.h"
#include "memory_node/attention_worker.h"
#include "memory_node/query_windows.h"
#include "plan/tails.h"

namespace lamina::memory_node {

struct MemoryNodeOptions {
  std::string name;
  std::vector<int> cores;
  kernels::KvDeviceMaker make_device;  // Makes the device that holds KV and attends.
  std::string verbs_uri = "verbs://";  // With this host's options.
  ClusterSecret secret = {};           // What peers prove to each other in their handshakes.
  std::string device = "cpu";          // For people.
  // Where query windows may lie next to the host's memory; null for none. Outlives the node.
  DeviceMemory* window_memory = nullptr;
  WindowPlace windows = WindowPlace::kAuto;
  SpillTier* spill = nullptr;         // Null for none. Outlives the node.
  Nanos peer_deadline = Seconds(60);  // Longest wait of the data thread for a peer.
};

class MemoryNode final : public control::NodeHandler {
 public:
  MemoryNode(MemoryNodeOptions options, ThreadPool& pool);
  ~MemoryNode() override;
  MemoryNode(const MemoryNode&) = delete;
  MemoryNode& operator=(const MemoryNode&) = delete;

  // Faults go here; set before the link runs.
  void SetReporter(control::NodeReporter* reporter) { reporter_ = reporter; }

  absl::Status LoadLayers(const plan::Stage&) override { return absl::OkStatus(); }  // Has none.
  absl::StatusOr<plan::PolicyTimes> MeasurePolicies() override { return plan::PolicyTimes(); }
  absl::StatusOr<control::PreparedNode> Configure(const plan::EpochConfig& config) override;
  absl::Status Connect(const plan::EpochPeers& peers) override;
  void TakePlan(plan::StepPlan plan) override;
  void LeaveEpoch() override;
  telemetry::NodeCounters Counters() const override;
  telemetry::TraceRing& ring() override { return counters_.meter.ring(); }

 private:
  // A device that is kept from epoch to epoch with what it holds.
  struct KeptDevice {
    kernels::KvDeviceOptions options;
    std::unique_ptr<kernels::KvDevice> device;  // Null: none.
    plan::Tails tails{0};                       // With slots of INT8: who has which.

    // Whether one that is made with these is this one, with what it holds.
    bool Keeps(const kernels::KvDeviceOptions& wanted) const {
      return device != nullptr && options == wanted && device->usable();
    }
  };
  absl::Status MakeDevice(const kernels::KvDeviceOptions& options, KeptDevice& kept);
  // The device of the slots of path remote_int8, if the epoch has it. Errors: the device's.
  absl::Status MakeInt8Device(uint32_t node);
  absl::Status MakeWindows();
  absl::Status UseDeviceWindows();
  void RegisterArena();
  absl::Status OpenPeers(const plan::EpochPeers& peers);
  // The channel of a device that waits itself in this epoch, with lanes for it. Null where it does
  // not: it has no lanes then, and if it was to wait, `obstacle` is why not.
  absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> ChooseChannel(Nanos silence_max,
                                                                        std::string& obstacle);
  absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> OpenChannel(Nanos silence_max);
  std::string DescribeUse(bool waits, const std::string& obstacle) const;

  const MemoryNodeOptions options_;
  ThreadPool& pool_;
  control::NodeReporter* reporter_ = nullptr;
  WorkerCounters counters_;

  // What belongs to the epoch; order matters: the worker goes first, the transport last.
  std::optional<plan::EpochConfig> config_;
  DeviceAllocation device_replies_;  // Where query windows lie in the device's memory.
  QueryWindows windows_;
  uint64_t pinned_bytes_ = 0;  // All but the arena, where K and V are sent.
  KeptDevice kept_;
  KeptDevice kept_int8_;  // Path remote_int8.
  uint64_t arena_ = 0;    // PreparedNode::kv_arena of both.
  std::unique_ptr<AttentionWorker> worker_;
  control::EpochThread thread_{counters_.beat, [this] { return pool_.caller_steps(); }};
};

}  // namespace lamina::memory_node
