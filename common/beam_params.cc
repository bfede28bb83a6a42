// SPDX-License-Identifier: Apache-2.0
#include "common/beam_params.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace lamina {

absl::Status BeamParams::Validate() const {
  if (width > kWidthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("beam_width is ", width, "; it must be in [1, ", kWidthMax, "]"));
  }
  if (!std::isfinite(length_penalty) || std::abs(length_penalty) > kLengthPenaltyMax) {
    return absl::InvalidArgumentError(absl::StrCat("length_penalty is ", length_penalty,
                                                   "; it must be in [", -kLengthPenaltyMax, ", ",
                                                   kLengthPenaltyMax, "]"));
  }
  return absl::OkStatus();
}

}  // namespace lamina
