// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding: its settings in both kinds of file, and the angles that follow.

#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/architectures/json_config_internal.h"
#include "model/gguf/gguf_file.h"
#include "model/graph.h"
#include "model/model_config.h"

namespace lamina::model {

// Reads "rope_parameters" or the older "rope_scaling" with "rope_theta". Keeps what the caller has
// put into `rope` where the file says nothing. config.positions_max must be known.
// Errors: kUnimplemented    another scaling than linear, llama3 and yarn, or one for each layer
//                           type.
//         kInvalidArgument  a setting is missing or impossible.
absl::Status ReadRope(const JsonConfig& json, ModelConfig& config);

// Reads "<prefix>.rope.*" and the tensor rope_freqs.weight.
absl::Status ReadRope(const GgufFile& file, const std::string& prefix, ModelConfig& config);

// Fills frequencies, magnitude, rotary_dim and heads of the op. The arithmetic is float32 in the
// order that transformers uses (modeling_rope_utils.py), so that angles agree at large positions.
// Requires: config is checked; rotary_dim may be 0.
RopeOp MakeRope(const ModelConfig& config, RopeLayout layout);

}  // namespace lamina::model
