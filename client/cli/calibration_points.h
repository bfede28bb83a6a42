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
  double tokens = 0;  // Tokens of context over all rows of a call, or of a whole prompt.
  double seconds = 0;
};

struct CalibrationPoints {
  std::vector<CalibrationPoint> slices;             // One layer's slice, by rows.
  std::vector<CalibrationPoint> heads;              // The LM head, by rows.
  std::vector<CalibrationPoint> attentions;         // One layer's decode attention.
  std::vector<CalibrationPoint> prompt_attentions;  // One layer's attention of a prompt, by tokens.
  std::vector<CalibrationPoint> exchanges;          // One layer's wait in addition to attention.
  std::vector<CalibrationPoint> borders;            // A step's wait where lanes hide all others.
};

// Appends the points of the windows of one load: of each that all windows have, the median by
// seconds; where windows differ in what they have, all points.
void AppendMedians(const std::vector<CalibrationPoints>& windows, CalibrationPoints& points);

// What nodes counted between two statuses while a load ran, as points of the file.
class CalibrationWindow {
 public:
  // The statuses and the shape must outlive this.
  CalibrationWindow(const client::ClusterStatus& before, const client::ClusterStatus& after,
                    const cost::ModelShape& shape)
      : before_(before), after_(after), shape_(shape) {}

  // While `rows` rows decoded in each of `lanes` lanes. Slices are the parts of compute nodes that
  // are not attention, the LM head or a wait. The LM head is measured where one compute node runs
  // whole steps, the exchange where also one lane runs alone, since lanes hide it from each other.
  // What a lane then still waits for is at the border between two steps, and measured where several
  // lanes run whose slices take longer than attention. Appends nothing of what was not run.
  void AppendDecode(double rows, double lanes, CalibrationPoints& points) const;

  // While `prompts` prompts of `tokens` tokens ran one after the other. Their slices count where
  // each ran in one chunk, as nodes' units say. Returns whether it did.
  bool AppendPrompts(double tokens, double prompts, CalibrationPoints& points) const;

 private:
  struct Change;

  std::vector<Change> Changes() const;
  bool RanInOneChunk(const std::vector<Change>& changes, double prompts) const;

  const client::ClusterStatus& before_;
  const client::ClusterStatus& after_;
  const cost::ModelShape& shape_;
};

// The file: shapes, points, and lines fitted to those of several sizes, with their R2; what each
// node reads of its memory and the links, as they were measured when nodes started and when the
// epoch began; and the kernel of attention as the status names it. `device` names what was
// measured.
Json CalibrationToJson(const std::string& device, const std::string& date,
                       const cost::ModelShape& shape, const CalibrationPoints& points,
                       const client::ClusterStatus& status);

}  // namespace lamina::cli
