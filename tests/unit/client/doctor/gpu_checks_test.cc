// SPDX-License-Identifier: Apache-2.0
//
// GPUs and NICs as the kernel shows them, below a folder of the test's own; each thing that can be
// wrong with them is, and the finding read.
#include "client/doctor/gpu_checks.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lamina::doctor {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Two root complexes, each on a NUMA node. On the first: a switch with a GPU and mlx5_0 behind it,
// and mlx5_1 beside the switch. On the second: mlx5_2.
class FakePci {
 public:
  FakePci() : root_(std::filesystem::path(testing::TempDir()) / "doctor_pci") {
    std::filesystem::remove_all(root_);
    AddDevice("0000:41:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", 0);
    Write("sys/bus/pci/devices/0000:41:00.0/vendor", "0x10de");
    Write("sys/bus/pci/devices/0000:41:00.0/class", "0x030200");
    AddNic("mlx5_0", "0000:42:00.0", "pci0000:40/0000:40:01.0/0000:42:00.0", 0);
    AddNic("mlx5_1", "0000:43:00.0", "pci0000:40/0000:40:02.0/0000:43:00.0", 0);
    AddNic("mlx5_2", "0000:81:00.0", "pci0000:80/0000:80:01.0/0000:81:00.0", 1);
    Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64");
    Write("proc/sys/kernel/osrelease", "6.1.0-18-amd64");
  }
  ~FakePci() { std::filesystem::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text << "\n";
  }
  void Remove(const std::string& name) const { std::filesystem::remove_all(root_ / name); }
  void AddNic(const std::string& device, const std::string& address, const std::string& path,
              int numa_node) const {
    AddDevice(address, path, numa_node);
    std::filesystem::create_directories(root_ / "sys/class/infiniband" / device);
    std::filesystem::create_symlink(root_ / "sys/devices" / path,
                                    root_ / "sys/class/infiniband" / device / "device");
  }
  Findings Check() const { return CheckGpus(CollectGpuFacts(root_)); }

 private:
  void AddDevice(const std::string& address, const std::string& path, int numa_node) const {
    Write("sys/devices/" + path + "/numa_node", std::to_string(numa_node));
    std::filesystem::create_directories(root_ / "sys/bus/pci/devices");
    std::filesystem::create_symlink(root_ / "sys/devices" / path,
                                    root_ / "sys/bus/pci/devices" / address);
  }

  const std::filesystem::path root_;
};

Finding Find(const Findings& findings, const std::string& check) {
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const Finding& finding) { return finding.check == check; });
  EXPECT_NE(found, findings.end()) << check;
  return found == findings.end() ? Finding() : *found;
}

void ExpectExplained(const Finding& finding) {
  EXPECT_EQ(finding.state, State::kWarn) << finding.check << ": " << finding.found;
  EXPECT_THAT(finding.why, Not(IsEmpty()));
  EXPECT_THAT(finding.fix, Not(IsEmpty()));
}

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

  ExpectExplained(finding);
  EXPECT_THAT(finding.found, AllOf(HasSubstr("mlx5_2"), HasSubstr("across NUMA nodes")));
}

TEST(GpuChecksTest, WaysToTheMemoryOfAGpuAreTriedInOrder) {
  const FakePci pci;
  EXPECT_THAT(Find(pci.Check(), "gpu_direct").found, HasSubstr("dmabuf: "));

  pci.Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module");
  const Finding neither = Find(pci.Check(), "gpu_direct");
  ExpectExplained(neither);
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

  ExpectExplained(finding);
  EXPECT_THAT(finding.found, HasSubstr("older than 5.12"));
}

TEST(GpuChecksTest, GpuWithoutADriverIsFound) {
  const FakePci pci;
  pci.Remove("proc/driver/nvidia/version");

  ExpectExplained(Find(pci.Check(), "gpu"));
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
