// SPDX-License-Identifier: Apache-2.0
//
// AttentionPaths: by which ways the rows of an epoch's sequences may attend. An epoch prepares for
// a set of them; each sequence uses one.

#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>

namespace lamina::plan {

enum class AttentionPath : uint8_t {
  kRemote,  // At the memory nodes that hold K and V: q, k, v go out, outputs come back.
  kLocal,   // At the compute node, which holds K and V itself.
  kFetch,   // At the compute node, over K and V that memory nodes send there layer by layer.
  // At the compute node, over the tokens that it chooses for each layer: only their K and V come.
  kSparse,
  // As kFetch, with heads that stream: these attend to the first and the last tokens, of which
  // alone K and V come.
  kStreaming,
  // As kFetch, but the compute node makes K and V of some tokens again: of activations, of which
  // memory nodes keep those of each token that rows of this path store, or of token numbers.
  kRecompute,
  // As kRemote, with K and V as INT8 in slots of that form, next to those of the other paths
  // (docs/adr/0202-a-form-of-kv-is-a-path.md).
  kRemoteInt8,
  // As kFetch, but slots hold a token's activation in place of its K and V, as their numbers say
  // (slot_kinds.h); the compute node makes K and V of these.
  kHybrid,
};

// Whether K and V of rows of this path come to the compute node.
inline bool Fetches(AttentionPath path) {
  return path == AttentionPath::kFetch || path == AttentionPath::kSparse ||
         path == AttentionPath::kStreaming || path == AttentionPath::kRecompute ||
         path == AttentionPath::kHybrid;
}

class AttentionPaths {
 public:
  AttentionPaths() = default;
  AttentionPaths(std::initializer_list<AttentionPath> paths) {
    for (const AttentionPath path : paths) {
      bits_ |= BitOf(path);
    }
  }

  void Add(AttentionPath path) { bits_ |= BitOf(path); }
  bool Has(AttentionPath path) const { return (bits_ & BitOf(path)) != 0; }
  bool empty() const { return bits_ == 0; }
  // The one path of a set of one. Requires: one, that this version knows.
  AttentionPath only() const { return static_cast<AttentionPath>(std::countr_zero(bits_)); }
  // Whether K and V are at memory nodes, with which compute nodes exchange windows.
  bool on_memory_nodes() const { return remote() || fetch(); }
  // Whether rows attend at memory nodes, which reply with outputs.
  bool remote() const { return Has(AttentionPath::kRemote) || Has(AttentionPath::kRemoteInt8); }
  // Whether memory nodes send K and V into windows of the compute node.
  bool fetch() const {
    return Has(AttentionPath::kFetch) || Has(AttentionPath::kSparse) ||
           Has(AttentionPath::kStreaming) || Has(AttentionPath::kRecompute) ||
           Has(AttentionPath::kHybrid);
  }

  // For messages. Bits of paths that this version does not know stay set.
  uint32_t bits() const { return bits_; }
  static AttentionPaths FromBits(uint32_t bits) {
    AttentionPaths paths;
    paths.bits_ = bits;
    return paths;
  }

  friend bool operator==(const AttentionPaths&, const AttentionPaths&) = default;

 private:
  static uint32_t BitOf(AttentionPath path) { return 1u << static_cast<uint32_t>(path); }

  uint32_t bits_ = 0;
};

}  // namespace lamina::plan
