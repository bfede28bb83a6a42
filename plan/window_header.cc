// SPDX-License-Identifier: Apache-2.0
#include "plan/window_header.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lamina::plan {

absl::Status CheckHeader(const WindowHeader& header, const WindowHeader& expected) {
  const auto differs = [](const char* field, uint64_t found, uint64_t wanted) {
    return absl::StrCat("window header: ", field, " ", found, " where the plan says ", wanted);
  };
  if (header.magic != WindowHeader::kMagic) {
    return absl::InternalError(differs("magic", header.magic, WindowHeader::kMagic));
  }
  if (header.epoch < expected.epoch) {
    return absl::AbortedError(differs("epoch", header.epoch, expected.epoch));
  }
  if (header.epoch == expected.epoch && header.lane == expected.lane &&
      std::pair(header.step, header.layer) < std::pair(expected.step, expected.layer)) {
    return absl::AbortedError(differs("step", header.step, expected.step));
  }
  if (header.epoch != expected.epoch) {
    return absl::InternalError(differs("epoch", header.epoch, expected.epoch));
  }
  if (header.lane != expected.lane) {
    return absl::InternalError(differs("lane", header.lane, expected.lane));
  }
  if (header.step != expected.step) {
    return absl::InternalError(differs("step", header.step, expected.step));
  }
  if (header.layer != expected.layer) {
    return absl::InternalError(differs("layer", header.layer, expected.layer));
  }
  if (header.rows != expected.rows) {
    return absl::InternalError(differs("rows", header.rows, expected.rows));
  }
  if (header.kv_rows != expected.kv_rows) {
    return absl::InternalError(differs("kv_rows", header.kv_rows, expected.kv_rows));
  }
  if (header.reduction != expected.reduction) {
    return absl::InternalError(differs("reduction", header.reduction, expected.reduction));
  }
  if (header.sender != expected.sender) {
    return absl::InternalError(differs("sender", header.sender, expected.sender));
  }
  return absl::OkStatus();
}

}  // namespace lamina::plan
