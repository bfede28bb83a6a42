// SPDX-License-Identifier: Apache-2.0
//
// tokenizer.json, the file of Hugging Face's tokenizers library, part by part. A part of a type
// that we do not know is kUnimplemented and names the known types.
//
// Threading: free functions without state.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/json_internal.h"

namespace lamina::model {

// How the name of a token turns into bytes.
struct TokenDecoding {
  bool byte_level = false;     // Names are spelled in the alphabet of byte_alphabet.h.
  bool byte_fallback = false;  // "<0x41>" is a byte.
  std::vector<std::pair<std::string, std::string>> replacements;
  bool strip_first_space = false;
};

// Each takes the part's JSON, or nullptr when the file has none.
absl::StatusOr<Normalizer> ParseNormalizer(const Json* json);
absl::StatusOr<PreTokenizer> ParsePreTokenizer(const Json* json);
absl::StatusOr<TokenDecoding> ParseDecoder(const Json* json);
// Puts the special tokens around a single text into the settings.
absl::Status ParsePostProcessor(const Json* json, TokenizerSettings* settings);

struct TokenizerJson {
  BpePipeline pipeline;
  TokenizerSettings settings;  // The vocabulary and what the post-processor adds; no bos or eos.
};

// `text` is the content of the file.
absl::StatusOr<TokenizerJson> ParseTokenizerJson(absl::string_view text, absl::string_view path);

}  // namespace lamina::model
