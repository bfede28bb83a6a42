// SPDX-License-Identifier: Apache-2.0
//
// SpanFile: the spans of ended requests, as OpenTelemetry's JSON, one object a line: what the
// OpenTelemetry collector's otlpjsonfile receiver reads and sends on.
//
// A request is a span `generate` (or `score`), a child of its caller's span if it came with a
// traceparent, with children `queue`, `prefill` and `decode`. Of a caller that does not sample
// nothing is written.
//
// Threading: one thread writes.
// Cost: one write of about 1.5 KB for a request. The file grows; it is only appended to, so it may
// be truncated while it is open.

#pragma once

#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/request_record.h"

namespace lamina::coordinator {

class SpanFile {
 public:
  // Errors: kInvalidArgument  the file cannot be opened for writing; says why.
  static absl::StatusOr<std::unique_ptr<SpanFile>> Open(const std::string& path,
                                                        const Clock& clock);
  ~SpanFile();
  SpanFile(const SpanFile&) = delete;
  SpanFile& operator=(const SpanFile&) = delete;

  // The first write that fails is logged; requests go on without.
  void Write(const RequestRecord& record);

 private:
  SpanFile(std::FILE* file, std::string path, const Clock& clock)
      : file_(file), path_(std::move(path)), clock_(clock) {}

  // The line of a record; `offset` leads from the clock's times to nanoseconds since 1970.
  std::string LineOf(const RequestRecord& record, Nanos offset);
  std::string RandomHex(int digits);

  std::FILE* const file_;
  const std::string path_;
  const Clock& clock_;
  std::mt19937_64 random_{std::random_device{}()};
  bool failed_ = false;
};

}  // namespace lamina::coordinator
