// SPDX-License-Identifier: Apache-2.0
//
// The tokenizer of a Hugging Face directory: tokenizer.json if there, else tokenizer.model; what
// the small files next to them say about bos, eos, the ends of a generation and the chat template.

#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::model {

// Errors: kNotFound         neither tokenizer.json nor tokenizer.model.
//         kDataLoss         a file that is not JSON; names it.
//         kInvalidArgument  a setting of a wrong type, or one that contradicts another.
//         kUnimplemented    a part that we do not know; lists the known ones.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadHuggingFaceTokenizer(const std::string& directory);

}  // namespace lamina::model
