// SPDX-License-Identifier: Apache-2.0
//
// Whether dense layers multiply bf16 in the tiles of AMX on this host, and if not, why
// (tile_choice.h).

#pragma once

#include "absl/status/status.h"

namespace lamina::kernels::cpu {

// CheckTiles() of the host that this runs on. Looks once, and takes some 20 ms then.
const absl::Status& TilesOfThisHost();

}  // namespace lamina::kernels::cpu
