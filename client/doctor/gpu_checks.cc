// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/gpu_checks.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/doctor/files.h"

namespace lamina::doctor {
namespace {

using transport::DistanceOf;
using transport::PciDistance;
using transport::PciPlace;

constexpr char kNvidia[] = "0x10de";
// VGA controllers and 3D controllers.
constexpr char kDisplayClass[] = "0x03";

bool HasDmabufForRdma(const std::string& release) {
  int major = 0;
  int minor = 0;
  return std::sscanf(release.c_str(), "%d.%d", &major, &minor) == 2 &&
         (major > 5 || (major == 5 && minor >= 12));
}

Finding DistanceFinding(const PciPlace& gpu, const std::vector<GpuFacts::Nic>& nics) {
  const auto nearest = std::min_element(
      nics.begin(), nics.end(), [&](const GpuFacts::Nic& a, const GpuFacts::Nic& b) {
        return DistanceOf(gpu, a.place) < DistanceOf(gpu, b.place);
      });
  const PciDistance distance = DistanceOf(gpu, nearest->place);
  Finding finding = {
      .check = "gpu_nic",
      .found = absl::StrCat("GPU ", gpu.address(), ": ", nearest->device, " is nearest, ",
                            NameOf(distance)),
      .why = "what a NIC moves to a GPU on another NUMA node crosses the processors' link"};
  if (distance == PciDistance::kHost) {
    finding.state = State::kWarn;
    finding.fix = "nvidia-smi topo -m   # move the NIC or the GPU to a slot of the same node";
  }
  return finding;
}

Finding DirectFinding(const GpuFacts& facts) {
  Finding finding = {.check = "gpu_direct",
                     .why =
                         "by dmabuf, or else nvidia_peermem, a NIC reaches a GPU's memory; with "
                         "neither all data is copied through the host's"};
  if (facts.open_modules && facts.dmabuf_kernel) {
    finding.found = "dmabuf: NVIDIA's open kernel modules";
  } else if (facts.peermem) {
    finding.found = "nvidia_peermem is loaded";
  } else {
    finding.state = State::kWarn;
    finding.found = absl::StrCat(
        "no dmabuf (",
        facts.open_modules ? "the kernel is older than 5.12" : "the modules are not the open ones",
        "), and nvidia_peermem is not loaded");
    finding.fix = "modprobe nvidia_peermem   # or install nvidia-open, on kernel 5.12 or later";
  }
  return finding;
}

}  // namespace

GpuFacts CollectGpuFacts(const std::string& root) {
  GpuFacts facts;
  const std::string pci = root + "/sys/bus/pci/devices/";
  for (const std::string& address : Entries(pci)) {
    if (FileText(pci + address + "/vendor").rfind(kNvidia, 0) == 0 &&
        FileText(pci + address + "/class").rfind(kDisplayClass, 0) == 0) {
      facts.gpus.push_back(transport::FindPciPlace(pci + address));
    }
  }
  const std::string infiniband = root + "/sys/class/infiniband/";
  for (const std::string& device : Entries(infiniband)) {
    PciPlace place = transport::FindPciPlace(infiniband + device + "/device");
    if (!place.path.empty()) {
      facts.nics.push_back({.device = device, .place = std::move(place)});
    }
  }
  const std::string driver = FileText(root + "/proc/driver/nvidia/version");
  facts.driver = !driver.empty();
  facts.open_modules = driver.find("Open Kernel Module") != std::string::npos;
  facts.dmabuf_kernel = HasDmabufForRdma(FileText(root + "/proc/sys/kernel/osrelease"));
  facts.peermem = std::filesystem::exists(root + "/sys/module/nvidia_peermem");
  return facts;
}

Findings CheckGpus(const GpuFacts& facts) {
  if (facts.gpus.empty()) {
    return {{.check = "gpu",
             .found = "no GPU of NVIDIA's",
             .why = "nodes can run on processors alone"}};
  }
  Finding gpus = {.check = "gpu",
                  .found = absl::StrJoin(facts.gpus, ", ",
                                         [](std::string* out, const PciPlace& gpu) {
                                           absl::StrAppend(out, gpu.address());
                                         }),
                  .why = "without its driver a GPU cannot be used"};
  if (!facts.driver) {
    gpus.state = State::kWarn;
    absl::StrAppend(&gpus.found, ": NVIDIA's driver is not loaded");
    gpus.fix = "modprobe nvidia";
  }
  Findings findings = {std::move(gpus)};
  if (facts.nics.empty()) {
    return findings;
  }
  for (const PciPlace& gpu : facts.gpus) {
    findings.push_back(DistanceFinding(gpu, facts.nics));
  }
  findings.push_back(DirectFinding(facts));
  return findings;
}

}  // namespace lamina::doctor
