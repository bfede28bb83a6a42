// SPDX-License-Identifier: Apache-2.0
#include "config/memory_cores.h"

#include <algorithm>
#include <set>
#include <utility>

namespace lamina {
namespace {

std::string HostOf(const std::string& host) { return host == "127.0.0.1" ? "localhost" : host; }

std::string DeviceOf(const MemoryNodeConfig& memory) {
  return memory.device == "cuda" ? "cuda:0" : memory.device;
}

bool Share(const MemoryNodeConfig& memory, const std::string& host, const std::set<int>& cores) {
  return HostOf(memory.host) == HostOf(host) &&
         std::any_of(memory.cores.begin(), memory.cores.end(),
                     [&](int core) { return cores.contains(core); });
}

}  // namespace

SplitCores SplitCoresOf(const ClusterConfig& config, const ComputeNodeConfig& node) {
  SplitCores split;
  for (const int core : node.cores) {
    const bool shared = std::any_of(
        config.memory.begin(), config.memory.end(),
        [&](const MemoryNodeConfig& memory) { return Share(memory, node.host, {core}); });
    (shared ? split.shared : split.own).push_back(core);
  }
  return split;
}

std::vector<MemoryCores> MemoryCoresOf(const ClusterConfig& config, const ComputeNodeConfig& node) {
  struct Group {
    MemoryCores nodes;
    std::string host;
    std::string device;
    std::set<int> cores;
  };
  const auto share = [](const MemoryNodeConfig& memory, const Group& group) {
    const std::string device = DeviceOf(memory);
    return device == group.device && (device == "cpu" ? Share(memory, group.host, group.cores)
                                                      : HostOf(memory.host) == HostOf(group.host));
  };
  const std::set<int> own(node.cores.begin(), node.cores.end());
  std::vector<Group> groups;
  for (const MemoryNodeConfig& memory : config.memory) {
    const bool on_cores = memory.device == "cpu";
    Group joined{.nodes = {.names = {}, .shared = on_cores && Share(memory, node.host, own)},
                 .host = memory.host,
                 .device = DeviceOf(memory),
                 .cores = {memory.cores.begin(), memory.cores.end()}};
    // All groups that the node touches become one with it.
    std::vector<Group> others;
    for (Group& group : groups) {
      if (!share(memory, group)) {
        others.push_back(std::move(group));
        continue;
      }
      joined.nodes.names.insert(joined.nodes.names.end(), group.nodes.names.begin(),
                                group.nodes.names.end());
      joined.nodes.shared = joined.nodes.shared || group.nodes.shared;
      joined.cores.merge(group.cores);
    }
    joined.nodes.names.push_back(memory.name);
    others.push_back(std::move(joined));
    groups = std::move(others);
  }
  std::vector<MemoryCores> found;
  for (Group& group : groups) {
    found.push_back(std::move(group.nodes));
  }
  return found;
}

}  // namespace lamina
