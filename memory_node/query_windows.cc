// SPDX-License-Identifier: Apache-2.0
#include "memory_node/query_windows.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "memory_node/device_queries.h"
#include "plan/epoch_shape.h"
#include "plan/window_layout.h"
#include "transport/registry.h"

namespace lamina::memory_node {
namespace {

absl::Status NotReached(const QueryWindowOptions& options, absl::string_view scheme,
                        absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "memory.", options.node, ".windows: device, but ", scheme, ":// does not reach ",
      options.memory->name(), " without staging: ", why,
      "; verbs does by dmabuf (NVIDIA's open kernel modules, Linux 5.12) or peermem (modprobe ",
      "nvidia_peermem), ucx with UCX_TLS=rc,self where it was built with CUDA; `lamina ",
      "doctor` says what this host has. Or set it to host or auto"));
}

}  // namespace

absl::StatusOr<QueryWindows> MakeQueryWindows(const plan::EpochConfig& config,
                                              const QueryWindowOptions& options) {
  const bool wanted = options.memory != nullptr && options.place != WindowPlace::kHost;
  if (options.memory == nullptr && options.place == WindowPlace::kDevice) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory.", options.node, ".windows: device, but the node has none"));
  }
  QueryWindows made;
  LAMINA_ASSIGN_OR_RETURN(
      made.transport, transport::MakeTransport(options.transport_uri,
                                               wanted ? options.memory : nullptr, options.secret));
  const plan::WindowLayout layout(plan::WindowShapeOf(config));
  transport::RegionOptions region = {.name = options.node + " queries",
                                     .bytes = layout.query_region_bytes(),
                                     .signal_words = layout.query_region_words(),
                                     .may_stage = false,
                                     .epoch = config.epoch,
                                     .written_by_devices = config.compute_waits};
  if (wanted && options.device_waits) {
    region.kind = transport::MemoryKind::kDevice;
    region.polled_by_device = true;
    auto polled = made.transport->CreateRegion(region);
    if (polled.ok() && DeviceQueries::Obstacle(config, **polled).empty()) {
      made.region = *std::move(polled);
      made.memory = made.region->memory();
      return made;
    }
    region.kind = transport::MemoryKind::kHost;
    region.polled_by_device = false;
  }
  if (!wanted || (options.place == WindowPlace::kAuto && options.device_waits)) {
    LAMINA_ASSIGN_OR_RETURN(made.region, made.transport->CreateRegion(region));
    if (!wanted || DeviceQueries::Obstacle(config, *made.region).empty()) {
      return made;
    }
  }
  region.kind = transport::MemoryKind::kDevice;
  auto on_device = made.transport->CreateRegion(region);
  if (on_device.ok()) {
    made.region = *std::move(on_device);
    made.memory = made.region->memory();
    return made;
  }
  if (options.place == WindowPlace::kDevice) {
    return absl::IsFailedPrecondition(on_device.status())
               ? NotReached(options, made.transport->scheme(), on_device.status().message())
               : on_device.status();
  }
  made.memory.why_not = std::string(on_device.status().message());
  if (made.region == nullptr) {
    region.kind = transport::MemoryKind::kHost;
    LAMINA_ASSIGN_OR_RETURN(made.region, made.transport->CreateRegion(region));
  }
  return made;
}

}  // namespace lamina::memory_node
