// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch_results.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/batch_file.h"

namespace lamina::cli {
namespace {

absl::Status Problem(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
}

}  // namespace

ResultFile::~ResultFile() {
  if (file_ != nullptr) {
    std::fclose(file_);
  }
}

absl::StatusOr<std::set<std::string>> ResultFile::Open(const std::string& path) {
  file_ = std::fopen(path.c_str(), "ab");
  if (file_ == nullptr) {
    return Problem(path);
  }
  BatchDone done;
  std::error_code missing;
  if (std::filesystem::is_regular_file(path, missing)) {
    // The lock goes with the process. A file system that has none goes without.
    if (flock(fileno(file_), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return absl::FailedPreconditionError(
          absl::StrCat(path,
                       ": another command writes there, as lamina batch does; wait until it "
                       "has ended, or give another --output"));
    }
    std::ifstream results(path, std::ios::binary);
    if (!results) {
      return Problem(path);
    }
    absl::StatusOr<BatchDone> read = ReadBatchResults(results);
    if (!read.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", read.status().message(),
                                                     "; give another --output, or remove it"));
    }
    done = *std::move(read);
    if (ftruncate(fileno(file_), static_cast<off_t>(done.bytes)) != 0) {
      return Problem(path);
    }
  }
  return std::move(done.custom_ids);
}

absl::Status ResultFile::Append(const Json& line) {
  if (!failure_.ok()) {
    return failure_;
  }
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) {
    failure_ =
        absl::DataLossError(absl::StrCat("cannot write the results: ", std::strerror(errno)));
  }
  return failure_;
}

}  // namespace lamina::cli
