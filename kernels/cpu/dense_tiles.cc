// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/dense_tiles.h"

#include <utility>

#include "common/check.h"
#include "kernels/cpu/onednn_probe_internal.h"
#include "kernels/cpu/tile_choice.h"

namespace lamina::kernels::cpu {
namespace {

class ThisHost final : public TileHost {
 public:
  bool HasInstructions() const override { return ProcessorHasTiles(); }
  bool SystemKeepsTiles() const override { return HasTileInstructions(); }
  bool IsHeldBack() const override { return TilesAreHeldBack(); }
  absl::Status Permission() override { return TilePermission(); }
  absl::Status Probe() override { return ProbeTiles(MultiplyPanelTiles); }
};

// Null, but in tests.
const absl::Status* other_host = nullptr;

}  // namespace

const absl::Status& TilesOfThisHost() {
  if (other_host != nullptr) {
    return *other_host;
  }
  static const absl::Status* const status = [] {
    ThisHost host;
    return new absl::Status(CheckTiles(host));
  }();
  return *status;
}

AnswerOfOtherHost::AnswerOfOtherHost(absl::Status answer) : answer_(std::move(answer)) {
  LAMINA_CHECK(!answer_.ok() && other_host == nullptr);
  other_host = &answer_;
}

AnswerOfOtherHost::~AnswerOfOtherHost() { other_host = nullptr; }

}  // namespace lamina::kernels::cpu
