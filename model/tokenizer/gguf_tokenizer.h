// SPDX-License-Identifier: Apache-2.0
//
// The tokenizer that a GGUF file carries in its metadata (tokenizer.ggml.*).

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "model/gguf/gguf_file.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::model {

// `file` is not needed afterwards.
// Errors: kInvalidArgument  keys that are missing or contradict each other; names them.
//         kNotFound         the file has no tokenizer.
//         kUnimplemented    a kind of tokenizer or pre-tokenizer that we do not know; lists the
//                           known ones.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGgufTokenizer(const GgufFile& file);

}  // namespace lamina::model
