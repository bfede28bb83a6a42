// SPDX-License-Identifier: Apache-2.0
//
// Bounds on what the steps that a tokenizer's file lists may make of a text. The file is a
// stranger's: three steps that each write a thousand characters for one make a billion of one.
//
// Threading: free functions without state.

#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::model {

// Steps of one part of the file: normalizer, pre_tokenizer or decoder. Known files have up to 20.
inline constexpr size_t kPipelineStepsMax = 128;

// Bytes that a text of `bytes` may have after all steps of one part. Unicode's own forms make at
// most 11 of one, and the alphabet of byte-level tokenizers 2.
inline constexpr size_t kGrowthMax = 32;
inline constexpr size_t kGrowthSlackBytes = 256;
constexpr size_t GrownMax(size_t bytes) { return bytes * kGrowthMax + kGrowthSlackBytes; }

// Errors: kInvalidArgument  `bytes` are more than `bytes_max`; names both, and the file as cause.
absl::Status CheckGrowth(size_t bytes, size_t bytes_max);

// `text` with `to` for each `from`; an empty `from` is found nowhere.
// Errors: of CheckGrowth, before anything so large is made.
absl::StatusOr<std::string> ReplaceWithin(size_t bytes_max, absl::string_view text,
                                          absl::string_view from, absl::string_view to);

}  // namespace lamina::model
