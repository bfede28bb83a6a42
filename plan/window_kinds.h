// SPDX-License-Identifier: Apache-2.0
//
// The kinds of windows that an epoch has: whose region they lie in, who writes them, how many take
// turns, how large they are, and which signal words they have. plan/window_layout.cc fills the
// table; a new path or stream adds a row to it.
//
// Threading: plain values.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace lamina::plan {

// What windows are for. Windows of one receiver lie in its region in this order, and so do their
// signal words. Probes (transport/link_probe.h) are words without windows, and no lane's.
enum class WindowKind : uint8_t {
  kQuery,       // From compute to memory nodes: a unit's rows.
  kQueryProbe,  // From compute to memory nodes: measuring of links.
  // From compute to memory nodes: words alone, that say how many pieces of K and V have been used
  // up.
  kFetchCredit,
  // From compute to memory nodes: the tokens whose K and V are wanted (token_sets.h). Path sparse
  // only.
  kTokenSets,
  kReply,  // From memory to compute nodes: a unit's outputs.
  // From memory to compute nodes: pieces of K and V (fetch_pieces.h). Without path fetch there are
  // none.
  kFetched,
  kContext,       // Between compute nodes: a slice's context. With one compute node there are none.
  kToken,         // Between compute nodes: a step's sampled tokens.
  kPart,          // Between shards: parts of sums. Without shards there are none.
  kReplyProbe,    // From memory to compute nodes: measuring of links.
  kComputeProbe,  // Between compute nodes: measuring of links.
};
inline constexpr size_t kWindowKinds = 11;

// One kind of windows in the regions of its receivers.
struct WindowGroup {
  absl::string_view name = "";  // For people; empty for probes.
  bool to_memory_node = false;  // Receivers are memory nodes; else compute nodes.
  uint32_t senders = 0;
  uint32_t lanes = 1;
  // Windows of a (sender, lane), which alternate by parity, or by step; those for K and V are one
  // ring of parts (fetch_ring.h).
  uint32_t turns = 0;
  double payload_max = 0;  // Bytes behind the header.
  // Fixed by the groups before:
  size_t window_bytes = 0;
  size_t first_byte = 0;
  uint32_t first_word = 0;

  uint32_t words() const { return senders * lanes; }
  size_t bytes() const { return size_t{words()} * turns * window_bytes; }
  size_t words_end() const { return first_word + words(); }
  size_t bytes_end() const { return first_byte + bytes(); }
};

}  // namespace lamina::plan
