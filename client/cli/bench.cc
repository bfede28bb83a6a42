// SPDX-License-Identifier: Apache-2.0
//
// lamina bench: load on a cluster, and how it answers.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench_runner.h"
#include "client/cli/command.h"
#include "client/cli/counted_status.h"
#include "client/cli/input.h"
#include "client/cli/sharegpt.h"
#include "common/remaining_time.h"
#include "common/status_macros.h"
#include "planner/request.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] =
    R"(  lamina bench --concurrency 16 --requests 64 --input-tokens 128 --output-tokens 64
  lamina bench --rate 4 --requests 100 --seed 7 --json
  lamina bench --trace requests.jsonl
  lamina bench --concurrency 16 --temperature 1 --top-p 0.9
  lamina bench --rate 2 --requests 200 --sharegpt dialogues.json --slo ttft=2s,tpot=80ms,at=p95
  lamina bench --concurrency 8 --requests 200 --sharegpt dialogues.json --turns all
--concurrency keeps N requests in flight (closed loop); --rate starts R requests per second at
random, whether the cluster keeps up or not (open loop, Poisson); --trace replays lines of
  {"arrival_s": 0.5, "input_tokens": 128, "output_tokens": 64}
With --turns a conversation counts as one in flight, --rate starts R conversations per second, and
--requests counts turns. Prompts are random token ids, the same for the same --prompt-seed: a
cluster that keeps prefixes has those of an earlier run computed already, and text under the same
--prompt-seed too. Generation is greedy, or drawn as --temperature, --top-k and --top-p say with
seeds that follow from --seed, and goes on to --output-tokens. Times are the client's: ttft from
arrival to first token, tpot the mean per later token, itl between tokens.
Exit status: 0 all answered, 1 some request failed, 2 wrong usage, 130 Ctrl-C.
)";

constexpr char kKindGroup[] = "Load (one of)";

constexpr uint32_t kTurnsMax = 1'000'000;  // As many as requests.

// Bounds what an open loop may leave unanswered on this side.
constexpr uint32_t kOpenLoopInFlightMax = 8192;

struct BenchFlags {
  std::optional<uint32_t> concurrency;
  std::optional<double> rate;
  std::optional<std::string> trace;
  bool skip_bad_lines = false;
  std::string sharegpt;
  uint32_t turns = 1;  // A dialogue has no more.
  std::string slo;
  std::optional<uint64_t> prompt_seed;
  client::GenerateOptions draws;  // --temperature, --top-k, --top-p, --policy and --kv.
  LoadOptions load = {.requests = 32, .input_tokens = 128, .output_tokens = 64};
};

absl::StatusOr<std::vector<Arrival>> TraceArrivals(const BenchFlags& flags) {
  LAMINA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(*flags.trace, kLoadBytesMax));
  std::vector<std::string> bad_lines;
  LAMINA_ASSIGN_OR_RETURN(std::vector<Arrival> arrivals,
                          ParseTrace(text, flags.skip_bad_lines ? &bad_lines : nullptr));
  for (const std::string& line : bad_lines) {
    std::fprintf(stderr, "left out: %s\n", line.c_str());
  }
  return arrivals;
}

// Dialogues' questions as the arrivals' prompts, for as many tokens as their answers have; behind a
// first question the next turns of its dialogue, as far as asked for. Dialogues whose first turn is
// longer than the server takes are left out, and the next ones of the file taken; others end before
// the turn that is. Errors: kCancelled, and those of the file and of the server.
absl::StatusOr<std::vector<Arrival>> DialogueArrivals(const BenchFlags& flags,
                                                      const client::ModelInfo& model,
                                                      std::vector<Arrival> arrivals,
                                                      client::Client& client,
                                                      const client::Cancellation& cancellation) {
  LAMINA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.sharegpt, kLoadBytesMax));
  std::vector<Arrival> used;
  size_t begun = 0;  // Dialogues.
  uint64_t too_long = 0;
  const auto take = [&](const Dialogue& dialogue) -> absl::StatusOr<bool> {
    const size_t first = used.size();
    const size_t turns =
        std::min<size_t>({flags.turns, dialogue.turns.size(), arrivals.size() - first});
    for (size_t turn = 0; turn < turns; ++turn) {
      if (cancellation.cancelled()) {
        return absl::CancelledError("interrupted");
      }
      std::string prompt = PromptOfTurn(dialogue, turn);
      LAMINA_ASSIGN_OR_RETURN(const auto asked, client.Tokenize(prompt, true));
      LAMINA_ASSIGN_OR_RETURN(const auto said, client.Tokenize(dialogue.turns[turn].answer, false));
      const auto input = static_cast<uint32_t>(asked.tokens.size());
      const auto output = std::max<uint32_t>(1, static_cast<uint32_t>(said.tokens.size()));
      if (model.sequence_tokens_max > 0 && input + output > model.sequence_tokens_max) {
        break;
      }
      used.push_back({.at = turn == 0 ? arrivals[begun].at : 0,
                      .input_tokens = input,
                      .output_tokens = output,
                      .text = std::move(prompt),
                      .follows = turn > 0});
    }
    const bool fits = turns == 0 || used.size() > first;
    begun += fits ? 1 : 0;
    too_long += fits ? 0 : 1;
    return fits;
  };
  if (const auto dialogues = ParseShareGpt(text, arrivals.size(), take); !dialogues.ok()) {
    return absl::Status(dialogues.status().code(),
                        absl::StrCat("--sharegpt: ", dialogues.status().message()));
  }
  if (used.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sharegpt: every dialogue is longer than the server's ",
                     model.sequence_tokens_max, " tokens"));
  }
  if (too_long > 0) {
    std::fprintf(stderr, "--sharegpt: left out %s\n",
                 absl::StrCat(too_long, " dialogues that are longer than the server's ",
                              model.sequence_tokens_max, " tokens")
                     .c_str());
  }
  if (used.size() < arrivals.size()) {
    std::fprintf(stderr, "--sharegpt: the file has dialogues for %zu of %zu requests\n",
                 used.size(), arrivals.size());
  }
  return used;
}

absl::StatusOr<std::vector<Arrival>> Arrivals(const BenchFlags& flags,
                                              const client::ModelInfo& model,
                                              client::Client& client,
                                              const client::Cancellation& cancellation) {
  if (flags.trace.has_value()) {
    return TraceArrivals(flags);
  }
  LoadOptions load = flags.load;
  load.rate = flags.rate.value_or(0);
  std::vector<Arrival> arrivals = MakeArrivals(load);
  if (flags.sharegpt.empty()) {
    return arrivals;
  }
  return DialogueArrivals(flags, model, std::move(arrivals), client, cancellation);
}

void ShowProgress(ProgressLine& line, const BenchProgress& progress, size_t requests) {
  const std::string left = RemainingTime(static_cast<double>(progress.finished + progress.failed),
                                         static_cast<double>(requests), progress.seconds);
  line.Show(absl::StrFormat(
      "%d/%d finished, %d failed, %d in flight, %.1f tokens/s%s%s", progress.finished, requests,
      progress.failed, progress.in_flight,
      progress.seconds > 0 ? static_cast<double>(progress.output_tokens) / progress.seconds : 0.0,
      left.empty() ? "" : ", ", left));
}

absl::StatusOr<Json> Measure(const BenchFlags& flags, client::Client& client,
                             const client::Cancellation& cancellation, absl::Status& first_error) {
  BenchRunOptions options = {.prompt_seed = flags.prompt_seed.value_or(flags.load.seed),
                             .seed = flags.load.seed,
                             .temperature = flags.draws.temperature,
                             .top_k = flags.draws.top_k,
                             .top_p = flags.draws.top_p,
                             .policy = flags.draws.policy,
                             .kv = flags.draws.kv};
  if (!flags.slo.empty()) {
    const absl::StatusOr<planner::Slo> slo = planner::ParseSlo(flags.slo);
    if (!slo.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--slo: ", slo.status().message()));
    }
    options.slo = *slo;
  }
  const bool closed_loop = !flags.rate.has_value() && !flags.trace.has_value();
  options.in_flight_max = closed_loop ? flags.concurrency.value_or(1) : kOpenLoopInFlightMax;
  LAMINA_ASSIGN_OR_RETURN(const std::vector<client::ModelInfo> models, client.ListModels());
  if (models.empty() || models[0].vocabulary == 0) {
    return absl::FailedPreconditionError("the server names no model with a vocabulary");
  }
  options.vocabulary = models[0].vocabulary;
  LAMINA_ASSIGN_OR_RETURN(options.arrivals, Arrivals(flags, models[0], client, cancellation));
  LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus before, client.Status());
  BenchRunner runner(options, client, RealClock());
  {
    ProgressLine line;
    runner.Run(
        [&](const BenchProgress& progress) {
          ShowProgress(line, progress, options.arrivals.size());
        },
        cancellation);
  }
  const absl::StatusOr<client::ClusterStatus> after = CountedStatus(client, cancellation);
  first_error = runner.report().first_error();
  first_error.Update(after.status());
  // Without the second look there are no figures of nodes, and times are as good as ever.
  Json report = runner.report().ToJson(
      runner.seconds(), before, after.value_or(client::ClusterStatus()), options.in_flight_max > 1);
  report["model"] = models[0].id;
  report["load"] = closed_loop              ? Json{{"concurrency", options.in_flight_max}}
                   : flags.rate.has_value() ? Json{{"rate", *flags.rate}}
                                            : Json{{"trace", *flags.trace}};
  report["load"]["seed"] = flags.load.seed;
  report["load"]["prompt_seed"] = options.prompt_seed;
  if (!flags.sharegpt.empty()) {
    report["load"]["sharegpt"] = flags.sharegpt;
    report["load"]["turns"] = flags.turns;
  }
  report["load"]["temperature"] = flags.draws.temperature.value_or(0);
  report["load"]["top_k"] = flags.draws.top_k.value_or(0);
  report["load"]["top_p"] = flags.draws.top_p.value_or(1);
  if (!flags.draws.policy.empty()) {
    report["load"]["policy"] = flags.draws.policy;
  }
  if (!flags.draws.kv.empty()) {
    report["load"]["kv"] = flags.draws.kv;
  }
  return report;
}

// A whole number, or "all".
CLI::Validator Turns() {
  const CLI::Validator whole = Whole(1, kTurnsMax);
  return CLI::Validator(
      [whole](std::string& text) -> std::string {
        if (text == "all") {
          text = absl::StrCat(kTurnsMax);
        }
        return whole(text);
      },
      "");
}

// With --json an error is an object too, in place of the report.
int FailInForm(const Invocation& invocation, const absl::Status& status) {
  if (invocation.json) {
    PrintJson({{"error",
                {{"code", absl::StatusCodeToString(status.code())},
                 {"message", std::string(status.message())}}}});
  }
  return Fail(status);
}

int Run(const Invocation& invocation, const BenchFlags& flags) {
  if (flags.concurrency.has_value() + flags.rate.has_value() + flags.trace.has_value() > 1) {
    return FailUsage("bench", "give only one of --concurrency, --rate, --trace");
  }
  const auto client = Connect(invocation);
  if (!client.ok()) {
    return FailInForm(invocation, client.status());
  }
  const client::Cancellation cancellation;
  const Interrupts::Scoped scoped(*invocation.interrupts,
                                  [cancellation] { cancellation.Cancel(); });
  absl::Status first_error;
  const absl::StatusOr<Json> report = Measure(flags, **client, cancellation, first_error);
  if (!report.ok()) {
    return cancellation.cancelled() && absl::IsCancelled(report.status())
               ? kExitInterrupted
               : FailInForm(invocation, report.status());
  }
  if (!first_error.ok() && (*report)["failed"] == (*report)["requests"]) {
    return FailInForm(invocation, first_error);  // There is nothing to report.
  }
  if (invocation.json) {
    PrintJson(*report);
  } else {
    std::printf("%s", FormatReport(*report).c_str());
  }
  if (cancellation.cancelled()) {
    return kExitInterrupted;
  }
  return first_error.ok() ? kExitOk : Fail(first_error);
}

}  // namespace

void AddBenchCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "bench", "Put load on a cluster and time its answers", kExamples);
  const auto flags = std::make_shared<BenchFlags>();
  AddServerFlag(command, invocation);
  command->add_option("--concurrency", flags->concurrency, "Requests in flight (default: 1)")
      ->group(kKindGroup)
      ->transform(Whole(1, 4096))
      ->type_name("N");
  command->add_option("--rate", flags->rate, "Requests per second")
      ->group(kKindGroup)
      ->check(Within(1e-6, 1e6))
      ->type_name("R");
  command->add_option("--trace", flags->trace, "Replay this JSONL file; - is stdin")
      ->group(kKindGroup)
      ->type_name("FILE");
  command
      ->add_flag("--skip-bad-lines", flags->skip_bad_lines,
                 "Name lines of the trace that are wrong, and use the rest")
      ->needs("--trace");
  command
      ->add_option(
          "--sharegpt", flags->sharegpt,
          "Questions of these dialogues as prompts, and answers as long as theirs: JSON in "
          "ShareGPT's form")
      ->excludes("--trace")
      ->type_name("FILE");
  command
      ->add_option("--turns", flags->turns,
                   "Turns of each dialogue, N at most or all, each with the file's earlier ones "
                   "before it and when the one before has ended (default: 1)")
      ->needs("--sharegpt")
      ->transform(Turns())
      ->type_name("N");
  command->add_option("--slo", flags->slo, "Report the goodput within it: ttft=2s,tpot=80ms,at=p95")
      ->type_name("SLO");
  command->add_option("--requests", flags->load.requests, "Requests in all (default: 32)")
      ->excludes("--trace")
      ->transform(Whole(1, 1'000'000))
      ->type_name("N");
  command->add_option("--input-tokens", flags->load.input_tokens, "Of each prompt (default: 128)")
      ->excludes("--trace")
      ->excludes("--sharegpt")
      ->transform(Whole(1, 1 << 20))
      ->type_name("N");
  command->add_option("--output-tokens", flags->load.output_tokens, "Of each answer (default: 64)")
      ->excludes("--trace")
      ->excludes("--sharegpt")
      ->transform(Whole(1, 1 << 20))
      ->type_name("N");
  AddDrawFlags(command, flags->draws);
  AddPolicyFlags(command, flags->draws.policy, flags->draws.kv);
  command->add_option("--seed", flags->load.seed, "Of arrivals, draws and prompts (default: 0)")
      ->transform(Whole(0, UINT64_MAX))
      ->type_name("N");
  command
      ->add_option(
          "--prompt-seed", flags->prompt_seed,
          "Of prompts alone, text too: another for each run on a cluster that keeps prefixes "
          "(default: --seed)")
      ->transform(Whole(0, UINT64_MAX))
      ->type_name("N");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
