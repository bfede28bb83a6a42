// SPDX-License-Identifier: Apache-2.0
#include "client/cli/input.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "model/tokenizer/utf8.h"

namespace lamina::cli {

void AddPromptFlags(CLI::App* command, PromptFlags& flags, bool with_tokens) {
  constexpr char kGroup[] = "Prompt (one of)";
  command->add_option("--prompt", flags.text, "The text; - reads it from stdin")
      ->type_name("TEXT")
      ->group(kGroup);
  command->add_option("--prompt-file", flags.file, "A file with the text; - is stdin")
      ->type_name("FILE")
      ->group(kGroup);
  if (with_tokens) {
    command->add_option("--tokens", flags.tokens, "Token ids, like 1,2,3; - reads them from stdin")
        ->type_name("IDS")
        ->group(kGroup);
  }
}

std::string CheckPromptFlags(const PromptFlags& flags) {
  const int given = flags.text.has_value() + flags.file.has_value() + flags.tokens.has_value();
  return given == 1   ? ""
         : given == 0 ? "no prompt; give --prompt TEXT or --prompt-file FILE"
                      : "more than one prompt; give one of --prompt, --prompt-file, --tokens";
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max) {
  struct Close {
    void operator()(FILE* file) const {
      if (file != stdin) {
        std::fclose(file);
      }
    }
  };
  const std::unique_ptr<FILE, Close> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot open '", path, "': ", std::strerror(errno)));
  }
  std::string text;
  std::vector<char> buffer(64 << 10);
  size_t count = 0;
  while ((count = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0) {
    text.append(buffer.data(), count);
    if (text.size() > bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "' is larger than ", FormatBytes(bytes_max)));
    }
  }
  if (std::ferror(file.get()) != 0) {
    return absl::NotFoundError(absl::StrCat("cannot read '", path, "': ", std::strerror(errno)));
  }
  return text;
}

absl::StatusOr<std::vector<TokenId>> ParseTokens(absl::string_view text) {
  std::vector<TokenId> tokens;
  for (const absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar(", \t\r\n[]"), absl::SkipEmpty())) {
    TokenId token = 0;
    if (!absl::SimpleAtoi(part, &token) || token < 0) {
      return UsageError(absl::StrCat("'", part, "' is not a token id; write them like 1,2,3"));
    }
    tokens.push_back(token);
  }
  return tokens;
}

absl::Status CheckUtf8(absl::string_view what, absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const model::Utf8Step step = model::ReadUtf8(text.substr(at));
    if (step.state != model::Utf8State::kCharacter) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is not UTF-8: its byte %d is 0x%02x; convert it, as with iconv -f latin1 -t utf-8",
          what, at, static_cast<uint8_t>(text[at])));
    }
    at += step.length;
  }
  return absl::OkStatus();
}

absl::Status CheckUtf8(const client::Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    return CheckUtf8("the prompt", *text);
  }
  if (const auto* messages = std::get_if<std::vector<client::ChatMessage>>(&prompt)) {
    for (const client::ChatMessage& message : *messages) {
      LAMINA_RETURN_IF_ERROR(
          CheckUtf8(absl::StrCat("the ", message.role, " message"), message.content));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckUtf8(const client::GenerateOptions& options) {
  LAMINA_RETURN_IF_ERROR(CheckUtf8(options.prompt));
  for (const std::string& stop : options.stop) {
    LAMINA_RETURN_IF_ERROR(CheckUtf8("--stop", stop));
  }
  LAMINA_RETURN_IF_ERROR(CheckUtf8("the form of the output", options.form.text));
  return CheckUtf8("--request-id", options.request_id);
}

absl::StatusOr<client::Prompt> ReadPrompt(const PromptFlags& flags) {
  if (flags.tokens.has_value()) {
    std::string text = *flags.tokens;
    if (text == "-") {
      LAMINA_ASSIGN_OR_RETURN(text, ReadTextFile("-"));
    }
    LAMINA_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, ParseTokens(text));
    return client::Prompt(std::move(tokens));
  }
  if (flags.file.has_value() || *flags.text == "-") {
    LAMINA_ASSIGN_OR_RETURN(std::string text, ReadTextFile(flags.file.value_or("-")));
    return client::Prompt(std::move(text));
  }
  return client::Prompt(*flags.text);
}

}  // namespace lamina::cli
