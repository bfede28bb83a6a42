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
// put into `rope` where the file says nothing. config.positions_max must be known, and becomes what
// yarn stretches the original length to where that is more.
// Errors: kUnimplemented    another scaling than linear, llama3, yarn and longrope, or one for each
//                           layer type.
//         kInvalidArgument  a setting is missing or impossible.
absl::Status ReadRope(const JsonConfig& json, ModelConfig& config);

// Reads "<prefix>.rope.*" and the tensor rope_freqs.weight; yarn stretches positions_max where the
// file has the original length.
absl::Status ReadRope(const GgufFile& file, const std::string& prefix, ModelConfig& config);

// The settings under `section`, which is rope_parameters or one of its parts, into `rope`.
absl::Status ReadRopeSection(const JsonConfig& json, const JsonConfig& section,
                             const ModelConfig& config, RopeConfig& rope);

// rotary_dim from "partial_rotary_factor", of the settings or of rope_parameters. Requires:
// head_dim is known. Errors: kInvalidArgument  a share outside [0, 1].
absl::Status ReadRotaryShare(const JsonConfig& json, ModelConfig& config);

// Fills frequencies, magnitude, rotary_dim and heads of the op. The arithmetic is float32 in the
// order that transformers uses (modeling_rope_utils.py), so that angles agree at large positions.
// Requires: config is checked; rotary_dim may be 0.
RopeOp MakeRope(const ModelConfig& config, RopeLayout layout);

// The rope of one layer: none, a window's, or the model's.
RopeOp MakeLayerRope(const ModelConfig& config, uint32_t layer, RopeLayout layout);

}  // namespace lamina::model
