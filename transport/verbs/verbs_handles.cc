// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/units.h"
#include "transport/verbs/verbs_handles_internal.h"

namespace lamina::transport {
namespace {

std::string MemlockLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : FormatBytes(limit.rlim_cur);
}

}  // namespace

void VerbsDeleter::operator()(ibv_context* context) const { ibv_close_device(context); }
void VerbsDeleter::operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
void VerbsDeleter::operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
void VerbsDeleter::operator()(ibv_qp* pair) const { ibv_destroy_qp(pair); }
void VerbsDeleter::operator()(ibv_mr* memory) const { ibv_dereg_mr(memory); }

absl::Status VerbsError(absl::string_view what, int error) {
  const std::string message = absl::StrCat("verbs: ", what, ": ", std::strerror(error));
  if (error == EPERM || error == EACCES) {
    return absl::PermissionDeniedError(message);
  }
  if (error == ENOMEM || error == EAGAIN || error == ENOSPC) {
    return absl::ResourceExhaustedError(
        absl::StrCat(message, " (memlock limit: ", MemlockLimit(), ")"));
  }
  return absl::InternalError(message);
}

absl::StatusOr<VerbsContext> OpenVerbsDevice(const std::string& name) {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  if (devices == nullptr) {
    return absl::FailedPreconditionError("verbs: this kernel has no RDMA support");
  }
  VerbsContext context;
  int error = ENODEV;
  for (int i = 0; i < count; ++i) {
    if (name == ibv_get_device_name(devices[i])) {
      context.reset(ibv_open_device(devices[i]));
      error = context == nullptr ? errno : 0;
    }
  }
  ibv_free_device_list(devices);
  if (context != nullptr) {
    return context;
  }
  if (error == EPERM || error == EACCES) {
    return absl::PermissionDeniedError(
        absl::StrCat("verbs: ", name, ": ", std::strerror(error),
                     ": this user needs read and write access to /dev/infiniband/uverbs*"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("verbs: ", name, " cannot be opened: ", std::strerror(error)));
}

absl::StatusOr<VerbsMemory> RegisterVerbsMemory(ibv_pd* domain, void* address, size_t bytes,
                                                int access, absl::string_view name) {
  VerbsMemory memory(ibv_reg_mr(domain, address, bytes, access));
  if (memory == nullptr) {
    const int error = errno;
    return absl::ResourceExhaustedError(absl::StrCat(
        "verbs: ", name, ": ", FormatBytes(bytes), " cannot be pinned: ", std::strerror(error),
        "; the memlock limit is ", MemlockLimit(),
        ", raise it by `ulimit -l unlimited` or LimitMEMLOCK=infinity"));
  }
  return memory;
}

}  // namespace lamina::transport
