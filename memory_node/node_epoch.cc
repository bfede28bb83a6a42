// SPDX-License-Identifier: Apache-2.0
#include "memory_node/node_epoch.h"

#include "plan/activation_part.h"

namespace lamina::memory_node {
namespace {

std::vector<plan::PipelineSchedule> SchedulesOf(const plan::EpochConfig& config) {
  std::vector<plan::PipelineSchedule> schedules;
  for (uint32_t shard = 0; shard < plan::ShardsMax(config.stages); ++shard) {
    schedules.push_back(plan::ScheduleOf(config, shard));
  }
  return schedules;
}

}  // namespace

NodeEpoch::NodeEpoch(const plan::EpochConfig& epoch_config, uint32_t own_index, Nanos deadline,
                     transport::Transport& epoch_transport, transport::Region& own_region,
                     const Devices& devices, WorkerCounters& worker_counters)
    : config(epoch_config),
      node(own_index),
      peer_deadline(deadline),
      layers(plan::LayersOf(epoch_config, own_index)),
      activation_width(plan::ActivationPartOf(epoch_config, own_index).count),
      layout(plan::WindowShapeOf(epoch_config)),
      schedules(SchedulesOf(epoch_config)),
      transport(epoch_transport),
      region(own_region),
      device(devices.kv),
      int8_device(devices.int8),
      counters(worker_counters),
      pieces_sent(epoch_config.lanes) {}

}  // namespace lamina::memory_node
