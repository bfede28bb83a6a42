// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "transport/verbs/verbs_device_memory_internal.h"

namespace lamina::transport {
namespace {

absl::StatusOr<VerbsMemory> ByDmabuf(ibv_pd* domain, DeviceMemory& device,
                                     absl::Span<const std::byte> bytes, int access) {
  LAMINA_ASSIGN_OR_RETURN(const int file, device.ExportDmabuf(bytes));
  VerbsMemory memory(ibv_reg_dmabuf_mr(domain, /*offset=*/0, bytes.size(),
                                       reinterpret_cast<uint64_t>(bytes.data()), file, access));
  const int error = errno;
  close(file);  // The registration holds it.
  if (memory == nullptr) {
    return absl::UnimplementedError(absl::StrCat(ibv_get_device_name(domain->context->device),
                                                 " takes none: ", std::strerror(error)));
  }
  return memory;
}

absl::StatusOr<VerbsMemory> ByAddress(ibv_pd* domain, DeviceMemory& device,
                                      absl::Span<const std::byte> bytes, int access) {
  LAMINA_RETURN_IF_ERROR(device.CheckPeerAccess());
  VerbsMemory memory(
      ibv_reg_mr(domain, const_cast<std::byte*>(bytes.data()), bytes.size(), access));
  if (memory == nullptr) {
    return absl::UnimplementedError(absl::StrCat(ibv_get_device_name(domain->context->device),
                                                 " cannot pin it: ", std::strerror(errno)));
  }
  return memory;
}

}  // namespace

absl::StatusOr<VerbsDeviceMemory> RegisterVerbsDeviceMemory(ibv_pd* domain, DeviceMemory& device,
                                                            absl::Span<const std::byte> bytes,
                                                            int access) {
  if ((access & IBV_ACCESS_REMOTE_WRITE) != 0) {
    if (const absl::Status flushed = device.FlushPeerWrites(); !flushed.ok()) {
      return absl::FailedPreconditionError(absl::StrCat("no flush of writes: ", flushed.message()));
    }
  }
  absl::StatusOr<VerbsMemory> memory = ByDmabuf(domain, device, bytes, access);
  if (memory.ok()) {
    return VerbsDeviceMemory{
        .memory = *std::move(memory),
        .choice = {.path = MemoryPath::kDmabuf, .device = device.name(), .why_not = ""}};
  }
  const std::string no_dmabuf = absl::StrCat("dmabuf: ", memory.status().message());
  memory = ByAddress(domain, device, bytes, access);
  if (memory.ok()) {
    return VerbsDeviceMemory{
        .memory = *std::move(memory),
        .choice = {.path = MemoryPath::kPeermem, .device = device.name(), .why_not = no_dmabuf}};
  }
  return absl::FailedPreconditionError(
      absl::StrCat(no_dmabuf, "; peermem: ", memory.status().message()));
}

}  // namespace lamina::transport
