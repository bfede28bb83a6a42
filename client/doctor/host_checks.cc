// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/host_checks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/units.h"

namespace lamina::doctor {
namespace {

// A region of a small cluster; below it verbs:// registers nothing of use.
constexpr uint64_t kMemlockLeast = MiB(64);
// The windows of a small cluster take so much.
constexpr uint64_t kSharedMemoryLeast = MiB(256);
// The Ethernet frame that holds RoCE's largest MTU, 4096 bytes, and its headers.
constexpr uint32_t kInterfaceMtu = 4200;

bool Wants(const ClusterConfig* cluster, const std::string& transport) {
  return cluster != nullptr && std::find(cluster->transport.begin(), cluster->transport.end(),
                                         transport) != cluster->transport.end();
}

bool Holds(const std::vector<int>& cores, int core) {
  return std::find(cores.begin(), cores.end(), core) != cores.end();
}

Finding CheckMemlock(const HostFacts& facts, const ClusterConfig* cluster) {
  Finding finding = {.check = "memlock",
                     .why = "verbs:// and UCX over RDMA pin all memory that peers write"};
  if (facts.memlock_bytes == UINT64_MAX) {
    finding.found = "unlimited";
    return finding;
  }
  finding.found = absl::StrCat("limit ", FormatBytes(facts.memlock_bytes));
  uint64_t least = kMemlockLeast;
  if (cluster != nullptr && cluster->Fetches()) {  // In addition to what any cluster has.
    least += cluster->fetch.window_bytes;
    absl::StrAppend(&finding.found, ", fetch.window is ", FormatBytes(cluster->fetch.window_bytes));
  }
  if (facts.memlock_bytes < least) {
    const bool needed = Wants(cluster, "verbs") || !facts.ports.empty();
    finding.state = needed ? State::kWarn : State::kOk;
    finding.fix = "ulimit -l unlimited   # systemd: LimitMEMLOCK=infinity";
  }
  return finding;
}

Finding CheckHugePages(const HostFacts& facts) {
  Finding finding = {.check = "huge_pages",
                     .found = absl::StrCat("transparent huge pages: ",
                                           facts.huge_pages.empty() ? "none" : facts.huge_pages),
                     .why = "K, V and weights are streamed; small pages cost up to 15% of it"};
  if (facts.huge_pages != "always" && facts.huge_pages != "madvise") {
    finding.state = State::kWarn;
    finding.fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  }
  return finding;
}

Finding CheckSharedMemory(const HostFacts& facts) {
  Finding finding = {.check = "shared_memory",
                     .found = facts.memfd ? "memfd works" : "memfd_create is refused",
                     .why = "shm:// keeps its windows in it"};
  if (!facts.memfd) {
    finding.state = State::kFail;
    finding.fix = "ulimit -n 4096; ulimit -f unlimited";
  }
  return finding;
}

// What ucx:// on one host, unlike shm://, takes from /dev/shm; containers often have 64 MB.
Finding CheckSharedMemoryLimits(const HostFacts& facts) {
  Finding finding = {
      .check = "shared_memory_limits",
      .found = absl::StrCat(
          "/dev/shm: ", facts.dev_shm_bytes == 0 ? "none" : FormatBytes(facts.dev_shm_bytes),
          ", largest file: ",
          facts.file_size_max == UINT64_MAX ? "unlimited" : FormatBytes(facts.file_size_max)),
      .why = "windows of shm:// are files in memory; ucx:// within one host uses /dev/shm"};
  if (facts.file_size_max < kSharedMemoryLeast) {
    finding.state = State::kFail;
    finding.fix = "ulimit -f unlimited";
  } else if (facts.dev_shm_bytes < kSharedMemoryLeast) {
    finding.state = State::kWarn;
    finding.fix = "mount -o remount,size=1G /dev/shm   # docker run --shm-size 1g";
  }
  return finding;
}

Finding CheckClock(const HostFacts& facts) {
  Finding finding = {.check = "clock",
                     .found = facts.clock_synchronised ? "synchronised" : "not synchronised",
                     .why = "logs of several hosts cannot be laid side by side otherwise"};
  if (!facts.clock_synchronised) {
    finding.state = State::kWarn;
    finding.fix = "timedatectl set-ntp true";
  }
  return finding;
}

void AddCores(const HostFacts& facts, const std::string& name, const std::vector<int>& cores,
              Findings& findings) {
  std::vector<int> missing;
  int isolated = 0;
  for (const int core : cores) {
    if (!Holds(facts.cores_online, core) || !Holds(facts.cores_allowed, core)) {
      missing.push_back(core);
    }
    isolated += Holds(facts.cores_isolated, core) ? 1 : 0;
  }
  Finding finding = {.check = "cores",
                     .found = absl::StrCat(name, ": cores ", absl::StrJoin(cores, ","), ", ",
                                           isolated, " of ", cores.size(), " isolated"),
                     .why = "a polling thread that shares its core waits for the other one"};
  if (!missing.empty()) {
    finding.state = State::kFail;
    finding.found = absl::StrCat(name, ": core ", absl::StrJoin(missing, ","),
                                 " is offline or not allowed to this process");
    finding.fix =
        absl::StrCat("lamina config --cluster FILE --set ", name,
                     ".cores=", facts.cores_allowed.empty() ? 0 : facts.cores_allowed.front());
  }
  findings.push_back(std::move(finding));

  std::vector<int> nodes;
  for (const auto& node : facts.numa) {
    if (std::any_of(cores.begin(), cores.end(),
                    [&node](int core) { return Holds(node.second, core); })) {
      nodes.push_back(node.first);
    }
  }
  if (nodes.size() > 1) {
    findings.push_back(
        {.check = "numa",
         .state = State::kWarn,
         .found = absl::StrCat(name, ": cores of NUMA nodes ", absl::StrJoin(nodes, " and ")),
         .why = "memory of the other node is read at a fraction of the bandwidth",
         .fix = "lscpu --extended=CPU,NODE   # give it cores of one node"});
  }
}

// Whether a node runs on this host, as deploy/cluster.sh has it, with AddOwnNames().
bool IsHere(const HostFacts& facts, const std::string& host) {
  return host == "localhost" || absl::StartsWith(host, "127.") ||
         std::find(facts.names.begin(), facts.names.end(), host) != facts.names.end();
}

void AddClusterChecks(const HostFacts& facts, const ClusterConfig& cluster, Findings& findings) {
  uint64_t capacity = 0;  // Capacity of this host's nodes, in its memory.
  const auto add = [&](const char* pool, const auto& node) {
    if (!IsHere(facts, node.host)) {
      return;
    }
    if (node.device == "cpu") {
      capacity += node.capacity_bytes;
    }
    if (!node.cores.empty()) {
      AddCores(facts, absl::StrCat(pool, ".", node.name), node.cores, findings);
    }
  };
  for (const auto& [name, cores] : {std::pair("coordinator", cluster.coordinator_cores),
                                    std::pair("gateway", cluster.gateway.cores)}) {
    if (!cores.empty()) {
      AddCores(facts, name, cores, findings);
    }
  }
  for (const ComputeNodeConfig& node : cluster.compute) {
    add("compute", node);  // With policy local it holds KV.
  }
  for (const MemoryNodeConfig& node : cluster.memory) {
    add("memory", node);
  }
  Finding finding = {.check = "memory",
                     .found = absl::StrCat(FormatBytes(capacity), " of KV asked for on this host, ",
                                           FormatBytes(facts.memory_available_bytes),
                                           " available (", facts.memory_limit, ")"),
                     .why = "a node takes its capacity when it starts"};
  if (capacity > facts.memory_available_bytes) {
    finding.state = State::kFail;
    finding.fix =
        absl::StrCat("lamina config --cluster FILE --set ",
                     cluster.policy == kPolicyLocal ? "compute" : "memory", ".NAME.capacity=SIZE");
  }
  findings.push_back(std::move(finding));
}

void AddPort(const HostFacts& facts, const transport::VerbsPort& port, Findings& findings) {
  const std::string name = absl::StrCat(port.device, " port ", port.port);
  const auto link = facts.links.find(port.device);
  const std::string interface = link == facts.links.end() || link->second.interface.empty()
                                    ? "INTERFACE"
                                    : link->second.interface;
  if (!port.refused.empty()) {
    findings.push_back({.check = "rdma_device",
                        .state = State::kFail,
                        .found = absl::StrCat(name, ": ", port.refused),
                        .why = "verbs:// opens /dev/infiniband/uverbs*",
                        .fix = "chmod a+rw /dev/infiniband/uverbs*"});
    return;
  }
  Finding state = {
      .check = "rdma_port",
      .found = absl::StrCat(name, ": ", port.state, ", ", port.ethernet ? "Ethernet" : "InfiniBand",
                            ", ", port.gbit, " Gbit/s, MTU ", port.mtu),
      .why = "verbs:// takes only active ports"};
  if (!port.active) {
    state.state = State::kWarn;
    state.fix = absl::StrCat("ip link set ", interface, " up");
  }
  findings.push_back(std::move(state));
  if (port.active && port.gids.empty()) {
    findings.push_back({.check = "rdma_gid",
                        .state = State::kFail,
                        .found = absl::StrCat(name, ": the GID table is empty"),
                        .why = "RoCE addresses packets by GIDs, which come from IP addresses",
                        .fix = absl::StrCat("ip addr add 192.0.2.1/24 dev ", interface)});
  } else if (port.active) {
    findings.push_back(
        {.check = "rdma_gid",
         .found = absl::StrCat(name, ": ",
                               absl::StrJoin(port.gids, ", ",
                                             [](std::string* out, const transport::VerbsGid& gid) {
                                               absl::StrAppend(out, gid.index, " ", gid.text);
                                             })),
         .why = "verbs:// takes an IPv4 GID of RoCE v2 first; gid=N names another"});
  }
  if (port.active && port.ethernet && port.mtu < 4096) {
    findings.push_back(
        {.check = "rdma_mtu",
         .state = State::kWarn,
         .found = absl::StrCat(name, ": RDMA MTU ", port.mtu, ", since ", interface, " has MTU ",
                               link == facts.links.end() ? 0 : link->second.interface_mtu),
         .why = "smaller packets cost bandwidth; both ends use the smaller MTU of the two",
         .fix = absl::StrCat("ip link set ", interface, " mtu ", kInterfaceMtu)});
  }
}

void AddDevices(const HostFacts& facts, const ClusterConfig* cluster, Findings& findings) {
  for (const std::string& device : facts.kernel_devices) {
    const bool listed =
        std::any_of(facts.ports.begin(), facts.ports.end(),
                    [&device](const transport::VerbsPort& port) { return port.device == device; });
    if (!listed) {
      findings.push_back({.check = "rdma_device",
                          .state = State::kFail,
                          .found = absl::StrCat(device, ": the kernel has it, libibverbs does not"),
                          .why = "its driver's library, or its device file, is missing",
                          .fix = "apt-get install ibverbs-providers; modprobe ib_uverbs"});
    }
  }
  if (facts.kernel_devices.empty() && facts.ports.empty()) {
    findings.push_back(
        {.check = "rdma_device",
         .state = Wants(cluster, "verbs") ? State::kWarn : State::kOk,
         .found = "no RDMA device",
         .why = "verbs:// needs one; shm:// serves one host",
         .fix = Wants(cluster, "verbs") ? "rdma link add rxe0 type rxe netdev INTERFACE" : ""});
  }
  for (const transport::VerbsPort& port : facts.ports) {
    AddPort(facts, port, findings);
  }
}

}  // namespace

Findings CheckHost(const HostFacts& facts, const ClusterConfig* cluster) {
  Findings findings = {CheckMemlock(facts, cluster), CheckHugePages(facts),
                       CheckSharedMemory(facts), CheckSharedMemoryLimits(facts), CheckClock(facts)};
  if (cluster != nullptr) {
    AddClusterChecks(facts, *cluster, findings);
  }
  AddDevices(facts, cluster, findings);
  return findings;
}

}  // namespace lamina::doctor
