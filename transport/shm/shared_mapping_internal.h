// SPDX-License-Identifier: Apache-2.0
//
// FileDescriptor and SharedMapping: one move-only owner for each handle that shared memory needs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::transport {

// Closes on destruction.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor();

  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// Unmaps on destruction.
class SharedMapping {
 public:
  // Maps all of a file for reading and writing, with every page present, so that the data path
  // takes no page faults.
  static absl::StatusOr<SharedMapping> Map(const FileDescriptor& file, size_t bytes);

  SharedMapping(SharedMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  SharedMapping(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// What the name of every file of ours starts with, as /proc/PID/fd shows it.
inline constexpr absl::string_view kSharedFileLink = "/memfd:lamina";

// Creates an unnamed file of `bytes` zeroes in memory, all of them allocated, whose size nobody can
// change any more: a mapping of it never faults with SIGBUS. It goes with its last user.
//
// Errors: kResourceExhausted  not enough memory or file descriptors; says how much and which limit.
absl::StatusOr<FileDescriptor> CreateSharedFile(size_t bytes, absl::string_view what);

// Opens such a file of another process, or of this one.
//
// Errors: kUnavailable  there is no such file, or this process may not open it; says what to do.
absl::StatusOr<FileDescriptor> OpenSharedFile(uint32_t pid, uint32_t fd, size_t bytes);

// Locks of the kernel's on a file as one has opened it (flock): given back when that is closed,
// also by the death of the process. False: somebody has the other kind. Neither waits.
bool LockShared(const FileDescriptor& file);
bool LockAlone(const FileDescriptor& file);

// The number of this process in /proc; unlike getpid() also right where /proc is that of another
// process namespace.
absl::StatusOr<uint32_t> OwnProcessNumber();

}  // namespace lamina::transport
