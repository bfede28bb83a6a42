// SPDX-License-Identifier: Apache-2.0
//
// lamina score: how likely the model finds a text, token by token.
#include <cstdint>

#include "client/cli/command.h"
#include "client/cli/input.h"
#include "client/cli/wait_notice.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] = R"(  lamina score --prompt-file text.txt
  lamina score --tokens 1,2,3 --json
  lamina score --prompt-file text.txt --decode-from 768
Log-probabilities are natural logarithms, one for each token but the first.
)";

int Run(Invocation& invocation, const PromptFlags& flags, const client::ScoreOptions& options) {
  if (const std::string wrong = CheckPromptFlags(flags); !wrong.empty()) {
    return FailUsage("score", wrong);
  }
  const absl::StatusOr<client::Prompt> prompt = ReadPrompt(flags);
  if (!prompt.ok()) {
    return Fail(prompt.status());
  }
  if (const absl::Status status = CheckUtf8(*prompt); !status.ok()) {
    return Fail(status);
  }
  const auto client = Connect(invocation);
  if (!client.ok()) {
    return Fail(client.status());
  }
  WaitNotice notice("scoring");
  const absl::StatusOr<client::ScoreResult> result = (*client)->Score(
      *prompt, [&notice](uint32_t done, uint32_t tokens) { notice.PromptDone(done, tokens); },
      options);
  notice.End();
  if (!result.ok()) {
    return Fail(result.status());
  }
  if (invocation.json) {
    Json json = {{"tokens", result->tokens},
                 {"logprobs", result->logprobs},
                 {"nll_sum", result->nll_sum},
                 {"perplexity", result->perplexity}};
    if (!result->lossy.empty()) {
      json["lossy"] = result->lossy;
    }
    PrintJson(json);
    return kExitOk;
  }
  std::printf("tokens      %zu\nnll_sum     %.4f\nperplexity  %.4f\n", result->tokens.size(),
              result->nll_sum, result->perplexity);
  if (!result->lossy.empty()) {
    std::printf("lossy       %s\n", result->lossy.c_str());
  }
  return kExitOk;
}

}  // namespace

void AddScoreCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(app, invocation, "score",
                                 "Log-probability of a text, and its perplexity", kExamples);
  const auto flags = std::make_shared<PromptFlags>();
  AddServerFlag(command, invocation);
  AddPromptFlags(command, *flags, /*with_tokens=*/true);
  const auto options = std::make_shared<client::ScoreOptions>();
  command
      ->add_option("--decode-from", options->decode_from,
                   "Tokens from this one on go through decode steps, one a step, as if they had "
                   "been sampled; those before them are the prompt")
      ->transform(Whole(0, UINT32_MAX))
      ->type_name("N");
  AddPolicyFlags(command, options->policy, options->kv);
  command->callback([&invocation, flags, options] {
    invocation.run = [&invocation, flags, options] { return Run(invocation, *flags, *options); };
  });
}

}  // namespace lamina::cli
