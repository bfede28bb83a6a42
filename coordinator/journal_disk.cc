// SPDX-License-Identifier: Apache-2.0
#include "coordinator/journal_disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::coordinator {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;

absl::Status Failed(absl::string_view call, absl::string_view path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(call, " ", path));
}

// A file descriptor that is closed.
class OpenFile {
 public:
  OpenFile() = default;
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      return Failed("write", path);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// So that the folder remembers the new name.
absl::Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const OpenFile opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open() || fsync(opened.fd()) != 0) {
    return Failed("fsync", folder);
  }
  return absl::OkStatus();
}

class JournalFile final : public JournalDisk {
 public:
  explicit JournalFile(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<std::string> Read() override {
    LAMINA_RETURN_IF_ERROR(CheckKind());
    LAMINA_RETURN_IF_ERROR(Lock());
    const OpenFile file(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open() && errno == ENOENT) {
      return std::string();
    }
    if (!file.is_open()) {
      return Failed("open", path_);
    }
    std::string bytes;
    size_t size = 0;
    for (;;) {
      bytes.resize(size + kReadBytes);
      const ssize_t got = read(file.fd(), bytes.data() + size, kReadBytes);
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got < 0) {
        return Failed("read", path_);
      }
      size += static_cast<size_t>(got);
      if (got == 0) {
        bytes.resize(size);
        return bytes;
      }
    }
  }

  absl::Status Replace(absl::string_view bytes) override {
    const std::string next = absl::StrCat(path_, ".new");
    OpenFile file(open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
    if (!file.is_open()) {
      return Failed("open", next);
    }
    if (fchmod(file.fd(), 0600) != 0) {
      return Failed("fchmod", next);
    }
    LAMINA_RETURN_IF_ERROR(WriteAll(file.fd(), bytes, next));
    if (fsync(file.fd()) != 0) {
      return Failed("fsync", next);
    }
    if (std::rename(next.c_str(), path_.c_str()) != 0) {
      return Failed("rename", next);
    }
    file_ = std::move(file);
    return SyncFolderOf(path_);
  }

  absl::Status Append(absl::string_view bytes) override {
    return WriteAll(file_.fd(), bytes, path_);
  }

  absl::Status Sync() override {
    return fdatasync(file_.fd()) == 0 ? absl::OkStatus() : Failed("fdatasync", path_);
  }

  void Remove() override {
    file_ = OpenFile();
    unlink(absl::StrCat(path_, ".new").c_str());
    unlink(path_.c_str());
  }

 private:
  // The kernel lets go of it when this process ends, however it does. A file of its own, which
  // stays: that of the records is replaced.
  absl::Status Lock() {
    if (lock_.is_open()) {
      return absl::OkStatus();
    }
    const std::string path = absl::StrCat(path_, ".lock");
    OpenFile lock(open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0600));
    if (!lock.is_open()) {
      return Failed("open", path);
    }
    if (flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) {
      return errno == EWOULDBLOCK ? absl::FailedPreconditionError(absl::StrCat(
                                        path_, " is another coordinator's, which runs"))
                                  : Failed("flock", path);
    }
    lock_ = std::move(lock);
    return absl::OkStatus();
  }

  // Replace() would put a regular file in the place of a device, and a pipe is read for ever.
  absl::Status CheckKind() const {
    struct stat status = {};
    if (stat(path_.c_str(), &status) != 0) {
      return errno == ENOENT ? absl::OkStatus() : Failed("stat", path_);
    }
    return S_ISREG(status.st_mode)
               ? absl::OkStatus()
               : absl::FailedPreconditionError(absl::StrCat(path_, " is no regular file"));
  }

  const std::string path_;
  OpenFile lock_;
  OpenFile file_;
};

}  // namespace

std::unique_ptr<JournalDisk> MakeJournalFile(std::string path) {
  return std::make_unique<JournalFile>(std::move(path));
}

}  // namespace lamina::coordinator
