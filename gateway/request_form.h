// SPDX-License-Identifier: Apache-2.0
//
// What only the model says of a request: sampling that its makers advise, how it writes calls and
// thoughts, and the form of the output that follows.
//
// Threading: any thread.

#pragma once

#include "absl/status/status.h"
#include "gateway/chat_shape.h"
#include "gateway/completion_request.h"

namespace lamina::gateway {

// Completes `request` for a model.
// Errors: kInvalidArgument  the model cannot do what is asked; names the field.
absl::Status FitToModel(const client::ModelInfo& model, const ChatShape& shape,
                        CompletionRequest& request);

}  // namespace lamina::gateway
