// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_heads (HeadInfer, headinfer.txt 3 and A.3): the memory of a device to which K and V
// come by groups of heads. K and V of B sequences of S tokens, in L layers of H KV heads with D_h
// elements of e bytes each, take
//
//   Size_kv = 2 B L S (H D_h) e                        (4)
//
// and a device of M bytes holds a part of them:
//
//   Size_on = alpha Size_kv <= M                       (5), (6)
//   alpha   = H_on / (L H)                             (10)
//   S_on    = 2 B S D_h e, with H_on = 1               (11)
//
// A group of g heads is attended in one buffer while the next one comes into the other, and prompts
// are worked on in chunks of C tokens, whose activations are there together. Appendix A.3 adds up,
// with D elements of a row and I of the MLP's hidden layer:
//
//   M_total = M_weights + 2 g S_on + C (D + 2 I) e     (A.3)
//
// The group is the largest that fits, for each piece has a fixed cost on the link; one head where
// contexts are long. plan::PiecesOf(), which both sides of the link use, cuts pieces by the same
// rule, with windows in place of the memory; a test holds the groups equal.
//
// Threading: pure functions.   Units: bytes.

#pragma once

#include <cstdint>

namespace lamina::policy {

struct HeadsProfile {
  uint64_t weights = 0;      // M_weights
  uint32_t kv_heads = 0;     // H
  uint64_t head_token = 0;   // 2 D_h e: K and V of one token in one head.
  uint64_t head_open = 0;    // Where they are INT8: those of the open block in one head, as bf16.
  uint64_t chunk_token = 0;  // What activations take of each token of a chunk.
  uint32_t buffers = 2;      // Groups that have room at once.
};

// What is held on the device at once.
struct HeadsUse {
  uint64_t tokens = 0;        // B S
  uint32_t group = 0;         // g
  uint64_t chunk_tokens = 0;  // C
};

struct HeadsMemory {
  uint64_t weights = 0;
  uint64_t kv = 0;
  uint64_t activations = 0;
  uint64_t total() const { return weights + kv + activations; }
  friend bool operator==(const HeadsMemory&, const HeadsMemory&) = default;
};

// (D + 2 I) e: what the paper takes the activations of a token for.
struct ActivationWidths {
  uint64_t row = 0;     // D
  uint64_t hidden = 0;  // I
  uint64_t element_bytes = 2;
};
uint64_t ActivationBytes(const ActivationWidths& widths);

// Equation (A.3).
HeadsMemory MemoryOf(const HeadsProfile& profile, const HeadsUse& use);

// The largest g in [1, H] that fits into so many bytes with the tokens and the chunk of `use`.
// 0: not even one head fits.   Requires: tokens whose K and V take bytes.
uint32_t LargestGroup(const HeadsProfile& profile, uint64_t budget, const HeadsUse& use);

// The largest power of two C that fits into so many bytes with the tokens and the group of `use`.
// 0: not even one token fits.   Requires: profile.chunk_token > 0.
uint64_t LargestChunk(const HeadsProfile& profile, uint64_t budget, const HeadsUse& use);

}  // namespace lamina::policy
