// SPDX-License-Identifier: Apache-2.0
//
// StreamingHeads: the KV heads of a model that stream under policy fetch_heads: their query heads
// attend to the first `sink` tokens and the last `window` ones alone (headinfer.txt, Appendix D;
// DuoAttention). A row at position p sees tokens [0, sink) and (p - window, p].
//
// Threading: plain values.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lamina {

// The most tokens that a sink or a window may have.
inline constexpr uint32_t kStreamingTokensMax = uint32_t{1} << 24;

struct StreamingHeads {
  uint32_t sink = 0;
  uint32_t window = 0;
  // The KV heads of each layer that stream, ascending. Shape: [layers]. Empty: no head streams.
  std::vector<std::vector<uint32_t>> layers = {};

  bool Streams(uint32_t layer, uint32_t head) const {
    return std::binary_search(layers[layer].begin(), layers[layer].end(), head);
  }
  // How many heads stream, over all layers.
  uint32_t count() const {
    size_t heads = 0;
    for (const std::vector<uint32_t>& layer : layers) {
      heads += layer.size();
    }
    return static_cast<uint32_t>(heads);
  }
  bool empty() const { return count() == 0; }

  // Names all that outputs depend on, in a word without spaces: how many heads, sink and window,
  // and a 64-bit FNV-1a of the heads. Two sets with one word are one set.
  std::string Word() const {
    uint64_t hash = 0xcbf29ce484222325;
    const auto add = [&hash](uint64_t value) {
      for (int byte = 0; byte < 8; ++byte) {
        hash = (hash ^ (value >> (8 * byte) & 0xff)) * 0x100000001b3;
      }
    };
    for (const std::vector<uint32_t>& layer : layers) {
      add(layer.size());
      for (const uint32_t head : layer) {
        add(head);
      }
    }
    return absl::StrCat(count(), "_heads-sink_", sink, "-window_", window, "-",
                        absl::Hex(hash, absl::kZeroPad16));
  }

  friend bool operator==(const StreamingHeads&, const StreamingHeads&) = default;
};

}  // namespace lamina
