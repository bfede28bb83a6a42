// SPDX-License-Identifier: Apache-2.0
//
// ResidentSteps: steps of lanes for what stays on a compute node (recent_tokens.h). Their K and V
// follow from sequence, token, layer and place. Tests of both forms have it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "compute_node/recent_tokens.h"
#include "compute_node/step_layout.h"
#include "kernels/matrix_view.h"
#include "plan/epoch_config.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

class ResidentSteps {
 public:
  static constexpr uint32_t kHeads = 2;
  static constexpr uint32_t kDim = 16;
  static constexpr uint32_t kLayers = 2;
  static constexpr size_t kRow = 3 * kHeads * kDim;  // q, k and v: as many query heads.
  // What a token's row of q, k and v has at a place.
  using RowElement = BFloat16 (*)(plan::SequenceId id, uint32_t token, uint32_t layer, size_t at);

  ResidentSteps(uint32_t lanes, RowElement element) : config_(Config(lanes)), element_(element) {}
  virtual ~ResidentSteps() = default;
  ResidentSteps(const ResidentSteps&) = delete;
  ResidentSteps& operator=(const ResidentSteps&) = delete;

  static plan::EpochConfig Config(uint32_t lanes) {
    return {.lanes = lanes,
            .layers = std::vector(
                kLayers,
                AttentionDescriptor{.query_heads = kHeads, .kv_heads = kHeads, .head_dim = kDim})};
  }

  // Rows of the lane's next step: of each sequence so many tokens from its first one on.
  void Step(uint32_t lane, std::vector<RowRun> runs) {
    uint32_t rows = 0;
    for (RowRun& run : runs) {
      run.first_row = rows;
      rows += run.tokens;
    }
    recent().BeginStep(lane, runs);
    steps_[lane] = {std::move(runs), rows};
  }
  // Slices of the lane's step run, one for each layer.
  void Run(uint32_t lane) {
    const auto& [runs, rows] = steps_[lane];
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<BFloat16> qkv(rows * kRow);
      for (const RowRun& run : runs) {
        for (uint32_t i = 0; i < run.tokens; ++i) {
          for (size_t at = 0; at < kRow; ++at) {
            qkv[(run.first_row + i) * kRow + at] =
                element_(run.sequence, run.first_token + i, layer, at);
          }
        }
      }
      recent().Store(lane, layer, {.data = qkv.data(), .rows = rows, .cols = kRow, .stride = kRow});
    }
  }

 protected:
  const plan::EpochConfig& config() const { return config_; }

 private:
  virtual RecentTokens& recent() = 0;

  const plan::EpochConfig config_;
  const RowElement element_;
  std::map<uint32_t, std::pair<std::vector<RowRun>, uint32_t>> steps_;
};

inline RowRun Tokens(plan::SequenceId id, uint32_t first, uint32_t tokens) {
  return {.sequence = id, .first_token = first, .tokens = tokens};
}

}  // namespace lamina::compute_node
