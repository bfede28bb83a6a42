// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/dense_tiles.h"

#include "kernels/cpu/onednn_probe_internal.h"
#include "kernels/cpu/tile_choice.h"

namespace lamina::kernels::cpu {
namespace {

class ThisHost final : public TileHost {
 public:
  bool HasInstructions() const override { return HasTileInstructions(); }
  bool IsHeldBack() const override { return !MayUseTiles(); }
  absl::Status Permission() override { return TilePermission(); }
  absl::Status Probe() override { return ProbeTiles(MultiplyPanelTiles); }
};

}  // namespace

const absl::Status& TilesOfThisHost() {
  static const absl::Status* const status = [] {
    ThisHost host;
    return new absl::Status(CheckTiles(host));
  }();
  return *status;
}

}  // namespace lamina::kernels::cpu
