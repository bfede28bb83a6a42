// SPDX-License-Identifier: Apache-2.0
//
// lamina generate: text for one prompt, streamed.
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/choice_fields.h"
#include "client/cli/command.h"
#include "client/cli/generation_json.h"
#include "client/cli/input.h"
#include "client/cli/wait_notice.h"
#include "common/status_macros.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] =
    R"(  lamina generate "The capital of France is" --max-tokens 20
  lamina generate --chat --prompt "Why is the sky blue?" --temperature 0.7 --seed 1
  lamina generate --prompt-file story.txt --n 4 --temperature 1 --json
  lamina generate --chat --prompt "Describe a cat." --json-schema cat.json
  echo "Hello" | lamina generate --prompt - --logprobs 5 --json
Exit status: 0 done, 1 the request failed, 2 wrong usage, 130 Ctrl-C.
)";

struct GenerateFlags {
  PromptFlags prompt;
  client::GenerateOptions options;
  bool chat = false;
  std::optional<std::string> system;
  std::optional<std::string> json_schema;  // Files.
  std::optional<std::string> grammar;
  std::optional<std::string> regex;
  std::string early_stopping = "false";
};

void PrintUsage(const client::Usage& usage, client::FinishReason reason) {
  if (!Terminal::Error().interactive()) {
    return;
  }
  const absl::string_view name = client::FinishReasonName(reason);
  std::fprintf(
      stderr, "%s\n",
      Terminal::Error()
          .Dim(absl::StrFormat("[%d prompt tokens; %d tokens, the first after %.0f ms, then "
                               "%.1f ms each; %s; seed %d]",
                               usage.prompt_tokens, usage.completion_tokens, usage.ttft_ms,
                               usage.tpot_ms, name, usage.seed))
          .c_str());
}

// Prints what arrives: text as it comes for one choice, finished choices otherwise.
class GenerateOutput {
 public:
  GenerateOutput(bool json, uint32_t choices) : json_(json), stream_(!json && choices == 1) {}

  void Add(const client::Chunk& chunk) {
    Choice& choice = choices_[chunk.index];
    choice.Add(chunk);
    if (stream_) {
      std::fwrite(chunk.text.data(), 1, chunk.text.size(), stdout);
      std::fflush(stdout);
    }
    if (choice.finish_reason != client::FinishReason::kNotFinished) {
      Finish(chunk.index, choice);
      choices_.erase(chunk.index);
    }
  }

  // Ends what has begun and not finished, after Ctrl-C.
  void Interrupt() {
    for (auto& [index, choice] : choices_) {
      choice.finish_reason = client::FinishReason::kCancelled;
      Finish(index, choice);
    }
    choices_.clear();
  }

  // After an error: text on the screen gets its line end.
  void Break() {
    if (stream_ && !choices_.empty()) {
      std::printf("\n");
    }
  }

 private:
  void Finish(uint32_t index, const Choice& choice) {
    if (json_) {
      PrintJson(ToJson(choice, index));
      return;
    }
    if (!stream_) {
      std::printf("%s\n", Terminal::Output().Bold(absl::StrCat("--- choice ", index)).c_str());
      std::fwrite(choice.text.data(), 1, choice.text.size(), stdout);
    }
    std::printf("\n");
    std::fflush(stdout);
    PrintUsage(choice.usage, choice.finish_reason);
  }

  const bool json_;
  const bool stream_;
  std::map<uint32_t, Choice> choices_;
};

absl::StatusOr<OutputForm> ReadForm(const GenerateFlags& flags) {
  if (flags.regex.has_value()) {
    return OutputForm{OutputForm::Kind::kRegex, *flags.regex};
  }
  if (!flags.json_schema.has_value() && !flags.grammar.has_value()) {
    return OutputForm{};
  }
  const bool schema = flags.json_schema.has_value();
  LAMINA_ASSIGN_OR_RETURN(std::string text,
                          ReadTextFile(schema ? *flags.json_schema : *flags.grammar));
  return OutputForm{schema ? OutputForm::Kind::kJsonSchema : OutputForm::Kind::kGrammar,
                    std::move(text)};
}

BeamStop BeamStopOf(const std::string& word) {
  return word == "true"    ? BeamStop::kFull
         : word == "never" ? BeamStop::kNever
                           : BeamStop::kHeuristic;
}

absl::Status PrepareOptions(GenerateFlags& flags) {
  flags.options.beams.early_stopping = BeamStopOf(flags.early_stopping);
  LAMINA_ASSIGN_OR_RETURN(flags.options.form, ReadForm(flags));
  absl::StatusOr<client::Prompt> prompt = ReadPrompt(flags.prompt);
  if (!prompt.ok()) {
    return prompt.status();
  }
  flags.options.prompt = *std::move(prompt);
  if (flags.chat || flags.system.has_value()) {
    std::vector<client::ChatMessage> messages;
    if (flags.system.has_value()) {
      messages.push_back({.role = "system", .content = *flags.system});
    }
    messages.push_back({.role = "user", .content = std::get<std::string>(flags.options.prompt)});
    flags.options.prompt = std::move(messages);
  }
  return CheckUtf8(flags.options);
}

int Run(Invocation& invocation, GenerateFlags& flags) {
  if (const std::string wrong = CheckPromptFlags(flags.prompt); !wrong.empty()) {
    return FailUsage("generate", wrong);
  }
  if (flags.prompt.tokens.has_value() && (flags.chat || flags.system.has_value())) {
    return FailUsage("generate", "--chat and --system need text, not --tokens");
  }
  if (const absl::Status status = PrepareOptions(flags); !status.ok()) {
    return Fail(status);
  }
  const auto client = Connect(invocation);
  if (!client.ok()) {
    return Fail(client.status());
  }
  const client::Cancellation cancellation;
  const Interrupts::Scoped scoped(*invocation.interrupts,
                                  [cancellation] { cancellation.Cancel(); });
  GenerateOutput output(invocation.json, flags.options.n.value_or(1));
  WaitNotice notice("waiting for the first token");
  const absl::Status status = (*client)->Generate(
      flags.options,
      [&](const client::Chunk& chunk) {
        if (chunk.prompt_tokens_done > 0) {
          notice.PromptDone(chunk.prompt_tokens_done, chunk.prompt_tokens);
          return;
        }
        notice.End();
        output.Add(chunk);
        if (OutputFailed()) {
          cancellation.Cancel();  // Nobody reads on.
        }
      },
      cancellation);
  notice.End();
  if (OutputFailed()) {
    return kExitFailed;
  }
  if (cancellation.cancelled()) {
    output.Interrupt();
    return kExitInterrupted;
  }
  if (!status.ok()) {
    output.Break();
    return Fail(status);
  }
  return kExitOk;
}

// Adds the flags that say how many answers there are, and how long each is at least. Returns
// --best-of.
CLI::Option* AddChoiceFlags(CLI::App* command, GenerateFlags& flags) {
  command
      ->add_option("--min-tokens", flags.options.min_tokens,
                   "Tokens before it may end (default: 0)")
      ->transform(Whole(0, UINT32_MAX))
      ->type_name("N");
  command->add_option("--n", flags.options.n, "Choices, 1 to 128 (default: 1)")
      ->transform(Whole(1, client::kChoicesMax))
      ->type_name("N");
  return command
      ->add_option("--best-of", flags.options.best_of,
                   "Generate so many and print the --n of the highest mean log-probability")
      ->transform(Whole(1, client::kChoicesMax))
      ->type_name("N");
}

// Adds the flags of a beam search, which cannot go with `best_of`.
void AddBeamFlags(CLI::App* command, GenerateFlags& flags, CLI::Option* best_of) {
  constexpr char kBeams[] = "Beam search";
  CLI::Option* beams = command
                           ->add_option("--beam-width", flags.options.beams.width,
                                        "Search with so many beams, 1 to 10, and print the --n "
                                        "best answers (default: no beam search)")
                           ->transform(Whole(1, BeamParams::kWidthMax))
                           ->type_name("N")
                           ->group(kBeams)
                           ->excludes(best_of);
  command
      ->add_option("--length-penalty", flags.options.beams.length_penalty,
                   "An answer of n tokens is worth its log-probability / n^P (default: 1)")
      ->type_name("P")
      ->group(kBeams)
      ->needs(beams);
  command
      ->add_option("--early-stopping", flags.early_stopping,
                   "When a search ends, as in transformers: true (once as many answers as beams "
                   "have ended), false (and what goes on is no better) or never (and nothing can "
                   "become better) (default: false)")
      ->check(CLI::IsMember({"true", "false", "never"}))
      ->type_name("WHEN")
      ->group(kBeams)
      ->needs(beams);
}

// Adds the flags that give the output a form.
void AddFormFlags(CLI::App* command, GenerateFlags& flags) {
  constexpr char kForm[] = "Form of the output (at most one)";
  CLI::Option* schema =
      command->add_option("--json-schema", flags.json_schema, "A file with a JSON schema")
          ->type_name("FILE")
          ->group(kForm);
  CLI::Option* regex =
      command
          ->add_option("--regex", flags.regex, "A regular expression that the whole output matches")
          ->type_name("RE")
          ->group(kForm)
          ->excludes(schema);
  command
      ->add_option("--grammar", flags.grammar,
                   "A file with a grammar in EBNF, as XGrammar reads it, with the rule root")
      ->type_name("FILE")
      ->group(kForm)
      ->excludes(schema)
      ->excludes(regex);
}

}  // namespace

void AddGenerateCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "generate", "Generate text for a prompt, streamed", kExamples);
  const auto flags = std::make_shared<GenerateFlags>();
  AddServerFlag(command, invocation);
  AddPromptFlags(command, flags->prompt, /*with_tokens=*/true);
  command->add_option("TEXT", flags->prompt.text, "The prompt, as --prompt gives it")
      ->excludes("--prompt");
  AddGenerationFlags(command, flags->options);
  CLI::Option* best_of = AddChoiceFlags(command, *flags);
  AddBeamFlags(command, *flags, best_of);
  command
      ->add_option(
          "--logprobs", flags->options.logprobs,
          "Log-probability of each token, and of K alternatives, 0 to 20; seen with --json")
      ->transform(Whole(0, 20))
      ->type_name("K");
  command
      ->add_option("--request-id", flags->options.request_id,
                   "A name for the request (default: made)")
      ->type_name("ID");
  command
      ->add_option("--priority", flags->options.priority,
                   "Higher is sooner, where the cluster serves by priority (default: 0)")
      ->transform(Whole(INT32_MIN, INT32_MAX))
      ->type_name("N");
  AddFormFlags(command, *flags);
  command->add_flag("--chat", flags->chat, "Ask as a user of the model's chat form");
  command
      ->add_option("--system", flags->system, "A system message for the chat form; implies --chat")
      ->type_name("TEXT");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
