// SPDX-License-Identifier: Apache-2.0
//
// StreamingFile: the file that names a model's KV heads which stream under policy fetch_heads
// (docs/formats/streaming_heads.md). It says for which model it was made, so that a file of another
// one is refused and not misread.
//
// Threading: when the coordinator starts.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/streaming_heads.h"
#include "model/model_config.h"

namespace lamina::coordinator {

// The heads that `text` names, of a model with these attention layers; `origin` names it in errors.
// A file that names no heads gives none: all heads then see all tokens.
// Errors: kInvalidArgument  no JSON object of format 1, or an unknown key; another model's name,
//                           layers, KV heads or head_dim; a layer or a head that the model does not
//                           have, or that comes twice. Says what is allowed.
absl::StatusOr<StreamingHeads> ParseStreamingFile(absl::string_view text, absl::string_view origin,
                                                  const model::ModelConfig& model,
                                                  absl::Span<const AttentionDescriptor> layers);

// As above, of a file. Errors: also kInvalidArgument  an empty file, or one of more than 1 MiB;
//                                   kNotFound         no such file.
absl::StatusOr<StreamingHeads> ReadStreamingFile(const std::string& path,
                                                 const model::ModelConfig& model,
                                                 absl::Span<const AttentionDescriptor> layers);

}  // namespace lamina::coordinator
