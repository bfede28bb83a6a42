// SPDX-License-Identifier: Apache-2.0
#include "client/cli/input.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::cli {
namespace {
constexpr size_t kTextBytesMax = 64 << 20;  // What one message may carry.
}

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

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
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
    if (text.size() > kTextBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "' is larger than ", FormatBytes(kTextBytesMax)));
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
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is not a token id; write them like 1,2,3"));
    }
    tokens.push_back(token);
  }
  return tokens;
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
