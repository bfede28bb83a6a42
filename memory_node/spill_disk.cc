// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_disk.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "plan/spill_blocks.h"

namespace lamina::memory_node {
namespace {

// Calls that are not aligned, as those that go on behind a short one, take the descriptor through
// the page cache: the system keeps both views of a file the same.
class FileDisk final : public SpillDisk {
 public:
  // `direct`: another descriptor of the file, with O_DIRECT; -1: the file system has no such.
  FileDisk(int file, int direct) : file_(file), direct_(direct) {}
  ~FileDisk() override {
    ::close(file_);
    if (direct()) {
      ::close(direct_);
    }
  }
  FileDisk(const FileDisk&) = delete;
  FileDisk& operator=(const FileDisk&) = delete;

  int64_t Write(const std::byte* bytes, size_t count, uint64_t offset) override {
    return ::pwrite(FileFor(bytes, count, offset), bytes, count, static_cast<off_t>(offset));
  }
  int64_t Read(std::byte* bytes, size_t count, uint64_t offset) override {
    return ::pread(FileFor(bytes, count, offset), bytes, count, static_cast<off_t>(offset));
  }
  bool direct() const override { return direct_ >= 0; }
  int Allocate(uint64_t bytes) override {
    return ::posix_fallocate(file_, 0, static_cast<off_t>(bytes));
  }
  int Settle() override {
    if (::fdatasync(file_) != 0) {
      return -1;
    }
    const int error = ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
    errno = error;
    return error == 0 ? 0 : -1;
  }

 private:
  int FileFor(const std::byte* bytes, size_t count, uint64_t offset) const {
    const uint64_t all = reinterpret_cast<uintptr_t>(bytes) | count | offset;
    return direct() && all % plan::kSpillAlignment == 0 ? direct_ : file_;
  }

  const int file_;
  const int direct_;
};

// A second descriptor of the file, which passes by the page cache; -1: the file system refuses.
// Some refuse with the first call only, so there is one here. It leaves no bytes.
int OpenDirect(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (file < 0) {
    return -1;
  }
  alignas(plan::kSpillAlignment) std::byte bytes[plan::kSpillAlignment] = {};
  const bool works = ::pwrite(file, bytes, sizeof(bytes), 0) == sizeof(bytes) &&
                     ::pread(file, bytes, sizeof(bytes), 0) == sizeof(bytes);
  if (!works || ::ftruncate(file, 0) != 0) {
    ::close(file);
    return -1;
  }
  return file;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpillDisk>> OpenSpillDisk(const std::string& directory) {
  std::string path = absl::StrCat(directory, "/lamina-spill-XXXXXX");
  const int file = ::mkostemp(path.data(), O_CLOEXEC);  // 0600
  if (file < 0) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("spill ", directory, ": no file can be made there"));
  }
  const int direct = OpenDirect(path);
  ::unlink(path.c_str());
  if (direct < 0) {
    LogWarning("spill ", directory,
               ": the file system has no direct reads and writes, so that the file takes memory of "
               "this host too; choose another folder if it has none to spare");
  }
  return std::make_unique<FileDisk>(file, direct);
}

}  // namespace lamina::memory_node
