// SPDX-License-Identifier: Apache-2.0
#include "client/cli/usage.h"

#include <cstdio>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "common/string_distance.h"

namespace lamina::cli {
namespace {

// What excludes a flag is said by its group, and defaults by its description.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (option->get_type_size() != 0 && option->nonpositional()) {
      absl::StrAppend(&text, " ", option->get_type_name());
    }
    return absl::StrCat(text, option->get_required() ? " REQUIRED" : "");
  }
};

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// The mistake in words: the library's message, or ours where we know more.
std::string Describe(const CLI::App& app, const CLI::App& chosen, const CLI::ParseError& error) {
  std::vector<std::string> extras = chosen.remaining();
  if (extras.empty() && &chosen != &app) {
    extras = app.remaining();
  }
  const bool no_command = &chosen == &app;
  if (extras.empty()) {
    return no_command && error.get_name() == "RequiredError" ? "no command given" : error.what();
  }
  std::vector<std::string> known;
  if (absl::StartsWith(extras[0], "-")) {
    known = FlagNames(chosen);
  } else if (no_command) {
    known = CommandNames(app);
  }
  const std::string word = extras[0].substr(0, extras[0].find('='));
  const std::string nearest = NearestName(word, known);
  const char* kind = absl::StartsWith(word, "-") ? "flag" : no_command ? "command" : "argument";
  return absl::StrCat("unknown ", kind, " '", word, "'",
                      nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"));
}

}  // namespace

std::shared_ptr<CLI::Formatter> MakeHelpFormatter() { return std::make_shared<HelpFormatter>(); }

int ExplainUsage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    std::ostringstream out;
    app.exit(error, out, out);  // Help or version.
    std::fputs(out.str().c_str(), stdout);
    return kExitOk;
  }
  const std::vector<CLI::App*> parsed = const_cast<CLI::App&>(app).get_subcommands();
  const CLI::App& chosen = parsed.empty() ? app : *parsed.front();
  std::fprintf(stderr, "%s %s\nTry: lamina %s--help\n",
               Terminal::Error().Red("lamina: error:").c_str(),
               Describe(app, chosen, error).c_str(),
               parsed.empty() ? "" : absl::StrCat(chosen.get_name(), " ").c_str());
  return kExitUsage;
}

}  // namespace lamina::cli
