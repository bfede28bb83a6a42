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
constexpr char kFix[] =
    "modprobe nvidia_peermem   # or install nvidia-open, on kernel 5.12 or later";

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
