// SPDX-License-Identifier: Apache-2.0
#include "common/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

// The two versions of control groups. A host may have both, and either may hold the limit.
struct GroupFiles {
  absl::string_view mount;
  absl::string_view limit;
  absl::string_view used;
  // In memory.stat. File pages count as used, and yet the kernel drops them before it refuses
  // anything.
  absl::string_view inactive_files;
  absl::string_view active_files;
  // The least limit of the group and all above it, also those that a container does not see.
  absl::string_view limit_of_all;
};
constexpr GroupFiles kVersion2 = {.mount = "/sys/fs/cgroup",
                                  .limit = "memory.max",
                                  .used = "memory.current",
                                  .inactive_files = "inactive_file",
                                  .active_files = "active_file",
                                  .limit_of_all = ""};
constexpr GroupFiles kVersion1 = {.mount = "/sys/fs/cgroup/memory",
                                  .limit = "memory.limit_in_bytes",
                                  .used = "memory.usage_in_bytes",
                                  .inactive_files = "total_inactive_file",
                                  .active_files = "total_active_file",
                                  .limit_of_all = "hierarchical_memory_limit"};
// What version 1 says for none: the largest multiple of a page, whatever that is here.
constexpr uint64_t kNoLimit = uint64_t{INT64_MAX} - (1 << 20);

uint64_t AvailableInGroup(const GroupFiles& files, const std::string& folder) {
  const std::string stat = folder + "/memory.stat";
  const uint64_t own = ReadNumber(absl::StrCat(folder, "/", files.limit), UINT64_MAX);
  const uint64_t limit = std::min(own, ReadField(stat, files.limit_of_all, UINT64_MAX));
  if (limit >= kNoLimit) {
    return UINT64_MAX;
  }
  const uint64_t used = ReadNumber(absl::StrCat(folder, "/", files.used), 0);
  const uint64_t droppable =
      ReadField(stat, files.inactive_files, 0) + ReadField(stat, files.active_files, 0);
  const uint64_t kept = used - std::min(used, droppable);
  return limit - std::min(limit, kept);
}

// The paths of this process in the trees of control groups: "/" or "/a/b". Empty: it is in none.
struct OwnGroups {
  std::string version2;
  std::string version1;  // The path in the hierarchy that has the memory controller.
};

// Lines are "number:controllers:path", and that of version 2 begins with "0::".
OwnGroups ReadOwnGroups(absl::string_view root) {
  OwnGroups own;
  std::ifstream file(absl::StrCat(root, "/proc/self/cgroup"));
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) {
      continue;
    }
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      own.version2 = parts[2];
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      own.version1 = parts[2];
    }
  }
  return own;
}

// Takes the limit of `group` or of one above it where that leaves less.
void Tighten(HostMemory& memory, const GroupFiles& files, absl::string_view root,
             std::string group) {
  while (!group.empty()) {
    const std::string folder = absl::StrCat(root, files.mount, group == "/" ? "" : group);
    const uint64_t available = AvailableInGroup(files, folder);
    if (available < memory.available_bytes) {
      memory.available_bytes = available;
      memory.limit = absl::StrCat(files.limit, " of control group ", group);
    }
    const size_t slash = group.rfind('/');
    const bool at_top = slash == 0 || slash == std::string::npos;
    group = group == "/" ? "" : at_top ? "/" : group.substr(0, slash);
  }
}

}  // namespace

HostMemory QueryHostMemory(absl::string_view root) {
  HostMemory memory;
  const uint64_t kib =
      ReadField(absl::StrCat(root, "/proc/meminfo"), "MemAvailable", UINT64_MAX >> 10);
  memory.available_bytes = kib << 10;
  memory.limit = "MemAvailable of the host";

  const OwnGroups own = ReadOwnGroups(root);
  Tighten(memory, kVersion2, root, own.version2.empty() ? "/" : own.version2);
  Tighten(memory, kVersion1, root, own.version1);
  return memory;
}

}  // namespace lamina
