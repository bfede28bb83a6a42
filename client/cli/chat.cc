// SPDX-License-Identifier: Apache-2.0
//
// lamina chat: a conversation. The client keeps the history and sends all of it each time.
#include <unistd.h>

#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/generation_json.h"
#include "client/cli/input.h"
#include "client/cli/wait_notice.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] = R"(  lamina chat
  lamina chat --system "Answer in one sentence." --temperature 0.7
  printf 'Name a river.\nAnd another.\n' | lamina chat --json
In the conversation: /reset forgets it, /quit or Ctrl-D leaves, Ctrl-C stops the answer.
Exit status: 0 left, 1 an answer of a piped conversation failed, 2 wrong usage, 130 Ctrl-C between two
answers of a piped one.
)";

struct ChatFlags {
  client::GenerateOptions options;
  std::optional<std::string> system;
};

// What Ctrl-C stops: the answer in progress, if there is one; else the program, where no prompt
// says how to leave.
class CurrentAnswer {
 public:
  explicit CurrentAnswer(bool prompt) : prompt_(prompt) {}

  client::Cancellation Begin() {
    const absl::MutexLock lock(&mu_);
    current_.emplace();
    return *current_;
  }
  void End() {
    const absl::MutexLock lock(&mu_);
    current_.reset();
  }
  void Interrupt() {
    const absl::MutexLock lock(&mu_);
    if (current_.has_value()) {
      current_->Cancel();
    } else if (!prompt_) {
      _exit(kExitInterrupted);
    } else {
      std::fputs("\n(/quit leaves)\n> ", stdout);
      std::fflush(stdout);
    }
  }

 private:
  const bool prompt_;
  absl::Mutex mu_;
  std::optional<client::Cancellation> current_ ABSL_GUARDED_BY(mu_);
};

class Conversation {
 public:
  Conversation(const ChatFlags& flags, client::Client& client, bool json, CurrentAnswer& current)
      : flags_(flags), client_(client), json_(json), current_(current) {
    Reset();
  }

  void Reset() {
    messages_.clear();
    if (flags_.system.has_value()) {
      messages_.push_back({.role = "system", .content = *flags_.system});
    }
  }

  // Errors: the request's; the question is then taken back, so that it can be asked again.
  absl::Status Ask(const std::string& question) {
    messages_.push_back({.role = "user", .content = question});
    client::GenerateOptions options = flags_.options;
    options.prompt = messages_;
    if (const absl::Status status = CheckUtf8(options); !status.ok()) {
      messages_.pop_back();
      return status;
    }
    const client::Cancellation cancellation = current_.Begin();
    Choice answer;
    WaitNotice notice("thinking");
    absl::Status status = client_.Generate(
        options,
        [&](const client::Chunk& chunk) {
          if (chunk.prompt_tokens_done > 0) {
            notice.PromptDone(chunk.prompt_tokens_done, chunk.prompt_tokens);
            return;
          }
          notice.End();
          answer.Add(chunk);
          if (!json_) {
            std::fwrite(chunk.text.data(), 1, chunk.text.size(), stdout);
            std::fflush(stdout);
            if (OutputFailed()) {
              cancellation.Cancel();  // Nobody reads on.
            }
          }
        },
        cancellation);
    notice.End();
    current_.End();
    if (cancellation.cancelled()) {
      answer.finish_reason = client::FinishReason::kCancelled;
      status = absl::OkStatus();
    }
    Conclude(status, answer);
    return status;
  }

 private:
  void Conclude(const absl::Status& status, const Choice& answer) {
    if (!json_ && (status.ok() || !answer.text.empty())) {
      std::printf("\n");
      std::fflush(stdout);
    }
    const std::string cut = CutNote(answer, flags_.options.max_tokens);
    if (!json_ && status.ok() && !cut.empty()) {
      std::fprintf(stderr, "%s\n", Terminal::Error().Dim(cut).c_str());
    }
    if (!status.ok()) {
      messages_.pop_back();
      return;
    }
    if (json_) {
      PrintJson(ToJson(answer, 0));
    }
    messages_.push_back({.role = "assistant", .content = answer.text});
  }

  const ChatFlags& flags_;
  client::Client& client_;
  const bool json_;
  CurrentAnswer& current_;
  std::vector<client::ChatMessage> messages_;
};

int Converse(Conversation& conversation, bool prompt) {
  int exit_status = kExitOk;
  std::string line;
  for (;;) {
    if (prompt) {
      std::printf("%s", Terminal::Output().Bold("> ").c_str());
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line)) {
      break;
    }
    const absl::string_view question = absl::StripAsciiWhitespace(line);
    if (question == "/quit") {
      break;
    }
    if (question == "/reset") {
      conversation.Reset();
      continue;
    }
    if (question.empty()) {
      continue;
    }
    if (const absl::Status status = conversation.Ask(std::string(question)); !status.ok()) {
      const int failed = Fail(status);
      exit_status = prompt ? exit_status : failed;  // A person has seen it and goes on.
    }
    if (OutputFailed()) {
      return kExitFailed;
    }
  }
  return exit_status;
}

int Run(Invocation& invocation, const ChatFlags& flags) {
  const bool prompt = StdinIsTerminal() && Terminal::Output().interactive() && !invocation.json;
  CurrentAnswer current(prompt);
  const auto client = Connect(invocation);
  if (!client.ok()) {
    return Fail(client.status());
  }
  const Interrupts::Scoped scoped(*invocation.interrupts, [&current] { current.Interrupt(); });
  if (prompt) {
    std::printf(
        "%s\n",
        Terminal::Output().Dim("/reset forgets, /quit leaves, Ctrl-C stops an answer").c_str());
  }
  Conversation conversation(flags, **client, invocation.json, current);
  const int exit_status = Converse(conversation, prompt);
  if (prompt) {
    std::printf("\n");
  }
  return exit_status;
}

}  // namespace

void AddChatCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(app, invocation, "chat", "Talk with the model", kExamples);
  const auto flags = std::make_shared<ChatFlags>();
  AddServerFlag(command, invocation);
  AddGenerationFlags(command, flags->options);
  command->add_option("--system", flags->system, "A system message before the conversation")
      ->type_name("TEXT");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
