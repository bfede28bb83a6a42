// SPDX-License-Identifier: Apache-2.0
//
// The inner loop of our own linear layer in tiles of AMX (tiles.h).
//
// Strips of panels are tiles as they lie (panel_task.h): 16 steps of a strip are 16 rows of a line.
// Activations and sums are loaded where they are.
//
// Determinism: each output starts at 0, takes one TDPBF16PS for each 16 steps in order, as
// EmulatedTiles defines it, then the bias by an f32 addition, where there is one. So an output's
// bits depend on its row and its weights alone, and are neither those of f32 multiply-adds nor
// those of pairs.

#pragma once

#include "absl/status/status.h"
#include "common/dtype.h"
#include "kernels/cpu/panel_task.h"
#include "kernels/cpu/tiles.h"

namespace lamina::kernels::cpu {

// Up to so many rows read each weight once; the steps of a panel need not be cut for them.
inline constexpr size_t kTileRowsOnce = 2 * kTileRows;

// Words of bf16 times rows of bf16.
using MultiplyTiles = void (*)(const PanelTask<BFloat16>& task);

// Whether this processor has tiles and their products of bf16, whatever the system does with them,
// and this build has the loops.
bool ProcessorHasTiles();

// Whether it has, and the system keeps tiles for threads, which Linux does since 5.16. Elsewhere
// their instructions are illegal.
bool HasTileInstructions();

// Whether this processor has products of INT8 in tiles, which oneDNN takes no tiles without.
bool ProcessorHasInt8Tiles();

// Asks the system for the tiles, which it keeps for the threads of a process only when asked. Asks
// once, and always says the same. Errors: the system's.
absl::Status TilePermission();

// By the processor's tiles, which are configured here and given back: nothing of them stays with
// the thread. Requires: HasTileInstructions(), TilePermission() is OK, and the task's steps are
// whole tiles.
void MultiplyPanelTiles(const PanelTask<BFloat16>& task);

// By EmulatedTiles. Requires: the task's steps are whole tiles.
void MultiplyPanelEmulatedTiles(const PanelTask<BFloat16>& task);

}  // namespace lamina::kernels::cpu
