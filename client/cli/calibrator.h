// SPDX-License-Identifier: Apache-2.0
//
// Calibrator: puts steady loads on a running cluster, one after the other, and makes points of a
// calibration file of what its nodes counted meanwhile: each is the median of three windows. A load
// that the cluster cannot carry is left out, with the reason on stderr.
//
// Threading: one thread; each call blocks until its load has ended.
// See:       docs/formats/calibration.md.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/calibration_points.h"
#include "client/client.h"
#include "cost/model_shape.h"

namespace lamina::cli {

struct CalibratorOptions {
  absl::Duration measured = absl::Seconds(3);        // What each load is measured for.
  absl::Duration window_min = absl::Seconds(1);      // It is measured in windows.
  absl::Duration settle = absl::Milliseconds(1500);  // Counters come twice a second.
  // Until all rows of a load decode.
  absl::Duration first_tokens_max = absl::Seconds(120);
  // Where some rows of a load wait, and all others have decoded for so long, no more will.
  absl::Duration no_more_after = absl::Seconds(5);
};

// Whether this is the shape of the model that the cluster serves, as far as it says what it serves.
// Errors: kInvalidArgument with the numbers of both.
absl::Status CheckServed(const cost::ModelShape& shape, const client::ModelInfo& served);

class Calibrator {
 public:
  // All but the options must outlive it.
  Calibrator(client::Client& client, const client::ModelInfo& model, const cost::ModelShape& shape,
             const CalibratorOptions& options);

  // So many rows decode at once, behind prompts of `context` tokens. Errors: those of requests.
  absl::Status Decode(uint32_t rows, uint32_t context);

  // Prompts of so many tokens, one after the other. Errors: those of requests.
  absl::Status Prompts(uint32_t tokens);

  const CalibrationPoints& points() const { return points_; }

 private:
  // A load that the cluster could not carry: with no fewer rows and no shorter prompts none is.
  struct TooMuch {
    uint32_t rows = 0;
    uint32_t context = 0;
    std::string why;
  };

  // What keeps the cluster from such rows, by what it says and has shown so far; empty: nothing.
  absl::StatusOr<std::string> WhyNot(uint32_t rows, uint32_t context) const;

  client::Client& client_;
  const client::ModelInfo& model_;
  const cost::ModelShape& shape_;
  const CalibratorOptions options_;
  // Prompts are those of every calibration; none of them finds K and V of an earlier one's.
  const std::string salt_;
  std::vector<TooMuch> too_much_;
  CalibrationPoints points_;
};

}  // namespace lamina::cli
