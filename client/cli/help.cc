// SPDX-License-Identifier: Apache-2.0
//
// lamina help [COMMAND], and lamina completion SHELL: both are made from the commands themselves.
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/command.h"
#include "common/string_distance.h"

namespace lamina::cli {
namespace {

constexpr char kHelpExamples[] = R"(  lamina help
  lamina help generate                  the same as lamina generate --help
)";

constexpr char kCompletionExamples[] = R"(  source <(lamina completion bash)      in ~/.bashrc
  lamina completion zsh > "${fpath[1]}/_lamina"
)";

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Long names; a positional argument has none.
std::vector<std::pair<std::string, std::string>> FlagsOf(const CLI::App& command) {
  std::vector<std::pair<std::string, std::string>> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.emplace_back("--" + name, option->get_description());
    }
  }
  return flags;
}

int Help(const CLI::App& app, const Invocation& invocation, const std::string& name) {
  const CLI::App* found = name.empty() ? &app : nullptr;
  std::vector<std::string> names;
  for (const CLI::App* command : CommandsOf(app)) {
    names.push_back(command->get_name());
    found = command->get_name() == name ? command : found;
  }
  if (found == nullptr) {
    const std::string nearest = NearestName(name, names);
    return FailUsage(
        "help",
        absl::StrCat("unknown command '", name, "'",
                     nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?")));
  }
  // App::help() would describe the command that was chosen, which is this one.
  const std::string whole = name.empty() ? app.get_name() : app.get_name() + " " + name;
  const std::string text = app.get_formatter()->make_help(found, whole, CLI::AppFormatMode::Normal);
  if (invocation.json) {
    PrintJson({{"command", name}, {"help", text}});
  } else {
    std::fputs(text.c_str(), stdout);
  }
  return kExitOk;
}

// Quotes a word for a shell; the first colon ends a name of zsh's lists.
std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}
std::string Described(absl::string_view name, absl::string_view description) {
  return Quoted(absl::StrCat(name, ":", absl::StrReplaceAll(description, {{"\n", " "}})));
}

std::string BashScript(const CLI::App& app) {
  std::vector<std::string> names;
  std::string cases;
  for (const CLI::App* command : CommandsOf(app)) {
    names.push_back(command->get_name());
    std::vector<std::string> flags;
    for (const auto& [flag, description] : FlagsOf(*command)) {
      flags.push_back(flag);
    }
    absl::StrAppend(&cases, "    ", command->get_name(),
                    ") flags=", Quoted(absl::StrJoin(flags, " ")), " ;;\n");
  }
  return absl::StrCat(R"(# Completion of lamina for bash; made by lamina completion bash.
_lamina() {
  local commands=)",
                      Quoted(absl::StrJoin(names, " ")), R"(
  local word="${COMP_WORDS[COMP_CWORD]}" flags=''
  case "${COMP_WORDS[1]}" in
)",
                      cases, R"(  esac
  if [[ $COMP_CWORD -eq 1 || ( ${COMP_WORDS[1]} == help && $COMP_CWORD -eq 2 ) ]]; then
    COMPREPLY=($(compgen -W "$commands" -- "$word"))
  elif [[ ${COMP_WORDS[1]} == completion ]]; then
    COMPREPLY=($(compgen -W 'bash zsh' -- "$word"))
  elif [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}
complete -o filenames -F _lamina lamina
)");
}

std::string ZshScript(const CLI::App& app) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : CommandsOf(app)) {
    absl::StrAppend(&commands, "    ", Described(command->get_name(), command->get_description()),
                    "\n");
    absl::StrAppend(&cases, "    ", command->get_name(), ")\n      flags=(\n");
    for (const auto& [flag, description] : FlagsOf(*command)) {
      absl::StrAppend(&cases, "        ", Described(flag, description), "\n");
    }
    absl::StrAppend(&cases, "      ) ;;\n");
  }
  return absl::StrCat(R"(#compdef lamina
# Completion of lamina for zsh; made by lamina completion zsh.
_lamina() {
  local -a commands flags
  commands=(
)",
                      commands, R"(  )
  if (( CURRENT == 2 )) || [[ $words[2] == help ]]; then
    _describe command commands
    return
  fi
  if [[ $words[2] == completion ]]; then
    compadd bash zsh
    return
  fi
  case $words[2] in
)",
                      cases, R"(  esac
  if [[ $words[CURRENT] == -* ]]; then
    _describe flag flags
  else
    _files
  fi
}
# From a folder of $fpath this file is the function's first call, else it is sourced.
if [[ $funcstack[1] == _lamina ]]; then
  _lamina "$@"
else
  compdef _lamina lamina
fi
)");
}

}  // namespace

void AddHelpCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "help", "What a command does, and its flags", kHelpExamples);
  const auto name = std::make_shared<std::string>();
  command->add_option("COMMAND", *name, "Which one; without it, all of them");
  command->callback([&app, &invocation, name] {
    invocation.run = [&app, &invocation, name] { return Help(app, invocation, *name); };
  });
}

void AddCompletionCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(app, invocation, "completion",
                                 "A script that completes commands and flags", kCompletionExamples);
  const auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash or zsh")->required();
  command->callback([&app, &invocation, shell] {
    invocation.run = [&app, &invocation, shell] {
      if (*shell != "bash" && *shell != "zsh") {
        return FailUsage("completion", absl::StrCat("'", *shell, "' is neither bash nor zsh"));
      }
      const std::string script = *shell == "bash" ? BashScript(app) : ZshScript(app);
      if (invocation.json) {
        PrintJson({{"shell", *shell}, {"script", script}});
      } else {
        std::fputs(script.c_str(), stdout);
      }
      return kExitOk;
    };
  });
}

}  // namespace lamina::cli
