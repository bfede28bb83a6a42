// SPDX-License-Identifier: Apache-2.0
//
// lamina tokenize, lamina detokenize: text to token ids and back.
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/input.h"
#include "common/status_macros.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::cli {
namespace {

constexpr char kTokenizeExamples[] = R"(  lamina tokenize --prompt "Hello, world"
  lamina tokenize --prompt-file notes.txt --no-special --json
  lamina tokenize --prompt "Hi" --chat --pieces
  lamina tokenize --prompt "Hi" --model models/smollm2-135m-instruct.gguf
With --model it reads the tokenizer from the model's files, and needs no server.
)";
constexpr char kDetokenizeExamples[] = R"(  lamina detokenize --tokens 19556,28,905
  lamina tokenize --prompt "Hello" | lamina detokenize --tokens -
)";

struct TokenizeFlags {
  PromptFlags prompt;
  std::optional<std::string> model;
  bool chat = false;
  bool no_special = false;
  bool pieces = false;
};

absl::StatusOr<client::TokenizeResult> TokenizeHere(const std::string& model,
                                                    const std::string& text, bool add_special) {
  LAMINA_ASSIGN_OR_RETURN(const auto tokenizer, model::LoadTokenizer(model));
  client::TokenizeResult result;
  LAMINA_ASSIGN_OR_RETURN(result.tokens, tokenizer->Encode(text, {.add_special = add_special}));
  for (const TokenId token : result.tokens) {
    result.pieces.emplace_back(tokenizer->TokenName(token));
  }
  return result;
}

absl::StatusOr<client::TokenizeResult> Tokenize(const Invocation& invocation,
                                                const TokenizeFlags& flags) {
  LAMINA_ASSIGN_OR_RETURN(client::Prompt prompt, ReadPrompt(flags.prompt));
  if (flags.model.has_value()) {
    return TokenizeHere(*flags.model, std::get<std::string>(prompt), !flags.no_special);
  }
  if (flags.chat) {
    prompt = std::vector<client::ChatMessage>{
        {.role = "user", .content = std::get<std::string>(prompt)}};
  }
  LAMINA_RETURN_IF_ERROR(CheckUtf8(prompt));
  LAMINA_ASSIGN_OR_RETURN(const auto client, Connect(invocation));
  return client->Tokenize(prompt, !flags.no_special);
}

int RunTokenize(Invocation& invocation, const TokenizeFlags& flags) {
  if (const std::string wrong = CheckPromptFlags(flags.prompt); !wrong.empty()) {
    return FailUsage("tokenize", wrong);
  }
  if (flags.model.has_value() && flags.chat) {
    return FailUsage("tokenize", "--chat needs a server, and --model works without");
  }
  const absl::StatusOr<client::TokenizeResult> result = Tokenize(invocation, flags);
  if (!result.ok()) {
    return Fail(result.status());
  }
  if (invocation.json) {
    Json line = {{"tokens", result->tokens}};
    if (flags.pieces) {
      line["pieces"] = result->pieces;
    }
    PrintJson(line);
  } else if (flags.pieces) {
    for (size_t i = 0; i < result->tokens.size() && i < result->pieces.size(); ++i) {
      std::printf("%8d  %s\n", result->tokens[i], result->pieces[i].c_str());
    }
  } else {
    std::printf("%s\n", absl::StrJoin(result->tokens, ",").c_str());
  }
  return kExitOk;
}

absl::StatusOr<std::string> Detokenize(const Invocation& invocation, const std::string& tokens,
                                       bool skip_special) {
  std::string text = tokens;
  if (text == "-") {
    LAMINA_ASSIGN_OR_RETURN(text, ReadTextFile("-"));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, ParseTokens(text));
  LAMINA_ASSIGN_OR_RETURN(const auto client, Connect(invocation));
  return client->Detokenize(ids, skip_special);
}

int RunDetokenize(Invocation& invocation, const std::string& tokens, bool skip_special) {
  const absl::StatusOr<std::string> text = Detokenize(invocation, tokens, skip_special);
  if (!text.ok()) {
    return Fail(text.status());
  }
  if (invocation.json) {
    PrintJson({{"text", *text}});
  } else {
    std::fwrite(text->data(), 1, text->size(), stdout);  // It may have bytes that are 0.
    std::printf("\n");
  }
  return kExitOk;
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "tokenize", "Text to token ids", kTokenizeExamples);
  const auto flags = std::make_shared<TokenizeFlags>();
  AddServerFlag(command, invocation);
  AddPromptFlags(command, flags->prompt, /*with_tokens=*/false);
  command->add_option("--model", flags->model, "Use this model's tokenizer, without a server")
      ->type_name("PATH");
  command->add_flag("--chat", flags->chat, "As one user message in the model's chat form");
  command->add_flag("--no-special", flags->no_special,
                    "Leave out the tokens that the model puts around a text");
  command->add_flag("--pieces", flags->pieces, "The vocabulary entries too");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return RunTokenize(invocation, *flags); };
  });
}

void AddDetokenizeCommand(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string tokens;
    bool skip_special = false;
  };
  CLI::App* command =
      AddCommand(app, invocation, "detokenize", "Token ids to text", kDetokenizeExamples);
  const auto flags = std::make_shared<Flags>();
  AddServerFlag(command, invocation);
  command->add_option("--tokens", flags->tokens, "Token ids, like 1,2,3; - reads them from stdin")
      ->type_name("IDS")
      ->required();
  command->add_flag("--skip-special", flags->skip_special, "Leave special tokens out");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] {
      return RunDetokenize(invocation, flags->tokens, flags->skip_special);
    };
  });
}

}  // namespace lamina::cli
