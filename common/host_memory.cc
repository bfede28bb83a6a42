// SPDX-License-Identifier: Apache-2.0
#include "common/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace lamina {
namespace {

// Returns the number after `key` in a file of lines "key number ...", or `otherwise`.
uint64_t ReadField(const std::string& path, absl::string_view key, uint64_t otherwise) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && absl::StripSuffix(name, ":") == key) {
      return value;
    }
  }
  return otherwise;
}

// Returns the only number in a file; `otherwise` for "max" and for a file that is not there.
uint64_t ReadNumber(const std::string& path, uint64_t otherwise) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : otherwise;
}

uint64_t AvailableInGroup(const std::string& folder) {
  const uint64_t limit = ReadNumber(folder + "/memory.max", UINT64_MAX);
  if (limit == UINT64_MAX) {
    return UINT64_MAX;
  }
  // File pages count as used, and yet the kernel drops them before it refuses anything.
  const std::string stat = folder + "/memory.stat";
  const uint64_t used = ReadNumber(folder + "/memory.current", 0);
  const uint64_t droppable =
      ReadField(stat, "inactive_file", 0) + ReadField(stat, "active_file", 0);
  const uint64_t kept = used - std::min(used, droppable);
  return limit - std::min(limit, kept);
}

// The path of this process in the control-group tree: "/" or "/a/b".
std::string OwnGroup(absl::string_view root) {
  std::ifstream file(absl::StrCat(root, "/proc/self/cgroup"));
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "0::")) {
      return std::string(rest);
    }
  }
  return "/";
}

}  // namespace

HostMemory QueryHostMemory(absl::string_view root) {
  HostMemory memory;
  const uint64_t kib =
      ReadField(absl::StrCat(root, "/proc/meminfo"), "MemAvailable", UINT64_MAX >> 10);
  memory.available_bytes = kib << 10;
  memory.limit = "MemAvailable of the host";

  // A limit on any ancestor binds too.
  for (std::string group = OwnGroup(root); !group.empty();) {
    const std::string folder = absl::StrCat(root, "/sys/fs/cgroup", group == "/" ? "" : group);
    const uint64_t available = AvailableInGroup(folder);
    if (available < memory.available_bytes) {
      memory.available_bytes = available;
      memory.limit = absl::StrCat("memory.max of control group ", group);
    }
    if (group == "/") {
      break;
    }
    const size_t slash = group.rfind('/');
    group = slash == 0 || slash == std::string::npos ? "/" : group.substr(0, slash);
  }
  return memory;
}

}  // namespace lamina
