// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_disk.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lamina::memory_node {
namespace {

class FileDisk final : public SpillDisk {
 public:
  explicit FileDisk(int file) : file_(file) {}
  ~FileDisk() override { ::close(file_); }
  FileDisk(const FileDisk&) = delete;
  FileDisk& operator=(const FileDisk&) = delete;

  int64_t Write(const std::byte* bytes, size_t count, uint64_t offset) override {
    return ::pwrite(file_, bytes, count, static_cast<off_t>(offset));
  }
  int64_t Read(std::byte* bytes, size_t count, uint64_t offset) override {
    return ::pread(file_, bytes, count, static_cast<off_t>(offset));
  }
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
  const int file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SpillDisk>> OpenSpillDisk(const std::string& directory) {
  std::string path = absl::StrCat(directory, "/lamina-spill-XXXXXX");
  const int file = ::mkostemp(path.data(), O_CLOEXEC);  // 0600
  if (file < 0) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("spill ", directory, ": no file can be made there"));
  }
  ::unlink(path.c_str());
  return std::make_unique<FileDisk>(file);
}

}  // namespace lamina::memory_node
