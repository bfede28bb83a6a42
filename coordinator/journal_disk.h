// SPDX-License-Identifier: Apache-2.0
//
// JournalDisk: where the bytes of a journal are. Tests have one that is full.
//
// Threading: one thread at a time.

#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::coordinator {

class JournalDisk {
 public:
  virtual ~JournalDisk() = default;
  // The whole file; empty where there is none. It is nobody else's for as long as this lives.
  // Errors: kFailedPrecondition  it is somebody else's, or no regular file.
  virtual absl::StatusOr<std::string> Read() = 0;
  // The file has these bytes, and no others, from now on; on error it is as before.
  // Blocks until they are durable.
  virtual absl::Status Replace(absl::string_view bytes) = 0;
  // Requires: Replace() was called, and succeeded.
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Blocks until what was appended is durable.
  virtual absl::Status Sync() = 0;
  virtual void Remove() = 0;
};

// A file of its user's alone (mode 0600). Errors name the call, the path and the reason.
std::unique_ptr<JournalDisk> MakeJournalFile(std::string path);

}  // namespace lamina::coordinator
