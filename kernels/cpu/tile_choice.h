// SPDX-License-Identifier: Apache-2.0
//
// Whether bf16 is multiplied in the tiles of AMX on a host, and if not, why: by dense layers
// (dense_tiles.h), and by attention (tile_attention.cc).
//
// It follows from what the processor and the system are, never from a measurement, since it decides
// the bits of products (pair_products.h).

#pragma once

#include "absl/status/status.h"
#include "kernels/cpu/tile_products.h"

namespace lamina::kernels::cpu {

// What decides. Tests have hosts of their own.
class TileHost {
 public:
  virtual ~TileHost() = default;
  // Whether the processor has them, whatever the system does with them.
  virtual bool HasInstructions() const = 0;
  // Whether the system keeps tiles for threads at all; else nobody may be granted any.
  virtual bool SystemKeepsTiles() const = 0;
  // Whether oneDNN is told to leave them alone, and so are we (DNNL_MAX_CPU_ISA).
  virtual bool IsHeldBack() const = 0;
  virtual absl::Status Permission() = 0;
  // Whether products have the bits of EmulatedTiles. Only asked where the others say yes.
  virtual absl::Status Probe() = 0;
};

// Errors: kUnimplemented       there are no tiles, or nobody is to use them: nothing to tell.
//         kFailedPrecondition  there are, and something is wrong: speed is lost; says what.
absl::Status CheckTiles(TileHost& host);

// Multiplies panels of all the shapes that the loop knows, of moderate values, and one of values of
// all sizes, and compares the bits with EmulatedTiles'; NaN need only be NaN.
// Errors: kInternal  names the first output that differs.
absl::Status ProbeTiles(MultiplyTiles multiply);

}  // namespace lamina::kernels::cpu
