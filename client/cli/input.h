// SPDX-License-Identifier: Apache-2.0
//
// Prompts as people give them: --prompt TEXT, --prompt - (stdin), --prompt-file F, --tokens 1,2,3.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/client.h"

namespace lamina::cli {

// `has_value` tells which of the flags were given, so that an empty prompt is one.
struct PromptFlags {
  std::optional<std::string> text;
  std::optional<std::string> file;
  std::optional<std::string> tokens;
};

// Adds --prompt and --prompt-file; with_tokens adds --tokens.
void AddPromptFlags(CLI::App* command, PromptFlags& flags, bool with_tokens);

// What is wrong with their use, or an empty string: exactly one must be given.
std::string CheckPromptFlags(const PromptFlags& flags);

// Requires: CheckPromptFlags() found nothing.
// Errors: kNotFound, kInvalidArgument: no such file, not a token list, more than 64 MiB.
absl::StatusOr<client::Prompt> ReadPrompt(const PromptFlags& flags);

// gRPC carries no text but UTF-8, and says of other bytes only that it failed.
// Errors: kInvalidArgument: the first byte of `text` that is none, and what to do. `what` names it.
absl::Status CheckUtf8(absl::string_view what, absl::string_view text);
// Check every text of a prompt, and of a request.
absl::Status CheckUtf8(const client::Prompt& prompt);
absl::Status CheckUtf8(const client::GenerateOptions& options);

// What one message may carry.
inline constexpr size_t kTextBytesMax = size_t{64} << 20;
// Loads and batches, which are not sent as they stand: ShareGPT's dialogues have 670 MB.
inline constexpr size_t kLoadBytesMax = size_t{2} << 30;

// "-" is stdin. Errors: kNotFound; kInvalidArgument: more than `bytes_max`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max = kTextBytesMax);

// Numbers between commas, spaces or brackets: what `tokenize` prints can be given back.
absl::StatusOr<std::vector<TokenId>> ParseTokens(absl::string_view text);

}  // namespace lamina::cli
