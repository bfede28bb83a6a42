// SPDX-License-Identifier: Apache-2.0
#include "common/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lamina {
namespace {

constexpr int kNodesMax = 1024;
constexpr size_t kWordBits = 8 * sizeof(unsigned long);

// Whether a list like "0-3,8" has one of the cores.
bool HasOneOf(const std::string& list, const std::vector<int>& cores) {
  for (const absl::string_view range : absl::StrSplit(list, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    int first = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) {
      continue;
    }
    int last = first;
    if (!ends.second.empty() && !absl::SimpleAtoi(ends.second, &last)) {
      continue;
    }
    if (std::any_of(cores.begin(), cores.end(),
                    [&](int core) { return core >= first && core <= last; })) {
      return true;
    }
  }
  return false;
}

long SetPolicy(int mode, const std::vector<unsigned long>& mask) {
  return syscall(SYS_set_mempolicy, mode, mask.empty() ? nullptr : mask.data(),
                 mask.empty() ? 0 : mask.size() * kWordBits + 1);
}

}  // namespace

std::vector<int> NumaNodesOf(const std::vector<int>& cores, const std::string& folder) {
  std::vector<int> nodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view number = name;
    int node = 0;
    if (!absl::ConsumePrefix(&number, "node") || !absl::SimpleAtoi(number, &node) || node < 0 ||
        node >= kNodesMax) {
      continue;
    }
    std::string list;
    std::getline(std::ifstream(entry.path() / "cpulist"), list);
    if (HasOneOf(list, cores)) {
      nodes.push_back(node);
    }
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

absl::Status PreferMemoryOf(const std::vector<int>& nodes) {
  std::vector<unsigned long> mask;
  for (const int node : nodes) {
    const auto bit = static_cast<size_t>(node);
    mask.resize(std::max(mask.size(), bit / kWordBits + 1));
    mask[bit / kWordBits] |= 1ul << (bit % kWordBits);
  }
  long result = SetPolicy(nodes.empty() ? MPOL_DEFAULT : MPOL_PREFERRED_MANY, mask);
  if (result != 0 && errno == EINVAL && !nodes.empty()) {  // Before Linux 5.15: the first of them.
    result = SetPolicy(MPOL_PREFERRED, mask);
  }
  if (result == 0) {
    return absl::OkStatus();
  }
  const std::string why = absl::StrCat("set_mempolicy: ", std::strerror(errno));
  return errno == EPERM ? absl::PermissionDeniedError(why) : absl::UnavailableError(why);
}

}  // namespace lamina
