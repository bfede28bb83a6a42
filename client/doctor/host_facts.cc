// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/host_facts.h"

#include <netdb.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/doctor/files.h"
#include "client/doctor/interfaces.h"
#include "common/host_memory.h"
#include "common/host_port.h"
#include "common/memlock.h"
#include "config/cluster_config.h"

namespace lamina::doctor {
namespace {

std::vector<int> CoresIn(const std::string& path) {
  const auto cores = ParseCores(FirstLine(path));
  return cores.ok() ? *cores : std::vector<int>{};
}

// The word in brackets of "always [madvise] never".
std::string Chosen(const std::string& line) {
  const size_t begin = line.find('[');
  const size_t end = line.find(']');
  return begin == std::string::npos || end == std::string::npos
             ? ""
             : line.substr(begin + 1, end - begin - 1);
}

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) {
        cores.push_back(core);
      }
    }
  }
  return cores;
}

bool CanMakeSharedMemory() {
  const int fd = memfd_create("lamina doctor", MFD_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  const bool grown = ftruncate(fd, 1 << 20) == 0;
  close(fd);
  return grown;
}

uint64_t SizeOfFileSystem(const std::string& path) {
  struct statvfs system = {};
  return statvfs(path.c_str(), &system) == 0 ? uint64_t{system.f_blocks} * system.f_frsize : 0;
}

bool ClockIsSynchronised() {
  timex state = {};
  return adjtimex(&state) != TIME_ERROR;
}

void CollectNuma(const std::string& root, HostFacts& facts) {
  const std::string folder = root + "/sys/devices/system/node/";
  for (const std::string& name : Entries(folder)) {
    int node = 0;
    if (name.rfind("node", 0) == 0 && absl::SimpleAtoi(name.substr(4), &node)) {
      facts.numa[node] = CoresIn(folder + name + "/cpulist");
    }
  }
}

void CollectDevices(const std::string& root, HostFacts& facts) {
  const std::string folder = root + "/sys/class/infiniband/";
  facts.kernel_devices = Entries(folder);
  for (const std::string& device : facts.kernel_devices) {
    HostFacts::Link& link = facts.links[device];
    link.interface = FirstLine(folder + device + "/ports/1/gid_attrs/ndevs/0");
    if (!link.interface.empty()) {
      static_cast<void>(absl::SimpleAtoi(
          FirstLine(root + "/sys/class/net/" + link.interface + "/mtu"), &link.interface_mtu));
    }
    static_cast<void>(
        absl::SimpleAtoi(FirstLine(folder + device + "/device/numa_node"), &link.numa_node));
  }
}

std::vector<std::string> HostNames() {
  std::array<char, 256> name = {};
  std::vector<std::string> names;
  if (gethostname(name.data(), name.size() - 1) == 0) {
    names.emplace_back(name.data());
  }
  for (const Interface& interface : ListInterfaces()) {
    names.push_back(interface.address);
  }
  return names;
}

// The addresses of a host, as ListInterfaces() writes them; none where it is not known here.
std::vector<std::string> AddressesOf(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &raw) != 0) {
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(raw, &freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    std::array<char, NI_MAXHOST> text = {};
    if (getnameinfo(one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      addresses.emplace_back(text.data());
    }
  }
  return addresses;
}

}  // namespace

void AddOwnNames(const std::vector<std::string>& hosts, HostFacts& facts) {
  const auto is_own = [&facts](const std::string& name) {
    return std::find(facts.names.begin(), facts.names.end(), name) != facts.names.end();
  };
  // Each once: a name that no server knows takes seconds, and a host may have many nodes.
  for (const std::string& host : std::set<std::string>(hosts.begin(), hosts.end())) {
    if (is_own(host)) {
      continue;
    }
    const std::vector<std::string> addresses = AddressesOf(host);
    if (std::any_of(addresses.begin(), addresses.end(), [&](const std::string& address) {
          return IsLoopback(address) || is_own(address);
        })) {
      facts.names.push_back(host);
    }
  }
}

HostFacts CollectHostFacts(const std::string& root) {
  HostFacts facts;
  facts.names = HostNames();
  facts.memlock_bytes = MemlockLimit();
  const HostMemory memory = QueryHostMemory(root);
  facts.memory_available_bytes = memory.available_bytes;
  facts.memory_limit = memory.limit;
  facts.huge_pages = Chosen(FirstLine(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  facts.cores_online = CoresIn(root + "/sys/devices/system/cpu/online");
  facts.cores_isolated = CoresIn(root + "/sys/devices/system/cpu/isolated");
  facts.cores_allowed = AllowedCores();
  CollectNuma(root, facts);
  facts.dev_shm_bytes = SizeOfFileSystem(root + "/dev/shm");
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  facts.file_size_max = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
  facts.memfd = CanMakeSharedMemory();
  facts.clock_synchronised = ClockIsSynchronised();
  facts.ports = transport::ListVerbsPorts();
  CollectDevices(root, facts);
  return facts;
}

}  // namespace lamina::doctor
