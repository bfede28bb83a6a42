// SPDX-License-Identifier: Apache-2.0
#include "compute_node/weight_store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/units.h"

namespace lamina::compute_node {

absl::Status WeightStore::Error(const char* what) const {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat("weights_store ", directory_, ": ", what,
                                                 " behind ", FormatBytes(end_), " of weights"));
}

absl::StatusOr<std::unique_ptr<WeightStore>> WeightStore::Create(std::string directory) {
  std::string path = absl::StrCat(directory, "/lamina-weights-XXXXXX");
  const int file = ::mkostemp(path.data(), O_CLOEXEC);  // 0600
  if (file < 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("weights_store ", directory, ": no file can be made there"));
  }
  ::unlink(path.c_str());
  return std::unique_ptr<WeightStore>(new WeightStore(std::move(directory), file));
}

WeightStore::~WeightStore() { ::close(file_); }

absl::StatusOr<uint64_t> WeightStore::Append(absl::Span<const std::byte> bytes) {
  const uint64_t begin = end_;
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count =
        ::pwrite(file_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(begin + done));
    if (count < 0 && errno != EINTR) {
      return Error("cannot write");
    }
    done += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  end_ = begin + bytes.size();
  return begin;
}

absl::Status WeightStore::Read(uint64_t offset, absl::Span<std::byte> bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count =
        ::pread(file_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno != EINTR) {
      return Error("cannot read");
    }
    if (count == 0) {
      return absl::DataLossError(absl::StrCat(
          "weights_store ", directory_, ": the file ends before byte ", offset + bytes.size()));
    }
    done += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
