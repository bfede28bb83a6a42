// SPDX-License-Identifier: Apache-2.0
//
// Each check of `lamina doctor`: what it looks at is broken, and the finding read. Files of the
// kernel are broken below a folder of the test's own; limits and affinity are this process's real
// ones.
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "client/doctor/host_checks.h"
#include "client/doctor/reach_checks.h"
#include "common/memlock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/doctor/findings.h"
#include "tests/unit/client/fake_server.h"

namespace lamina::doctor {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// A folder that looks like a healthy host with two cores.
class FakeRoot : public FakeFolder {
 public:
  FakeRoot() : FakeFolder("doctor_root") {
    Write("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4194304 kB");
    Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    Write("sys/devices/system/cpu/online", "0-1");
    Write("sys/devices/system/cpu/isolated", "");
    Write("sys/devices/system/node/node0/cpulist", "0-1");
  }
  HostFacts Collect() const {
    HostFacts facts = CollectHostFacts(path());
    facts.cores_allowed = {0, 1};  // Those of the machine that runs the test may be others.
    return facts;
  }
};

ClusterConfig Cluster() {
  ClusterConfig cluster;
  cluster.compute = {{.name = "c0", .cores = {0}}};
  cluster.memory = {{.name = "m0", .cores = {1}, .capacity_bytes = uint64_t{1} << 30}};
  return cluster;
}

HostFacts WithPort(HostFacts facts) {
  transport::VerbsPort port = {.device = "mlx5_0",
                               .port = 1,
                               .active = true,
                               .state = "active",
                               .ethernet = true,
                               .mtu = 4096,
                               .gbit = 100};
  port.gids = {{.index = 3, .text = "::ffff:192.0.2.1", .ipv4 = true}};
  facts.kernel_devices = {"mlx5_0"};
  facts.links["mlx5_0"] = {.interface = "eth2", .interface_mtu = 9000, .numa_node = 0};
  facts.ports = {port};
  return facts;
}

TEST(DoctorTest, HealthyHostHasNothingToFix) {
  HostFacts facts = WithPort(FakeRoot().Collect());
  facts.memlock_bytes = UINT64_MAX;
  facts.clock_synchronised = true;
  facts.dev_shm_bytes = uint64_t{4} << 30;
  const ClusterConfig cluster = Cluster();

  for (const Finding& finding : CheckHost(facts, &cluster)) {
    EXPECT_EQ(finding.state, State::kOk) << finding.check << ": " << finding.found;
    EXPECT_THAT(finding.why, Not(IsEmpty())) << finding.check;
  }
}

TEST(DoctorTest, SmallMemlockLimitIsFound) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit small = {.rlim_cur = std::min<rlim_t>(65536, before.rlim_max),
                        .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  ClusterConfig cluster = Cluster();
  cluster.transport = {"verbs"};

  HostFacts facts = FakeRoot().Collect();

  EXPECT_EQ(facts.memlock_bytes, MemlockLimit()) << "none for who may pin past it";
  setrlimit(RLIMIT_MEMLOCK, &before);
  facts.memlock_bytes = small.rlim_cur;
  const Finding finding = Find(CheckHost(facts, &cluster), "memlock");
  ExpectExplained(finding, State::kWarn);
  EXPECT_THAT(finding.fix, HasSubstr("ulimit -l"));
}

TEST(DoctorTest, MemlockLimitBelowTheFetchWindowIsFound) {
  HostFacts facts = FakeRoot().Collect();
  facts.memlock_bytes = uint64_t{128} << 20;
  ClusterConfig cluster = Cluster();
  cluster.transport = {"verbs"};
  cluster.fetch.window_bytes = uint64_t{1} << 30;
  EXPECT_EQ(Find(CheckHost(facts, &cluster), "memlock").state, State::kOk) << "nothing fetches";
  cluster.policy = std::string(kPolicyFetchHeads);

  const Finding finding = Find(CheckHost(facts, &cluster), "memlock");

  ExpectExplained(finding, State::kWarn);
  EXPECT_THAT(finding.found, HasSubstr("limit 128.0 MiB, fetch.window is 1.0 GiB"));
  cluster.fetch.window_bytes = uint64_t{64} << 20;
  EXPECT_EQ(Find(CheckHost(facts, &cluster), "memlock").state, State::kOk);
}

TEST(DoctorTest, HugePagesThatAreOffAreFound) {
  const FakeRoot root;
  root.Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");

  const Finding finding = Find(CheckHost(root.Collect(), nullptr), "huge_pages");

  ExpectExplained(finding, State::kWarn);
  EXPECT_THAT(finding.found, HasSubstr("never"));
}

TEST(DoctorTest, SharedMemoryThatIsRefusedIsFound) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const FakeRoot root;
  // No file number is left: memfd_create fails.
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const HostFacts facts = CollectHostFacts("");
  setrlimit(RLIMIT_NOFILE, &before);

  ExpectExplained(Find(CheckHost(facts, nullptr), "shared_memory"), State::kFail);
}

TEST(DoctorTest, SmallLimitOfFilesIsFound) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = std::min<rlim_t>(1 << 20, before.rlim_max),
                        .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const HostFacts facts = CollectHostFacts("");
  setrlimit(RLIMIT_FSIZE, &before);

  const Finding finding = Find(CheckHost(facts, nullptr), "shared_memory_limits");

  ExpectExplained(finding, State::kFail);
  EXPECT_EQ(finding.fix, "ulimit -f unlimited");
}

TEST(DoctorTest, HostWithoutDevShmIsFound) {
  HostFacts facts = FakeRoot().Collect();
  EXPECT_EQ(facts.dev_shm_bytes, 0u);  // The folder is not there.

  ExpectExplained(Find(CheckHost(facts, nullptr), "shared_memory_limits"), State::kWarn);

  facts.dev_shm_bytes = uint64_t{64} << 20;  // That of a container.
  EXPECT_THAT(Find(CheckHost(facts, nullptr), "shared_memory_limits").found, HasSubstr("64.0 MiB"));
}

TEST(DoctorTest, ClockThatRunsFreeIsFound) {
  HostFacts facts = FakeRoot().Collect();
  facts.clock_synchronised = false;

  ExpectExplained(Find(CheckHost(facts, nullptr), "clock"), State::kWarn);
}

TEST(DoctorTest, CoreThatIsOfflineIsFound) {
  const FakeRoot root;
  root.Write("sys/devices/system/cpu/online", "0");
  const ClusterConfig cluster = Cluster();

  const Finding finding = Find(CheckHost(root.Collect(), &cluster), "cores");

  ExpectExplained(finding, State::kFail);
  EXPECT_THAT(finding.found, HasSubstr("memory.m0: core 1"));
}

TEST(DoctorTest, CoreOutsideTheAffinityIsFound) {
  HostFacts facts = FakeRoot().Collect();
  facts.cores_allowed = {1};
  const ClusterConfig cluster = Cluster();

  EXPECT_THAT(Find(CheckHost(facts, &cluster), "cores").found, HasSubstr("compute.c0: core 0"));
}

TEST(DoctorTest, IsolatedCoresAreCounted) {
  const FakeRoot root;
  root.Write("sys/devices/system/cpu/isolated", "0-1");
  const ClusterConfig cluster = Cluster();

  EXPECT_THAT(Find(CheckHost(root.Collect(), &cluster), "cores").found, HasSubstr("1 of 1"));
}

TEST(DoctorTest, CoresOfTwoNumaNodesAreFound) {
  const FakeRoot root;
  root.Write("sys/devices/system/node/node0/cpulist", "0");
  root.Write("sys/devices/system/node/node1/cpulist", "1");
  ClusterConfig cluster = Cluster();
  cluster.compute[0].cores = {0, 1};

  ExpectExplained(Find(CheckHost(root.Collect(), &cluster), "numa"), State::kWarn);
}

TEST(DoctorTest, MoreCapacityThanMemoryIsFound) {
  const FakeRoot root;
  root.Write("proc/meminfo", "MemAvailable: 1024 kB");
  const ClusterConfig cluster = Cluster();

  const Finding finding = Find(CheckHost(root.Collect(), &cluster), "memory");

  ExpectExplained(finding, State::kFail);
  EXPECT_THAT(finding.found, HasSubstr("1.0 GiB"));
}

TEST(DoctorTest, WhatAContainerMayTakeCountsAndNotWhatItsHostHas) {
  const FakeRoot root;
  root.Write("proc/self/cgroup", "0::/");
  root.Write("sys/fs/cgroup/memory.max", "1048576");
  root.Write("sys/fs/cgroup/memory.current", "0");
  const ClusterConfig cluster = Cluster();

  const Finding finding = Find(CheckHost(root.Collect(), &cluster), "memory");

  ExpectExplained(finding, State::kFail);
  EXPECT_THAT(finding.found, HasSubstr("memory.max of control group /"));
}

TEST(DoctorTest, AHostIsKnownByEachNameThatLeadsToIt) {
  HostFacts facts;
  facts.names = {"here"};

  AddOwnNames({"here", "localhost", "127.0.1.1", "192.0.2.7", "no.such.host.invalid"}, facts);

  EXPECT_THAT(facts.names, testing::UnorderedElementsAre("here", "localhost", "127.0.1.1"));
}

TEST(DoctorTest, NodesOfOtherHostsAreNotJudgedByThisOne) {
  HostFacts facts = FakeRoot().Collect();
  facts.cores_allowed = {0};
  facts.memory_available_bytes = 1 << 20;
  facts.names = {"here", "192.0.2.1"};
  ClusterConfig cluster = Cluster();
  cluster.memory[0].host = "192.0.2.7";

  const auto findings = CheckHost(facts, &cluster);
  EXPECT_EQ(Find(findings, "cores").state, State::kOk) << "only compute.c0 is here";
  EXPECT_EQ(Find(findings, "memory").state, State::kOk);

  for (const char* host : {"localhost", "127.0.0.2", "here", "192.0.2.1"}) {
    cluster.memory[0].host = host;
    EXPECT_EQ(Find(CheckHost(facts, &cluster), "memory").state, State::kFail) << host;
  }
}

TEST(DoctorTest, OnlyKvInTheHostsMemoryIsCountedWhoeverHoldsIt) {
  HostFacts facts = FakeRoot().Collect();
  facts.memory_available_bytes = 1 << 20;
  ClusterConfig cluster = Cluster();
  cluster.memory[0].device = "cuda:0";
  EXPECT_EQ(Find(CheckHost(facts, &cluster), "memory").state, State::kOk);

  cluster.policy = std::string(kPolicyLocal);
  cluster.memory.clear();
  cluster.compute[0].capacity_bytes = uint64_t{1} << 30;
  const Finding finding = Find(CheckHost(facts, &cluster), "memory");
  ExpectExplained(finding, State::kFail);
  EXPECT_THAT(finding.fix, HasSubstr("compute.NAME.capacity"));
}

TEST(DoctorTest, MissingRdmaDeviceIsFoundWhereTheClusterWantsOne) {
  HostFacts facts = FakeRoot().Collect();
  facts.ports.clear();
  ClusterConfig cluster = Cluster();
  EXPECT_EQ(Find(CheckHost(facts, &cluster), "rdma_device").state, State::kOk);
  cluster.transport = {"verbs", "shm"};

  ExpectExplained(Find(CheckHost(facts, &cluster), "rdma_device"), State::kWarn);
}

TEST(DoctorTest, DeviceWithoutAProviderIsFound) {
  const FakeRoot root;
  root.Write("sys/class/infiniband/mlx5_9/ports/1/gid_attrs/ndevs/0", "eth9");

  const Finding finding = Find(CheckHost(root.Collect(), nullptr), "rdma_device");

  ExpectExplained(finding, State::kFail);
  EXPECT_THAT(finding.found, HasSubstr("mlx5_9"));
}

TEST(DoctorTest, DeviceThatMayNotBeOpenedIsFound) {
  HostFacts facts = WithPort(FakeRoot().Collect());
  facts.ports[0].refused = "Permission denied";

  ExpectExplained(Find(CheckHost(facts, nullptr), "rdma_device"), State::kFail);
}

TEST(DoctorTest, PortThatIsDownIsFoundWithItsInterface) {
  HostFacts facts = WithPort(FakeRoot().Collect());
  facts.ports[0].active = false;
  facts.ports[0].state = "down";

  const Finding finding = Find(CheckHost(facts, nullptr), "rdma_port");

  ExpectExplained(finding, State::kWarn);
  EXPECT_EQ(finding.fix, "ip link set eth2 up");
}

TEST(DoctorTest, EmptyGidTableIsFound) {
  HostFacts facts = WithPort(FakeRoot().Collect());
  facts.ports[0].gids.clear();

  ExpectExplained(Find(CheckHost(facts, nullptr), "rdma_gid"), State::kFail);
}

TEST(DoctorTest, SmallMtuIsFoundWithThatOfTheInterface) {
  HostFacts facts = WithPort(FakeRoot().Collect());
  facts.ports[0].mtu = 1024;
  facts.links["mlx5_0"].interface_mtu = 1500;

  const Finding finding = Find(CheckHost(facts, nullptr), "rdma_mtu");

  ExpectExplained(finding, State::kWarn);
  EXPECT_THAT(finding.found, HasSubstr("eth2 has MTU 1500"));
  EXPECT_EQ(finding.fix, "ip link set eth2 mtu 4200");
}

TEST(DoctorTest, TransportThatWorksIsMeasuredAndChosen) {
  const Findings findings = CheckTransports({"shm"}, Millis(1));

  EXPECT_THAT(Find(findings, "transport.shm").found, HasSubstr("GB/s"));
  EXPECT_EQ(Find(findings, "transport").state, State::kOk);
}

// fake:// wants a name, so that the bare scheme never works: it stands for what this host lacks.
TEST(DoctorTest, FirstOfTheListThatDoesNotWorkIsAWarningThatNamesBoth) {
  const Findings findings = CheckTransports({"fake", "shm"}, Millis(1));

  ExpectExplained(Find(findings, "transport.fake"), State::kWarn);
  EXPECT_THAT(Find(findings, "transport.fake").fix, HasSubstr("transport=[shm]"));
  const Finding choice = Find(findings, "transport");
  ExpectExplained(choice, State::kWarn);
  EXPECT_THAT(choice.found, HasSubstr("gives shm"));
  EXPECT_THAT(choice.found, HasSubstr("name the network"));
}

TEST(DoctorTest, TransportThatNobodyAskedForIsNoFault) {
  const Findings findings = CheckTransports({"fake", "shm"}, Millis(1), TransportsOf::kBuild);

  const Finding missing = Find(findings, "transport.fake");
  EXPECT_EQ(missing.state, State::kOk);
  EXPECT_THAT(missing.found, HasSubstr("not here: "));
  EXPECT_THAT(missing.found, HasSubstr("name the network"));
  EXPECT_EQ(Find(findings, "transport").state, State::kOk);
}

TEST(DoctorTest, ListOfWhichNothingWorksFails) {
  ExpectExplained(Find(CheckTransports({"fake"}, Millis(1)), "transport"), State::kFail);
}

TEST(DoctorTest, CoordinatorThatDoesNotAnswerIsFound) {
  // A port of this host that nobody listens at: port 1 is reserved.
  ExpectExplained(Find(CheckCoordinator("127.0.0.1:1", "0.1.0"), "coordinator"), State::kWarn);
}

TEST(DoctorTest, CoordinatorOfAnotherVersionIsFound) {
  client::FakeServer server;
  const Findings findings = CheckCoordinator(server.address(), "999.0");

  EXPECT_EQ(Find(findings, "coordinator").state, State::kOk);
  ExpectExplained(Find(findings, "version"), State::kFail);
}

TEST(DoctorTest, CoordinatorIsAskedOverTlsWithTheCaOfTheFile) {
  client::FakeServer server;  // It speaks no TLS.
  const Finding missing =
      Find(CheckCoordinator(server.address(), "0.1.0", "/nowhere/ca.pem"), "coordinator");

  ExpectExplained(missing, State::kWarn);
  EXPECT_THAT(missing.found, HasSubstr("/nowhere/ca.pem"));
}

TEST(DoctorTest, SecretThatTheCoordinatorWouldRefuseIsFound) {
  const std::string path = testing::TempDir() + "/doctor_token";
  std::ofstream(path, std::ios::trunc) << "0123456789abcdef";
  chmod(path.c_str(), 0600);
  EXPECT_EQ(CheckSecret(path, "0.0.0.0:7400").state, State::kOk);
  EXPECT_EQ(CheckSecret("", "127.0.0.1:7400").state, State::kOk);

  ExpectExplained(CheckSecret("", "0.0.0.0:7400"), State::kFail);
  ExpectExplained(CheckSecret(path + ".none", "127.0.0.1:7400"), State::kFail);
  chmod(path.c_str(), 0644);
  const Finding open = CheckSecret(path, "127.0.0.1:7400");
  ExpectExplained(open, State::kFail);
  EXPECT_THAT(open.fix, HasSubstr("chmod 600"));
}

}  // namespace
}  // namespace lamina::doctor
