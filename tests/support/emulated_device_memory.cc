// SPDX-License-Identifier: Apache-2.0
#include "tests/support/emulated_device_memory.h"

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/peer_mappings.h"
#include "common/status_macros.h"

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

// Maps a file of device memory, for the transport and for the test, and lists it.
Allocation MapFile(int file, size_t bytes, bool guarded, const void* owner) {
  const int touch = guarded ? PROT_NONE : PROT_READ | PROT_WRITE;
  void* const device = mmap(nullptr, bytes, touch, MAP_SHARED, file, 0);
  void* const seen = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  LAMINA_CHECK(device != MAP_FAILED && seen != MAP_FAILED);
  const Allocation made = {.device = static_cast<std::byte*>(device),
                           .seen = static_cast<std::byte*>(seen),
                           .bytes = bytes,
                           .file = file,
                           .owner = owner};
  Table& table = All();
  const std::lock_guard lock(table.mutex);
  table.by_end[EndOf({made.device, bytes})] = made;
  return made;
}

void Unmap(const Allocation& one) {
  {
    Table& table = All();
    const std::lock_guard lock(table.mutex);
    table.by_end.erase(EndOf({one.device, one.bytes}));
  }
  munmap(const_cast<std::byte*>(one.device), one.bytes);
  munmap(one.seen, one.bytes);
  close(one.file);
}

// What a peer's handle says: a file of the process that made it.
struct PeerFile {
  pid_t process = 0;
  int file = -1;
  ino_t inode = 0;  // The number of a file comes back; this tells one from the next.
  size_t bytes = 0;
};

PeerMappings& Peers() {
  static PeerMappings& mappings = *new PeerMappings;
  return mappings;
}

// All of a device's memory that this process reaches, as the device sees it.
std::byte* OnAnyDevice(absl::Span<const std::byte> bytes) {
  const Allocation one = Find(bytes);
  LAMINA_CHECK(one.owner != nullptr);
  return one.seen + (bytes.data() - one.device);
}

absl::StatusOr<std::byte*> MapPeer(const PeerFile& peer, bool guarded, const void* owner) {
  const std::string path = absl::StrCat("/proc/", peer.process, "/fd/", peer.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  struct stat info = {};
  if (file < 0 || fstat(file, &info) != 0 || info.st_ino != peer.inode) {
    const std::string why = file < 0 ? std::strerror(errno) : "another file";
    close(file);
    return absl::UnavailableError(absl::StrCat("opening ", path, ": ", why));
  }
  return const_cast<std::byte*>(MapFile(file, peer.bytes, guarded, owner).device);
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
  const Allocation made = MapFile(file, whole, options_.guarded, this);
  allocated_bytes_ += whole;
  return absl::MakeSpan(const_cast<std::byte*>(made.device), whole);
}

void EmulatedDeviceMemory::Free(absl::Span<std::byte> allocated) {
  const Allocation one = Find(allocated);
  LAMINA_CHECK(one.owner == this && one.bytes == allocated.size());
  Unmap(one);
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

absl::StatusOr<PeerHandle> EmulatedDeviceMemory::ExportToPeers(absl::Span<const std::byte> bytes) {
  const Allocation one = Find(bytes);
  LAMINA_CHECK(one.owner == this);
  struct stat info = {};
  LAMINA_CHECK(fstat(one.file, &info) == 0);
  if (!options_.exports) {
    return absl::UnimplementedError(absl::StrCat(name_, " shares no memory between processes"));
  }
  const PeerFile file = {
      .process = getpid(), .file = one.file, .inode = info.st_ino, .bytes = one.bytes};
  return PeerHandle{.bytes = std::string(reinterpret_cast<const char*>(&file), sizeof file),
                    .offset = static_cast<uint64_t>(bytes.data() - one.device)};
}

absl::StatusOr<std::byte*> EmulatedDeviceMemory::OpenPeer(const PeerHandle& handle) {
  PeerFile peer;
  if (handle.bytes.size() != sizeof peer) {
    return absl::UnavailableError(absl::StrCat(name_, " knows no such handle"));
  }
  std::memcpy(&peer, handle.bytes.data(), sizeof peer);
  if (!options_.opens) {
    return absl::UnavailableError(
        absl::StrCat(name_, " opens no memory of process ", peer.process));
  }
  LAMINA_ASSIGN_OR_RETURN(std::byte* const data, Peers().Open(handle.bytes, [&] {
    return MapPeer(peer, options_.guarded, this);
  }));
  return data + handle.offset;
}

void EmulatedDeviceMemory::ClosePeer(const PeerHandle& handle) {
  Peers().Close(handle.bytes, [](std::byte* data) { Unmap(Find({data, 1})); });
}

size_t EmulatedDeviceMemory::peers_open() { return Peers().size(); }

absl::Status EmulatedDeviceMemory::CopyIn(std::byte* device, const std::byte* host, size_t bytes) {
  if (broken_) {
    return absl::InternalError(absl::StrCat(name_, " is broken"));
  }
  std::memcpy(OnAnyDevice({device, bytes}), host, bytes);
  ++copies_in_;
  bytes_in_ += bytes;
  return absl::OkStatus();
}

absl::Status EmulatedDeviceMemory::CopyOut(std::byte* host, const std::byte* device, size_t bytes) {
  if (broken_) {
    return absl::InternalError(absl::StrCat(name_, " is broken"));
  }
  // A device that writes the same bytes again changes nothing; the language knows no such writes.
  const std::byte* const seen = OnAnyDevice({device, bytes});
  if (std::memcmp(host, seen, bytes) != 0) {
    std::memcpy(host, seen, bytes);
  }
  ++copies_out_;
  return absl::OkStatus();
}

absl::Status EmulatedDeviceMemory::CopyAcross(std::byte* to, const std::byte* from, size_t bytes) {
  if (broken_) {
    return absl::InternalError(absl::StrCat(name_, " is broken"));
  }
  std::memmove(OnAnyDevice({to, bytes}), OnAnyDevice({from, bytes}), bytes);
  ++copies_across_;
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
