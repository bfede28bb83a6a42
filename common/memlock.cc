// SPDX-License-Identifier: Apache-2.0
#include "common/memlock.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/units.h"

namespace lamina {
namespace {

bool PinsPastTheLimit() {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> data = {};
  return syscall(SYS_capget, &header, data.data()) == 0 &&
         (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

bool HasRdmaDevice() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

}  // namespace

uint64_t MemlockLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY || PinsPastTheLimit() ? UINT64_MAX : limit.rlim_cur;
}

bool PinsMemory(absl::string_view uri) {
  return absl::StrContains(uri, "verbs://") ||
         (absl::StrContains(uri, "ucx://") && HasRdmaDevice());
}

absl::Status CheckMemlock(absl::string_view uri, absl::string_view key, uint64_t bytes,
                          uint64_t limit) {
  const bool verbs = absl::StrContains(uri, "verbs://");
  if (bytes <= limit || !(verbs || absl::StrContains(uri, "ucx://"))) {
    return absl::OkStatus();
  }
  const std::string why = absl::StrCat(
      key, " makes windows of ", FormatBytes(bytes), ", which RDMA pins, and the memlock limit is ",
      FormatBytes(limit),
      ": raise it by `ulimit -l unlimited` or LimitMEMLOCK=infinity, or lower fetch.window");
  if (verbs) {
    return absl::ResourceExhaustedError(absl::StrCat("verbs: ", why));
  }
  if (HasRdmaDevice()) {
    LogWarning("ucx may fail: ", why);
  }
  return absl::OkStatus();
}

}  // namespace lamina
