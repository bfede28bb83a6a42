// SPDX-License-Identifier: Apache-2.0
#include "plan/window_header.h"

#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plan/mix_bits.h"

namespace lamina::plan {
namespace {

// Each step is a bijection of what has been mixed so far, and of the word.
uint64_t ChecksumOf(const WindowHeader& header) {
  std::array<uint64_t, offsetof(WindowHeader, header_checksum) / sizeof(uint64_t)> words;
  std::memcpy(words.data(), &header, sizeof(words));
  uint64_t checksum = sizeof(words);
  for (const uint64_t word : words) {
    checksum = MixBits(checksum ^ word);
  }
  return checksum;
}

}  // namespace

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

void Seal(WindowHeader& header) { header.header_checksum = ChecksumOf(header); }

absl::Status CheckSeal(const WindowHeader& header, const WindowHeader& expected) {
  const uint64_t checksum = ChecksumOf(header);
  if (header.header_checksum == checksum) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("window of lane ", expected.lane, " step ", expected.step,
                                          " layer ", expected.layer,
                                          ": its header changed on the way, the checksum is ",
                                          checksum, " and was ", header.header_checksum));
}

}  // namespace lamina::plan
