// SPDX-License-Identifier: Apache-2.0
//
// What every window begins with (docs/formats/windows.md), and the check of it.
//
// Threading: plain values.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace lamina::plan {

struct WindowHeader {
  static constexpr uint32_t kMagic = 0x314e414c;  // "LAN1"
  uint32_t magic = kMagic;
  uint32_t lane = 0;
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t rows = 0;     // Decode rows.
  uint32_t kv_rows = 0;  // Chunk tokens.
  uint32_t sender = 0;   // Index of the sending node in its role.
  // Part windows: which reduction of the lane the part is of, from 1. Else 0.
  uint64_t reduction = 0;
  // Windows of K and V: DataChecksum of what follows; 0: the sender has made none.
  uint64_t data_checksum = 0;
  // Windows of K and V, and of token sets: of all bytes before it (Seal). Else 0.
  uint64_t header_checksum = 0;
};
static_assert(sizeof(WindowHeader) == 64);
static_assert(offsetof(WindowHeader, header_checksum) == 56);

// A sampled token, as replicas tell each other.
struct TokenEntry {
  uint64_t sequence = 0;
  uint32_t position = 0;
  int32_t token = 0;
  uint32_t finish = 0;  // FinishReason
  uint32_t reserved = 0;
};
static_assert(sizeof(TokenEntry) == 24);

// Bytes [begin, end) of a window, counted from its header.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// Compares a received header with what the plan says. Errors: kAborted  older (epoch or unit):
// refuse and count; kInternal  anything else that differs: a fault of the sender.
absl::Status CheckHeader(const WindowHeader& header, const WindowHeader& expected);

// Gives a header its checksum, once all else is in it. Cost: seven words are mixed, some 20 ns.
void Seal(WindowHeader& header);
// Whether a header has the bytes that it was sealed with. Any one word that changed is found for
// certain, the checksum too. Errors: kInternal  it was changed on its way, or never sealed; the
// message names the unit of `expected`, since the header's own may be what changed.
absl::Status CheckSeal(const WindowHeader& header, const WindowHeader& expected);

}  // namespace lamina::plan
