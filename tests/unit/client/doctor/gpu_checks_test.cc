// SPDX-License-Identifier: Apache-2.0
//
// GPUs and NICs as the kernel shows them, below a folder of the test's own; each thing that can be
// wrong with them is, and the finding read.
#include "client/doctor/gpu_checks.h"

#include <algorithm>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/doctor/findings.h"

namespace lamina::doctor {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Two root complexes, each on a NUMA node. On the first: a switch with a GPU and mlx5_0 behind it,
// and mlx5_1 next to the switch. On the second: mlx5_2.
class FakePci : public FakeFolder {
 public:
  FakePci() : FakeFolder("doctor_pci") {
    AddDevice("0000:41:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", 0);
    Write("sys/bus/pci/devices/0000:41:00.0/vendor", "0x10de");
    Write("sys/bus/pci/devices/0000:41:00.0/class", "0x030200");
    AddNic("mlx5_0", "0000:42:00.0", "pci0000:40/0000:40:01.0/0000:42:00.0", 0);
    AddNic("mlx5_1", "0000:43:00.0", "pci0000:40/0000:40:02.0/0000:43:00.0", 0);
    AddNic("mlx5_2", "0000:81:00.0", "pci0000:80/0000:80:01.0/0000:81:00.0", 1);
    Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64");
    Write("proc/sys/kernel/osrelease", "6.1.0-18-amd64");
  }
  void AddNic(const std::string& device, const std::string& address, const std::string& place,
              int numa_node) const {
    AddDevice(address, place, numa_node);
    std::filesystem::create_directories(path() / "sys/class/infiniband" / device);
    std::filesystem::create_symlink(path() / "sys/devices" / place,
                                    path() / "sys/class/infiniband" / device / "device");
  }
  Findings Check() const { return CheckGpus(CollectGpuFacts(path())); }

 private:
  void AddDevice(const std::string& address, const std::string& place, int numa_node) const {
    Write("sys/devices/" + place + "/numa_node", std::to_string(numa_node));
    std::filesystem::create_directories(path() / "sys/bus/pci/devices");
    std::filesystem::create_symlink(path() / "sys/devices" / place,
                                    path() / "sys/bus/pci/devices" / address);
  }
};

TEST(GpuChecksTest, NearestNicIsNamedWithItsDistance) {
  const FakePci pci;
  EXPECT_THAT(Find(pci.Check(), "gpu_nic").found,
              AllOf(HasSubstr("0000:41:00.0: mlx5_0"), HasSubstr("behind one PCIe switch")));
  pci.Remove("sys/class/infiniband/mlx5_0");
  EXPECT_THAT(Find(pci.Check(), "gpu_nic").found,
              AllOf(HasSubstr("mlx5_1"), HasSubstr("below one root complex")));
  for (const Finding& finding : pci.Check()) {
    EXPECT_EQ(finding.state, State::kOk) << finding.check << ": " << finding.found;
  }
}

TEST(GpuChecksTest, NicOfAnotherNumaNodeIsFound) {
  const FakePci pci;
  pci.Remove("sys/class/infiniband/mlx5_0");
  pci.Remove("sys/class/infiniband/mlx5_1");

  const Finding finding = Find(pci.Check(), "gpu_nic");

  ExpectExplained(finding, State::kWarn);
  EXPECT_THAT(finding.found, AllOf(HasSubstr("mlx5_2"), HasSubstr("across NUMA nodes")));
}

TEST(GpuChecksTest, WaysToTheMemoryOfAGpuAreTriedInOrder) {
  const FakePci pci;
  EXPECT_THAT(Find(pci.Check(), "gpu_direct").found, HasSubstr("dmabuf: "));

  pci.Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module");
  const Finding neither = Find(pci.Check(), "gpu_direct");
  ExpectExplained(neither, State::kWarn);
  EXPECT_THAT(neither.fix, HasSubstr("modprobe nvidia_peermem"));

  pci.Write("sys/module/nvidia_peermem/version", "1.3");
  const Finding peermem = Find(pci.Check(), "gpu_direct");
  EXPECT_EQ(peermem.state, State::kOk);
  EXPECT_THAT(peermem.found, HasSubstr("nvidia_peermem"));
}

TEST(GpuChecksTest, KernelWithoutDmabufIsFound) {
  const FakePci pci;
  pci.Write("proc/sys/kernel/osrelease", "5.10.0-28-amd64");

  const Finding finding = Find(pci.Check(), "gpu_direct");

  ExpectExplained(finding, State::kWarn);
  EXPECT_THAT(finding.found, HasSubstr("older than 5.12"));
}

TEST(GpuChecksTest, GpuWithoutADriverIsFound) {
  const FakePci pci;
  pci.Remove("proc/driver/nvidia/version");

  ExpectExplained(Find(pci.Check(), "gpu"), State::kWarn);
}

TEST(GpuChecksTest, HostWithoutGpusHasNothingToFix) {
  const FakePci pci;
  pci.Remove("sys/bus/pci/devices/0000:41:00.0");

  const Findings findings = pci.Check();

  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].state, State::kOk);
}

}  // namespace
}  // namespace lamina::doctor
