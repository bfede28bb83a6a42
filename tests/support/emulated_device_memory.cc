// SPDX-License-Identifier: Apache-2.0
#include "tests/support/emulated_device_memory.h"

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina::test_support {
namespace {

constexpr size_t kPageBytes = 4096;

// An allocation, by the address after its end.
struct Allocation {
  const std::byte* device = nullptr;
  std::byte* seen = nullptr;
  size_t bytes = 0;
  int file = -1;
  const void* owner = nullptr;
};

struct Table {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> by_end;
};

Table& All() {
  static Table& table = *new Table;  // Never destroyed: other statics may still use it.
  return table;
}

uintptr_t EndOf(absl::Span<const std::byte> bytes) {
  return reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
}

// The allocation that holds all of `bytes`; without one an empty one.
Allocation Find(absl::Span<const std::byte> bytes) {
  Table& table = All();
  const std::lock_guard lock(table.mutex);
  // An end may be the next one's beginning: look for the last byte.
  const auto found = table.by_end.upper_bound(EndOf(bytes) - (bytes.empty() ? 0 : 1));
  if (found == table.by_end.end() || bytes.data() < found->second.device) {
    return {};
  }
  return found->second;
}

}  // namespace

EmulatedDeviceMemory::~EmulatedDeviceMemory() { LAMINA_CHECK(allocated_bytes_ == 0); }

absl::StatusOr<absl::Span<std::byte>> EmulatedDeviceMemory::Allocate(size_t bytes) {
  const size_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const int file = memfd_create("emulated device", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0 || ftruncate(file, static_cast<off_t>(whole)) != 0) {
    close(file);
    return absl::ResourceExhaustedError(absl::StrCat(name_, ": ", bytes, " bytes asked for"));
  }
  fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK);  // A udmabuf asks for it.
  const int touch = options_.guarded ? PROT_NONE : PROT_READ | PROT_WRITE;
  void* const device = mmap(nullptr, whole, touch, MAP_SHARED, file, 0);
  void* const seen = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  LAMINA_CHECK(device != MAP_FAILED && seen != MAP_FAILED);
  const absl::Span<std::byte> allocated(static_cast<std::byte*>(device), whole);
  allocated_bytes_ += whole;
  Table& table = All();
  const std::lock_guard lock(table.mutex);
  table.by_end[EndOf(allocated)] = {.device = allocated.data(),
                                    .seen = static_cast<std::byte*>(seen),
                                    .bytes = whole,
                                    .file = file,
                                    .owner = this};
  return allocated;
}

void EmulatedDeviceMemory::Free(absl::Span<std::byte> allocated) {
  const Allocation one = Find(allocated);
  LAMINA_CHECK(one.owner == this && one.bytes == allocated.size());
  {
    Table& table = All();
    const std::lock_guard lock(table.mutex);
    table.by_end.erase(EndOf(allocated));
  }
  munmap(allocated.data(), one.bytes);
  munmap(one.seen, one.bytes);
  close(one.file);
  allocated_bytes_ -= one.bytes;
}

absl::StatusOr<int> EmulatedDeviceMemory::ExportDmabuf(absl::Span<const std::byte> pages) {
  const Allocation one = Find(pages);
  LAMINA_CHECK(one.owner == this);
  const auto offset = static_cast<uint64_t>(pages.data() - one.device);
  if (!options_.dmabuf || offset % kPageBytes != 0 || pages.size() % kPageBytes != 0) {
    return absl::UnimplementedError(absl::StrCat(name_, " exports none"));
  }
  const int maker = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
  if (maker < 0) {
    // A file that is no dmabuf: whoever takes dmabufs refuses it, and whoever takes none says so.
    return fcntl(one.file, F_DUPFD_CLOEXEC, 0);
  }
  udmabuf_create wanted = {};
  wanted.memfd = static_cast<uint32_t>(one.file);
  wanted.flags = UDMABUF_FLAGS_CLOEXEC;
  wanted.offset = offset;
  wanted.size = pages.size();
  const int made = ioctl(maker, UDMABUF_CREATE, &wanted);
  const int error = errno;
  close(maker);
  if (made < 0) {
    return absl::UnimplementedError(absl::StrCat("udmabuf: ", std::strerror(error)));
  }
  return made;
}

absl::Status EmulatedDeviceMemory::CheckPeerAccess() {
  return options_.peer_access ? absl::OkStatus()
                              : absl::UnimplementedError(absl::StrCat("no module knows ", name_));
}

absl::Status EmulatedDeviceMemory::CopyIn(std::byte* device, const std::byte* host, size_t bytes) {
  if (broken_) {
    return absl::InternalError(absl::StrCat(name_, " is broken"));
  }
  std::memcpy(Seen({device, bytes}).data(), host, bytes);
  ++copies_in_;
  bytes_in_ += bytes;
  return absl::OkStatus();
}

absl::Status EmulatedDeviceMemory::CopyOut(std::byte* host, const std::byte* device, size_t bytes) {
  if (broken_) {
    return absl::InternalError(absl::StrCat(name_, " is broken"));
  }
  // A device that writes the same bytes again changes nothing; the language knows no such writes.
  const std::byte* const seen = Seen({device, bytes}).data();
  if (std::memcmp(host, seen, bytes) != 0) {
    std::memcpy(host, seen, bytes);
  }
  ++copies_out_;
  return absl::OkStatus();
}

absl::Status EmulatedDeviceMemory::FlushPeerWrites() {
  ++flushes_;
  return options_.flush ? absl::OkStatus()
                        : absl::UnimplementedError(absl::StrCat(name_, " has none"));
}

absl::Span<std::byte> EmulatedDeviceMemory::Seen(absl::Span<const std::byte> device) const {
  const Allocation one = Find(device);
  LAMINA_CHECK(one.owner == this);
  return {one.seen + (device.data() - one.device), device.size()};
}

absl::Span<std::byte> EmulatedDeviceMemory::SeenByItsOwner(absl::Span<const std::byte> bytes) {
  const Allocation one = Find(bytes);
  std::byte* const seen = one.owner == nullptr ? const_cast<std::byte*>(bytes.data())
                                               : one.seen + (bytes.data() - one.device);
  return {seen, bytes.size()};
}

}  // namespace lamina::test_support
