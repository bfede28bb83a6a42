// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/host_memory.h"
#include "common/units.h"
#include "transport/shm/shared_mapping_internal.h"

namespace lamina::transport {
namespace {

// Linux 6.3: the file can never be made executable. Younger than the headers we build with.
constexpr unsigned kMemfdNoExecSeal = 0x0008U;

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::string Refused(absl::string_view what, size_t bytes, absl::string_view why) {
  return absl::StrCat(what, ": ", FormatBytes(bytes), " of shared memory refused: ", why);
}

absl::StatusOr<FileDescriptor> CreateUnnamedFile(size_t bytes, absl::string_view what) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = memfd_create("lamina", kFlags | kMemfdNoExecSeal);
  if (fd < 0 && errno == EINVAL) {
    fd = memfd_create("lamina", kFlags);
  }
  if (fd >= 0) {
    FileDescriptor file(fd);
    // Peers open it by /proc: only as the same user.
    return fchmod(fd, S_IRUSR | S_IWUSR) == 0
               ? absl::StatusOr<FileDescriptor>(std::move(file))
               : absl::ErrnoToStatus(errno, absl::StrCat(what, ": mode of shared memory"));
  }
  const int error = errno;
  if (error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(Refused(
        what, bytes, "no file descriptor is free; each region takes one: raise `ulimit -n`"));
  }
  return absl::ErrnoToStatus(error, Refused(what, bytes, "memfd_create"));
}

absl::Status Allocate(const FileDescriptor& file, size_t bytes, absl::string_view what) {
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(
        Refused(what, bytes, absl::StrCat("ftruncate: ", std::strerror(errno))));
  }
  int error = EINTR;
  while (error == EINTR) {
    error = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  }
  if (error != 0) {
    return absl::ResourceExhaustedError(
        Refused(what, bytes, absl::StrCat("posix_fallocate: ", std::strerror(error))));
  }
  if (fcntl(file.get(), F_ADD_SEALS, kSizeSeals) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(what, ": sealing shared memory"));
  }
  return absl::OkStatus();
}

std::string ReadLink(const std::string& path) {
  std::array<char, 256> target;
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length < 0 ? std::string() : std::string(target.data(), static_cast<size_t>(length));
}

absl::Status CannotOpen(const std::string& path, uint32_t pid, int error) {
  if (error == EACCES || error == EPERM) {
    return absl::UnavailableError(absl::StrCat(
        "shm: not allowed to open ", path, ": process ", pid,
        " runs as another user; run the daemons of one host as one user, or use ucx://"));
  }
  return absl::UnavailableError(
      absl::StrCat("shm: cannot open ", path, " (", std::strerror(error), "): process ", pid,
                   " or its region is gone, or it runs in another container; containers must share "
                   "their process namespace, or use ucx://"));
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

absl::StatusOr<SharedMapping> SharedMapping::Map(const FileDescriptor& file, size_t bytes) {
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    return absl::ErrnoToStatus(
        error, absl::StrCat("shm: cannot map ", FormatBytes(bytes), ": ", std::strerror(error),
                            "; look at `ulimit -v` and vm.max_map_count"));
  }
  return SharedMapping(static_cast<std::byte*>(data), bytes);
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

absl::StatusOr<FileDescriptor> CreateSharedFile(size_t bytes, absl::string_view what) {
  const HostMemory memory = QueryHostMemory();
  if (bytes > memory.available_bytes) {
    return absl::ResourceExhaustedError(
        Refused(what, bytes,
                absl::StrCat(memory.limit, " leaves ", FormatBytes(memory.available_bytes),
                             "; free memory, raise that limit, or configure smaller windows")));
  }
  absl::StatusOr<FileDescriptor> file = CreateUnnamedFile(bytes, what);
  if (!file.ok()) {
    return file;
  }
  if (absl::Status status = Allocate(*file, bytes, what); !status.ok()) {
    return status;
  }
  return file;
}

absl::StatusOr<FileDescriptor> OpenSharedFile(uint32_t pid, uint32_t fd, size_t bytes) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  // The number may by now belong to a file of another kind, which merely opening could disturb.
  const std::string link = ReadLink(path);
  if (link.empty()) {
    return CannotOpen(path, pid, errno);
  }
  if (link.rfind(std::string(kSharedFileLink), 0) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "shm: ", path, " is ", link, ", not a region: its owner closed it or was restarted"));
  }
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0) {
    return CannotOpen(path, pid, errno);
  }
  struct stat info = {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (fstat(file.get(), &info) != 0 || static_cast<size_t>(info.st_size) != bytes || seals < 0 ||
      (seals & kSizeSeals) != kSizeSeals) {
    return absl::UnavailableError(
        absl::StrCat("shm: ", path,
                     " is not the region that was described: its owner was "
                     "restarted; ask it for a new descriptor"));
  }
  return file;
}

bool LockShared(const FileDescriptor& file) { return flock(file.get(), LOCK_SH | LOCK_NB) == 0; }
bool LockAlone(const FileDescriptor& file) { return flock(file.get(), LOCK_EX | LOCK_NB) == 0; }

absl::StatusOr<uint32_t> OwnProcessNumber() {
  uint32_t pid = 0;
  if (!absl::SimpleAtoi(ReadLink("/proc/self"), &pid)) {
    return absl::FailedPreconditionError(
        "shm: /proc/self is not readable; shm:// needs /proc mounted");
  }
  return pid;
}

}  // namespace lamina::transport
