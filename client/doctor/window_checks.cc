// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/window_checks.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/units.h"
#include "transport/registry.h"

namespace lamina::doctor {
namespace {

constexpr size_t kWindowBytes = MiB(1);
constexpr char kStaging[] = "a staging buffer";
// Begins the description of windows that lie in the host's memory because the network does not
// reach the device's.
constexpr char kNotReached[] = "host memory (dmabuf: ";
constexpr char kWhy[] =
    "through a staging buffer or the host's memory all that comes for the device is copied once "
    "more, by the processor";
constexpr char kWhyWaits[] =
    "with pipeline.device_waits a device polls its windows itself: best in its own memory, next "
    "with "
    "a thread that flushes, else across PCIe";
constexpr char kFix[] =
    "modprobe nvidia_peermem   # or install nvidia-open, on kernel 5.12 or later";

// How a device would wait for the windows of its memory node over the transport.
Finding CheckDeviceWaits(const std::string& scheme, transport::Transport& transport) {
  Finding finding = {.check = "device_waits." + scheme, .why = kWhyWaits};
  transport::RegionOptions options = {.name = "doctor",
                                      .bytes = kWindowBytes,
                                      .signal_words = 1,
                                      .kind = transport::MemoryKind::kDevice,
                                      .may_stage = false,
                                      .polled_by_device = true};
  const auto in_device = transport.CreateRegion(options);
  if (in_device.ok() && !(*in_device)->direct().empty()) {
    const std::string memory = transport::DescribeMemory((*in_device)->memory());
    finding.found =
        (*in_device)->direct().pages.empty()
            ? absl::StrCat("windows and words in ", memory,
                           ": it orders the writes of NICs (GPUDirectRDMAWritesOrdering)")
            : absl::StrCat("windows in ", memory,
                           ", words of the host that a thread raises when it has flushed: it does "
                           "not order the writes of NICs (GPUDirectRDMAWritesOrdering)");
    return finding;
  }
  options.kind = transport::MemoryKind::kHost;
  options.polled_by_device = false;
  const auto in_host = transport.CreateRegion(options);
  const std::string why_not =
      in_device.ok() ? "no words for a device there" : std::string(in_device.status().message());
  finding.found = in_host.ok() && !(*in_host)->direct().empty()
                      ? absl::StrCat("windows in the host's memory, across PCIe (", why_not, ")")
                      : absl::StrCat("no: the processor waits (", why_not, ")");
  return finding;
}

}  // namespace

Findings CheckDeviceWindows(const std::vector<std::string>& transports,
                            const absl::StatusOr<std::unique_ptr<DeviceMemory>>& device) {
  if (!device.ok()) {
    return {{.check = "device_windows",
             .found = absl::StrCat("none: ", device.status().message()),
             .why = "windows lie in the host's memory then"}};
  }
  Findings findings;
  for (const std::string& scheme : transports) {
    const auto transport = transport::MakeTransport(scheme + "://", device->get());
    if (!transport.ok()) {
      continue;  // CheckTransports says why.
    }
    Finding finding = {.check = "device_windows." + scheme, .why = kWhy};
    const auto region = (*transport)
                            ->CreateRegion({.name = "doctor",
                                            .bytes = kWindowBytes,
                                            .signal_words = 1,
                                            .kind = transport::MemoryKind::kDevice});
    if (!region.ok()) {
      finding.state = State::kWarn;
      finding.found = std::string(region.status().message());
      finding.fix = "nvidia-smi   # what else takes the device's memory";
    } else {
      const transport::MemoryChoice choice = (*region)->memory();
      finding.found = transport::DescribeMemory(choice);
      // Elsewhere there is no better way.
      if (scheme == "verbs" && choice.path == transport::MemoryPath::kStaging) {
        finding.state = State::kWarn;
        finding.fix = kFix;
      }
    }
    findings.push_back(std::move(finding));
    findings.push_back(CheckDeviceWaits(scheme, **transport));
  }
  return findings;
}

Findings CheckClusterWindows(const client::ClusterStatus& status) {
  Findings findings;
  for (const client::NodeStatus& node : status.nodes) {
    if (node.windows.empty()) {
      continue;
    }
    Finding finding = {
        .check = "windows", .found = absl::StrCat(node.name, ": ", node.windows), .why = kWhy};
    if ((absl::StrContains(node.windows, kStaging) ||
         absl::StrContains(node.windows, kNotReached)) &&
        node.transport == "verbs") {
      finding.state = State::kWarn;
      finding.fix = kFix;
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace lamina::doctor
