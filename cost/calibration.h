// SPDX-License-Identifier: Apache-2.0
//
// Calibration: what a device measured of itself (docs/formats/calibration.md), as curves and fitted
// lines.
//
// Threading: pure.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cost/fitted_line.h"
#include "cost/time_curve.h"

namespace lamina::cost {

// One slice in the middle of a model, over rows.
struct SliceCurve {
  std::string model;
  double weights = 0;       // Elements of its matrices, with every expert.
  double weights_read = 0;  // Those that a step of one row reads.
  double row_flops = 0;     // Operations of its matrices for one row.
  FittedLine rows;
  TimeCurve times;  // Straight lines between the same points.
};

// The LM head, over the rows that are sampled.
struct HeadCurve {
  double weights = 0;  // Elements of its matrix.
  TimeCurve times;
};

// Decode attention of one layer, over its rows and the bytes of K and V that they read.
struct AttentionCurve {
  std::string kernel;
  double head_bytes = 0;  // K and V of one token in a layer.
  double group = 0;       // Query heads of a KV head.
  FittedPlane bytes;
};

// Attention of one layer over whole prompts on the node that computes them, over operations
// (PromptAttentionFlops()).
struct PromptAttentionCurve {
  double token_flops = 0;  // Operations of a query token for each token that it attends to.
  FittedLine flops;
};

struct Calibration {
  std::string device;
  std::string date;
  std::vector<SliceCurve> slices;
  std::vector<HeadCurve> heads;
  std::vector<AttentionCurve> attentions;
  std::vector<PromptAttentionCurve> prompt_attentions;
  // What a layer's rows wait for memory nodes in addition to attention, over the rows of a lane
  // that is alone. Without points it was not measured.
  FittedLine exchange;
  // What a step waits for at its border where several lanes hide all other waits, over the lane's
  // rows. May be empty: it was not measured.
  TimeCurve border;
};

// Operations of causal attention in one layer over a prompt of `tokens` that begins a sequence:
// every token attends to half of the others in the mean. `token_flops`: 4 * query heads * head
// size.
inline double PromptAttentionFlops(double token_flops, double tokens) {
  return token_flops * tokens * tokens / 2;
}

// Errors: kInvalidArgument  not such a file, another format, or a value that cannot be; names it.
absl::StatusOr<Calibration> ParseCalibration(absl::string_view text, absl::string_view origin);

}  // namespace lamina::cost
