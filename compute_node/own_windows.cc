// SPDX-License-Identifier: Apache-2.0
#include "compute_node/own_windows.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "compute_node/device_remote_attention.h"
#include "transport/registry.h"

namespace lamina::compute_node {
namespace {

absl::StatusOr<OwnWindows> Make(const OwnWindowOptions& options, DeviceMemory* memory,
                                const transport::RegionOptions& region) {
  OwnWindows made;
  LAMINA_ASSIGN_OR_RETURN(made.transport,
                          transport::MakeTransport(options.transport_uri, memory, options.secret));
  LAMINA_ASSIGN_OR_RETURN(made.region, made.transport->CreateRegion(region));
  return made;
}

}  // namespace

absl::StatusOr<OwnWindows> MakeOwnWindows(const plan::EpochConfig& config, uint32_t own,
                                          const plan::WindowLayout& layout,
                                          const OwnWindowOptions& options) {
  transport::RegionOptions region = {.name = options.node + " replies",
                                     .bytes = layout.compute_region_bytes(),
                                     .signal_words = layout.compute_region_words(),
                                     .may_stage = false,
                                     .epoch = config.epoch,
                                     .written_by_devices = config.memory_waits};
  if (options.memory != nullptr && DeviceRemoteAttention::Obstacle(config, own).empty()) {
    region.kind = transport::MemoryKind::kDevice;
    region.polled_by_device = true;
    absl::StatusOr<OwnWindows> polled = Make(options, options.memory, region);
    if (polled.ok() && !polled->region->direct().empty()) {
      return polled;
    }
    region.kind = transport::MemoryKind::kHost;
    region.polled_by_device = false;
  }
  return Make(options, nullptr, region);
}

WindowReader::WindowReader(transport::Region& region, DeviceMemory* device)
    : region_(region), device_(device) {
  if (on_device()) {
    LAMINA_CHECK(device != nullptr);
    mirror_.resize(region.bytes().size());
  }
}

absl::Status WindowReader::CopyOut(size_t offset, size_t bytes) {
  return device_->CopyOut(mirror_.data() + offset, region_.bytes().data() + offset, bytes);
}

absl::StatusOr<const std::byte*> WindowReader::Read(size_t offset, size_t bytes) {
  if (!on_device()) {
    return region_.bytes().data() + offset;
  }
  LAMINA_RETURN_IF_ERROR(region_.Land(offset, bytes));
  LAMINA_RETURN_IF_ERROR(CopyOut(offset, bytes));
  return mirror_.data() + offset;
}

absl::StatusOr<plan::WindowHeader> WindowReader::ReadHeader(size_t window, size_t bytes) {
  const std::byte* from = region_.bytes().data() + window;
  if (on_device()) {
    LAMINA_RETURN_IF_ERROR(region_.Land(window, bytes));
    LAMINA_RETURN_IF_ERROR(CopyOut(window, sizeof(plan::WindowHeader)));
    from = mirror_.data() + window;
  }
  plan::WindowHeader header;
  std::memcpy(&header, from, sizeof(header));
  return header;
}

}  // namespace lamina::compute_node
