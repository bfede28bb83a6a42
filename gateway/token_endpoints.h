// SPDX-License-Identifier: Apache-2.0
//
// /tokenize and /detokenize, in vLLM's shapes.

#pragma once

#include <memory>
#include <string>

#include "gateway/backend.h"
#include "gateway/model_directory.h"
#include "gateway/response_writer.h"

namespace lamina::gateway {

// {"model"?, "prompt" | "messages", "add_special_tokens"?, "return_token_strs"?} to
// {"count", "max_model_len", "tokens", "token_strs"}.
std::shared_ptr<RequestHandler> AnswerTokenize(const std::string& body, Backend& backend,
                                               ModelDirectory& models, ResponseWriter& writer);

// {"model"?, "tokens"} to {"prompt"}.
std::shared_ptr<RequestHandler> AnswerDetokenize(const std::string& body, Backend& backend,
                                                 ModelDirectory& models, ResponseWriter& writer);

}  // namespace lamina::gateway
