// SPDX-License-Identifier: Apache-2.0
//
// From two statuses of a cluster under one steady load to points of a calibration file
// (docs/formats/calibration.md), and from points to the file. Pure.

#pragma once

#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/client.h"
#include "cost/calibration.h"
#include "cost/model_shape.h"

namespace lamina::cli {

struct CalibrationPoint {
  double rows = 0;
  double tokens = 0;  // Attention: tokens of context, over all rows of a call.
  double seconds = 0;
};

struct CalibrationPoints {
  std::vector<CalibrationPoint> slices;
  std::vector<CalibrationPoint> attentions;
};

// What nodes took for a slice of `rows` rows, and for an attention, between the two. Of compute
// nodes the parts that are not attention of prompts, the LM head or a wait; of memory nodes
// attention. `token_bytes`: K and V of a token in one layer. Appends nothing where nothing was run.
void AppendPoints(const client::ClusterStatus& before, const client::ClusterStatus& after,
                  double rows, double token_bytes, CalibrationPoints& points);

// The file: shapes, points, and lines fitted to them with their R2; links as the cluster measured
// them. `device` names what was measured.
Json CalibrationToJson(const std::string& device, const std::string& date,
                       const cost::ModelShape& shape, const CalibrationPoints& points,
                       const client::ClusterStatus& status);

}  // namespace lamina::cli
