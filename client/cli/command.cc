// SPDX-License-Identifier: Apache-2.0
#include "client/cli/command.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/resumption.h"
#include "common/host_port.h"
#include "common/sampling_params.h"
#include "common/status_macros.h"
#include "common/trace_context.h"

namespace lamina::cli {
namespace {

// Marks a status as wrong usage of the command.
constexpr char kUsagePayload[] = "lamina/usage";
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSmallest = 1e-6;  // What "above 0" means for a flag.

// On a terminal the answer may stand in this line.
void TellOfTheWait() {
  std::fprintf(stderr,
               "%slamina: the coordinator is gone; its journal has what runs: waiting up to %.0f s "
               "for it to come back\n",
               Terminal::Error().interactive() ? "\n" : "",
               ToSeconds(client::Resumption::kWaitMax));
}

}  // namespace

CLI::App* AddCommand(CLI::App& app, Invocation& invocation, const std::string& name,
                     const std::string& purpose, const std::string& examples) {
  CLI::App* command = app.add_subcommand(name, purpose);
  command->footer(absl::StrCat("Examples:\n", examples));
  command->add_flag("--json", invocation.json, "Write JSON on stdout, for programs");
  return command;
}

void AddServerFlag(CLI::App* command, Invocation& invocation) {
  command
      ->add_option("--server", invocation.server,
                   "The coordinator (default: LAMINA_SERVER, else 127.0.0.1:7400)")
      ->type_name("HOST:PORT");
  command
      ->add_option(
          "--tls-ca", invocation.tls_ca,
          "Speak TLS, and believe certificates of this CA, a PEM file (default: LAMINA_TLS_CA)")
      ->type_name("FILE");
}

void AddDrawFlags(CLI::App* command, client::GenerateOptions& o) {
  command->add_option("--temperature", o.temperature, "0 is greedy (default: 0)")
      ->check(Within(0, kInfinity))
      ->type_name("T");
  command->add_option("--top-k", o.top_k, "Draw from the K likeliest tokens; 0: all (default: 0)")
      ->transform(Whole(0, UINT32_MAX))
      ->type_name("K");
  command
      ->add_option("--top-p", o.top_p,
                   "Draw from the smallest set of tokens with this mass, in (0, 1] (default: 1)")
      ->check(Within(kSmallest, 1))
      ->type_name("P");
}

void AddGenerationFlags(CLI::App* command, client::GenerateOptions& o) {
  command
      ->add_option("--max-tokens", o.max_tokens,
                   absl::StrCat("Tokens to generate at most (default: to the sequence limit, at "
                                "most ",
                                kMaxTokensDefault, ")"))
      ->transform(Whole(1, 1 << 20))
      ->type_name("N");
  AddDrawFlags(command, o);
  command
      ->add_option("--min-p", o.min_p,
                   "Drop tokens below this share of the likeliest, in [0, 1] (default: 0)")
      ->check(Within(0, 1))
      ->type_name("P");
  command
      ->add_option("--repetition-penalty", o.repetition_penalty,
                   "Above 1 discourages tokens seen before (default: 1)")
      ->check(Within(kSmallest, kInfinity))
      ->type_name("R");
  command
      ->add_option("--presence-penalty", o.presence_penalty,
                   "Taken from tokens in the output, in [-2, 2] (default: 0)")
      ->check(Within(-2, 2))
      ->type_name("X");
  command
      ->add_option("--frequency-penalty", o.frequency_penalty,
                   "Taken for every occurrence in the output, in [-2, 2] (default: 0)")
      ->check(Within(-2, 2))
      ->type_name("X");
  command
      ->add_option("--seed", o.seed,
                   "The same seed gives the same text (default: drawn and reported)")
      ->transform(Whole(0, UINT64_MAX))
      ->type_name("N");
  command
      ->add_option("--stop", o.stop,
                   "Text that ends the answer and is left out of it; repeat for more (up to 16)")
      ->take_all()
      ->expected(1, 16)
      ->allow_extra_args(false)
      ->type_name("TEXT");
  command->add_flag("--ignore-eos", o.ignore_eos, "Go on after the model's end token");
  AddPolicyFlags(command, o.policy, o.kv);
}

void AddPolicyFlags(CLI::App* command, std::string& policy, std::string& kv) {
  // The coordinator judges the name; bytes that are no text would not get there.
  const CLI::Validator printable(
      [](std::string& text) -> std::string {
        const bool all = std::all_of(text.begin(), text.end(), [](char c) {
          return absl::ascii_isprint(static_cast<unsigned char>(c));
        });
        return all ? ""
                   : "the name has bytes that are no printable ASCII; see `lamina status` for what "
                     "the cluster prepares";
      },
      "");
  command
      ->add_option("--policy", policy,
                   "By which KV policy it is served, one that the cluster prepares; see `lamina "
                   "status` (default: the cluster's own)")
      ->check(printable)
      ->type_name("NAME");
  command
      ->add_option("--kv", kv,
                   "The form of its K and V, bf16 or int8, where the cluster prepares several "
                   "(default: the cluster's own)")
      ->check(printable)
      ->type_name("NAME");
}

CLI::Validator Within(double least, double most) {
  // The empty description keeps the bounds out of the type names of --help.
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        double value = 0;
        if (absl::SimpleAtod(text, &value) && value >= least && value <= most) {
          return "";
        }
        return std::isinf(most)
                   ? absl::StrFormat("'%s' is not a number of at least %.15g", text, least)
                   : absl::StrFormat("'%s' is not a number in [%.15g, %.15g]", text, least, most);
      },
      "");
}

CLI::Validator Whole(int64_t least, uint64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        const bool negative = absl::StartsWith(text, "-");
        const absl::string_view digits = absl::string_view(text).substr(negative ? 1 : 0);
        uint64_t size = 0;
        const bool number = !digits.empty() &&
                            std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
                            absl::SimpleAtoi(digits, &size);
        const bool fits = negative
                              ? least < 0 && size <= static_cast<uint64_t>(-least)
                              : size <= most && (least < 0 || size >= static_cast<uint64_t>(least));
        if (!number || !fits) {
          return absl::StrCat("'", text, "' is not a whole number in [", least, ", ", most, "]");
        }
        text = absl::StrCat(negative ? "-" : "", size);  // Without leading zeros.
        return "";
      },
      "");
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect(const Invocation& invocation, Nanos wait) {
  if (!IsServerAddress(invocation.server)) {
    return UsageError(
        absl::StrCat("'", invocation.server,
                     "' is not an address like 127.0.0.1:7400; see --server and LAMINA_SERVER"));
  }
  const TlsFiles tls = {.ca = invocation.tls_ca};
  LAMINA_RETURN_IF_ERROR(CheckTlsFiles(tls));
  client::ConnectOptions options{.server = invocation.server, .tls = tls, .on_wait = TellOfTheWait};
  if (wait > 0) {
    options.connect_deadline = std::min(options.connect_deadline, wait);
    options.call_deadline = std::min(options.call_deadline, wait);
  }
  return client::Client::Connect(options);
}

int Fail(const absl::Status& status) {
  const std::string_view message(status.message().data(), status.message().size());
  std::string words = message.empty() ? status.ToString() : std::string(message);
  // Who sent what cannot be need not search logs for it.
  if (const auto id = status.GetPayload(kRequestIdHeader);
      id.has_value() && !absl::IsInvalidArgument(status)) {
    words += " (request " + std::string(*id) + ")";
  }
  std::fprintf(stderr, "%s %s\n", Terminal::Error().Red("lamina: error:").c_str(), words.c_str());
  return status.GetPayload(kUsagePayload).has_value() ? kExitUsage : kExitFailed;
}

absl::Status UsageError(absl::string_view message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

int FailUsage(const std::string& command, const std::string& message) {
  std::fprintf(stderr, "%s %s\nTry: lamina %s --help\n",
               Terminal::Error().Red("lamina: error:").c_str(), message.c_str(), command.c_str());
  return kExitUsage;
}

void PrintJson(const Json& value) {
  std::printf("%s\n", value.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

bool OutputFailed() { return std::ferror(stdout) != 0; }

int FinishOutput(int exit_status) {
  std::string problem = "the output could not be written";
  if (std::fflush(stdout) != 0) {
    absl::StrAppend(&problem, ": ", std::strerror(errno));
  } else if (!OutputFailed()) {  // A write that failed before left only this mark.
    return exit_status;
  }
  const int failed = Fail(absl::DataLossError(problem));
  return exit_status == kExitOk ? failed : exit_status;
}

}  // namespace lamina::cli
