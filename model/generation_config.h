// SPDX-License-Identifier: Apache-2.0
//
// What lies next to a model and says how to chat with it: the sampling that its makers advise, and
// a chat template in a file.
//
// Threading: pure.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace lamina::model {

// Absent where the makers advise nothing.
struct SamplingDefaults {
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;

  friend bool operator==(const SamplingDefaults&, const SamplingDefaults&) = default;
};

// Reads generation_config.json in the folder `path`; gives nothing for a model that is one file, or
// without that file. `do_sample` is not looked at.
// Errors: kInvalidArgument  not JSON, or a value out of its range: names file and field.
absl::StatusOr<SamplingDefaults> ReadSamplingDefaults(const std::string& path);

// Errors: kInvalidArgument  larger than 1 MiB, or empty. Those of MappedFile::Open.
absl::StatusOr<std::string> ReadChatTemplate(const std::string& path);

}  // namespace lamina::model
