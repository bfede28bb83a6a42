// SPDX-License-Identifier: Apache-2.0
//
// KeptKv: K and V of tokens that this node has, so that they do not come: it puts them into the
// pieces that have those of the others (plan::FetchRun::kept). They were made from token numbers
// for the step (token_rows.h), or are here since the step that made them (resident_kv.h).
//
// Threading: the data thread.

#pragma once

#include <cstdint>

#include "compute_node/lane.h"
#include "compute_node/made_kv.h"
#include "compute_node/step_layout.h"
#include "plan/fetch_split.h"

namespace lamina::compute_node {

class KeptKv {
 public:
  virtual ~KeptKv() = default;

  // Copies K and V of these tokens of the run's sequence, in order, in the layer that the lane's
  // rows attend in. Requires: they are among those that this has in the lane's step.
  virtual void Fill(const Lane& lane, uint32_t layer, const RowRun& run,
                    const plan::TokenSpan& tokens, const MadeKv::Into& into) const = 0;
};

}  // namespace lamina::compute_node
