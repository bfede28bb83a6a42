// SPDX-License-Identifier: Apache-2.0
//
// The pre-tokenizers that GGUF files only name (tokenizer.ggml.pre), each as the model's own
// tokenizer.json writes it out.
//
// Threading: free functions without state.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pre_tokenizer.h"

namespace lamina::model {

struct NamedPreTokenizer {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool ignore_merges = false;
  bool add_bos = false;  // Unless the file says otherwise.
};

// Errors: kUnimplemented  an unknown name; lists the known ones.
absl::StatusOr<NamedPreTokenizer> MakeNamedPreTokenizer(absl::string_view name);

std::vector<std::string> KnownPreTokenizers();

}  // namespace lamina::model
