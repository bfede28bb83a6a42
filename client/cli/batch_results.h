// SPDX-License-Identifier: Apache-2.0
//
// ResultFile: the results of `lamina batch`, appended line by line to a file that may have those of
// an earlier run.
//
// Threading: one thread.

#pragma once

#include <cstdio>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command.h"

namespace lamina::cli {

class ResultFile {
 public:
  ResultFile() = default;
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  // Opens it behind its whole lines, and returns which requests these answer. What is no file, as a
  // pipe, has none. Once.
  // Errors: kFailedPrecondition  another command appends to it.
  //         kInvalidArgument     it cannot be opened, or has other contents.
  absl::StatusOr<std::set<std::string>> Open(const std::string& path);

  // Requires: it is open.
  // Errors: kDataLoss  the line, or one before it, could not be written. A part of that one may be
  //                    there: nothing is put behind it, since both would be one line.
  absl::Status Append(const Json& line);

 private:
  std::FILE* file_ = nullptr;
  absl::Status failure_;  // Why a line could not be written.
};

}  // namespace lamina::cli
