// SPDX-License-Identifier: Apache-2.0
//
// In which arithmetic the nodes of an epoch attend. Pure, as forming an epoch is.

#pragma once

#include <string>

#include "common/attention_arithmetic.h"
#include "coordinator/engine_options.h"
#include "coordinator/epoch_forming.h"

namespace lamina::coordinator {

struct AttentionChoice {
  ClusterAttention arithmetic;  // Never kAuto.
  std::string words;            // "pairs: every node is fast at them"
};

// As the cluster file says; with auto pairs or tiles for prompts and decode, if every node that
// takes part is fast at the same and rows attend where K and V lie, else canonical for both: a row
// must have the same bits wherever it attends.
AttentionChoice ChooseAttention(const EngineOptions& options, const EpochMembers& members);

}  // namespace lamina::coordinator
