// SPDX-License-Identifier: Apache-2.0
//
// /tokenize and /detokenize, in vLLM's shapes.

#pragma once

#include <memory>
#include <string>

#include "gateway/backend.h"
#include "gateway/model_directory.h"
#include "gateway/response_writer.h"
#include "gateway/side_work.h"

namespace lamina::gateway {

// What the endpoints ask; all outlives the answers.
struct TokenServices {
  Backend& backend;
  ModelDirectory& models;
  SideWork& side_work;
};

// {"model"?, "prompt" | "messages", "add_special_tokens"?, "return_token_strs"?} to
// {"count", "max_model_len", "tokens", "token_strs"}.
std::shared_ptr<RequestHandler> AnswerTokenize(std::string body, const TokenServices& services,
                                               ResponseWriter& writer);

// {"model"?, "tokens"} to {"prompt"}.
std::shared_ptr<RequestHandler> AnswerDetokenize(std::string body, const TokenServices& services,
                                                 ResponseWriter& writer);

}  // namespace lamina::gateway
