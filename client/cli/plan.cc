// SPDX-License-Identifier: Apache-2.0
//
// lamina plan: what to rent or buy for a model and a load. Local; no server needed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/bench_load.h"
#include "client/cli/command.h"
#include "client/cli/input.h"
#include "client/cli/plan_files.h"
#include "client/cli/plan_view.h"
#include "client/cli/terminal.h"
#include "common/host_memory.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "planner/cluster_file.h"
#include "planner/optimiser.h"
#include "planner/sensitivity.h"
#include "planner/simulated_plan.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] =
    R"(  lamina plan --model Llama-3-8B --load rate=5,input=1024,output=256 --slo ttft=2s,tpot=80ms
  lamina plan --model Llama-3-70B --load input=2000,output=500 --slo tpot=100ms --budget 20/h --explain
  lamina plan --model models/smollm2-135m-instruct.gguf --load rate=50,input=512,output=128 --cluster-file plan.yaml
  lamina plan --model Llama-3-8B --load input=512,output=128 --calibration H200=calibration.json --json
  lamina plan --model Llama-3-8B --load rate=5,input=1024,output=256,lengths=sharegpt --slo ttft=2s,tpot=80ms,at=p99
  lamina plan --model Llama-3-8B --load input=512,output=128 --trace requests.jsonl --sensitivity --pareto plan.svg
Plans are found by the formulas of the cost model, of the steady state: means, without queues,
variance or failures; there goodput is a bound. The best few are simulated with the real scheduler
(--simulate), and then stand in the order of what that says: goodput is the most requests a second
of which the SLO's percentile keeps both latencies. Each plan says which of its figures were
measured, come from datasheets, are scaled from other shapes, or are assumed. Catalogues:
docs/formats/catalogue.md.
)";

struct PlanFlags {
  std::string model;
  std::string load;
  std::string slo;
  std::string catalogue;
  std::string budget;
  std::vector<std::string> calibrations;
  uint32_t machines = 16;
  uint32_t count = 5;
  std::string cluster_file;
  bool one_host = false;
  bool explain = false;
  uint32_t simulate = 3;
  uint64_t seed = 0;
  double failures = 0;
  std::string trace;
  bool skip_bad_lines = false;
  bool sensitivity = false;
  std::string pareto;
};

absl::Status ReadRequest(const PlanFlags& flags, planner::Problem& problem) {
  const auto named = [](const char* flag, const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", status.message()));
  };
  const absl::StatusOr<planner::Load> load = planner::ParseLoad(flags.load);
  if (!load.ok()) {
    return named("--load", load.status());
  }
  problem.load = *load;
  if (!flags.slo.empty()) {
    const absl::StatusOr<planner::Slo> slo = planner::ParseSlo(flags.slo);
    if (!slo.ok()) {
      return named("--slo", slo.status());
    }
    problem.slo = *slo;
  }
  if (!flags.budget.empty()) {
    const absl::StatusOr<double> budget = planner::ParseBudget(flags.budget);
    if (!budget.ok()) {
      return named("--budget", budget.status());
    }
    problem.budget = *budget;
  }
  return absl::OkStatus();
}

absl::StatusOr<planner::Problem> ProblemOf(const PlanFlags& flags) {
  planner::Problem problem;
  LAMINA_RETURN_IF_ERROR(ReadRequest(flags, problem));
  problem.machines_max = flags.machines;
  LAMINA_ASSIGN_OR_RETURN(problem.catalogue, LoadCatalogue(flags.catalogue));
  LAMINA_ASSIGN_OR_RETURN(problem.model, LoadShape(problem.catalogue, flags.model));
  for (const std::string& assignment : flags.calibrations) {
    LAMINA_ASSIGN_OR_RETURN(DeviceCalibration calibration,
                            LoadCalibration(problem.catalogue, assignment));
    problem.calibrations[calibration.device] = std::move(calibration.calibration);
  }
  if (problem.load.input + problem.load.output > problem.model.positions_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--load: input and output have ", problem.load.input + problem.load.output, " tokens, and ",
        problem.model.name, " has ", problem.model.positions_max, " positions"));
  }
  return problem;
}

absl::Status WriteText(const char* flag, const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  return file ? absl::OkStatus()
              : absl::DataLossError(absl::StrCat(flag, ": cannot write '", path, "'"));
}

absl::StatusOr<planner::PlanSimulationOptions> SimulationOf(const PlanFlags& flags) {
  planner::PlanSimulationOptions options{.plans = flags.simulate, .seed = flags.seed};
  options.failures.per_node_hour = flags.failures / 1000;
  if (flags.trace.empty()) {
    return options;
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.trace, kLoadBytesMax));
  std::vector<std::string> bad_lines;
  const auto arrivals = ParseTrace(text, flags.skip_bad_lines ? &bad_lines : nullptr);
  if (!arrivals.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace: ", arrivals.status().message(),
                     flags.skip_bad_lines ? "" : "; --skip-bad-lines uses the rest"));
  }
  for (const std::string& line : bad_lines) {
    std::fprintf(stderr, "left out: %s\n", line.c_str());
  }
  for (const Arrival& arrival : *arrivals) {
    options.trace.push_back({.at = arrival.at,
                             .input = arrival.input_tokens,
                             .output = arrival.output_tokens,
                             .prefix = arrival.prefix,
                             .prefix_tokens = arrival.prefix_tokens});
  }
  if (options.trace.front().at == options.trace.back().at) {
    return absl::InvalidArgumentError(absl::StrCat("--trace: all requests arrive at ",
                                                   ToSeconds(options.trace.back().at),
                                                   " s; a rate needs arrivals that are apart"));
  }
  return options;
}

void Warn(const std::string& text) {
  std::fflush(stdout);  // It stands behind the table.
  std::fprintf(stderr, "%s %s\n", Terminal::Error().Yellow("warning:").c_str(), text.c_str());
}

// All nodes on this host, joined by shared memory. The cluster may be started from any folder.
void PutOnOneHost(ClusterConfig& config) {
  std::error_code error;
  if (std::filesystem::exists(config.model, error)) {
    config.model = std::filesystem::absolute(config.model, error).string();
  }
  for (ComputeNodeConfig& node : config.compute) {
    node.host = "localhost";
  }
  for (MemoryNodeConfig& node : config.memory) {
    node.host = "localhost";
  }
  config.transport = {"shm"};
  config.coordinator_listen = "127.0.0.1:7400";
}

// What the catalogue knows nothing of: the cores of hosts.
std::string ThreadsNote(const ClusterConfig& config) {
  const auto on_processor = [](const auto& node) { return node.device == "cpu"; };
  const bool any = std::any_of(config.compute.begin(), config.compute.end(), on_processor) ||
                   std::any_of(config.memory.begin(), config.memory.end(), on_processor);
  return any ? "# Give each node with device cpu `threads` or `cores` of its host: with neither it "
               "computes with one thread.\n"
             : "";
}

// The catalogue says what its devices hold; what this host holds is another matter.
void WarnOfMemory(const ClusterConfig& config) {
  uint64_t bytes = 0;
  for (const ComputeNodeConfig& node : config.compute) {
    bytes += node.device == "cpu" ? node.capacity_bytes : 0;
  }
  for (const MemoryNodeConfig& node : config.memory) {
    bytes += node.device == "cpu" ? node.capacity_bytes : 0;
  }
  const HostMemory host = QueryHostMemory();
  if (bytes > host.available_bytes) {
    Warn(absl::StrCat("--one-host: K and V of the nodes take ", FormatBytes(bytes),
                      ", and this host has ", FormatBytes(host.available_bytes), " (", host.limit,
                      "); put what it has into the catalogue, or lower each `capacity`"));
  }
}

absl::Status WriteClusterFile(const planner::Problem& problem, const planner::Plans& plans,
                              const PlanFlags& flags) {
  if (plans.runnable.empty()) {
    return absl::NotFoundError(
        "--cluster-file: no plan is one that this software runs; the table says why");
  }
  const planner::Plan& best = plans.runnable.front();
  ClusterConfig config =
      planner::ClusterFileOf(problem, best.configuration, best.evaluation, flags.model);
  if (flags.one_host) {
    PutOnOneHost(config);
    if (const absl::Status valid = config.Validate(); !valid.ok()) {
      return absl::Status(valid.code(), absl::StrCat("--one-host: ", valid.message()));
    }
    WarnOfMemory(config);
  }
  const std::string shortfall = ShortfallText(problem, plans);
  return WriteText(
      "--cluster-file", flags.cluster_file,
      absl::StrCat("# ", planner::HardwareName(best.configuration.hardware), ": ",
                   planner::ArrangementName(best.configuration), ".\n",
                   shortfall.empty() ? "" : absl::StrCat("# NOT ENOUGH: ", shortfall, ".\n"),
                   "# Written by lamina plan. ",
                   flags.one_host ? "All nodes are on this host"
                                  : "Replace compute-N and memory-N by your hosts",
                   "; replace model by the path of its files if it is a name or a config.json.\n",
                   ThreadsNote(config), ToYaml(config), "\n"));
}

absl::Status Print(const Invocation& invocation, const planner::Problem& problem,
                   const planner::Plans& plans, const planner::WhyNot& why_not,
                   const PlanFlags& flags) {
  planner::SensitivityStudy sensitivity;
  if (flags.sensitivity) {
    LAMINA_ASSIGN_OR_RETURN(sensitivity, planner::SensitivityOf(problem, plans, why_not));
  }
  const std::string today = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  if (invocation.json) {
    Json json = PlansToJson(problem, plans, today);
    if (flags.explain) {
      json["explain"] = ExplainText(problem, plans);
    }
    if (flags.sensitivity) {
      json["sensitivity"] = SensitivityToJson(sensitivity);
      json["sensitivity_of"] = SensitivityPlanToJson(sensitivity);
    }
    PrintJson(json);
    return absl::OkStatus();
  }
  std::printf("%s%s%s", PlansText(problem, plans, today).c_str(),
              flags.explain ? ExplainText(problem, plans).c_str() : "",
              flags.sensitivity ? SensitivityText(sensitivity).c_str() : "");
  return absl::OkStatus();
}

absl::Status PlanAndPrint(const Invocation& invocation, const PlanFlags& flags) {
  LAMINA_ASSIGN_OR_RETURN(planner::Problem problem, ProblemOf(flags));
  LAMINA_ASSIGN_OR_RETURN(const planner::PlanSimulationOptions simulation, SimulationOf(flags));
  const planner::WhyNot why_not = [&](const planner::Configuration& configuration,
                                      const planner::Evaluation& evaluation) {
    return planner::WhyNotRunnable(problem, configuration, evaluation);
  };
  LAMINA_ASSIGN_OR_RETURN(
      const planner::Plans plans,
      flags.simulate == 0
          ? planner::Optimise(problem, flags.count, why_not, planner::Search::kBounded)
          : planner::OptimiseAndSimulate(problem, flags.count, why_not, simulation));
  LAMINA_RETURN_IF_ERROR(Print(invocation, problem, plans, why_not, flags));
  if (const std::string shortfall = ShortfallText(problem, plans); !shortfall.empty()) {
    Warn(absl::StrCat(shortfall, "; allow more latency, or raise --budget or --machines"));
  }
  if (!flags.pareto.empty()) {
    LAMINA_RETURN_IF_ERROR(WriteText("--pareto", flags.pareto,
                                     ParetoSvg(problem, planner::ParetoOf(problem, why_not))));
  }
  return flags.cluster_file.empty() ? absl::OkStatus() : WriteClusterFile(problem, plans, flags);
}

int Run(const Invocation& invocation, const PlanFlags& flags) {
  const absl::Status status = PlanAndPrint(invocation, flags);
  return status.ok() ? kExitOk : Fail(status);
}

void AddFlags(CLI::App* command, PlanFlags& flags) {
  command
      ->add_option("--model", flags.model,
                   "A model of the catalogue, a GGUF file, a Hugging Face folder, or a config.json")
      ->required()
      ->type_name("MODEL");
  command
      ->add_option("--load", flags.load,
                   "Requests a second (left out: all that a plan can answer), and mean tokens of "
                   "prompt and answer, how lengths are spread in simulations (fixed, sharegpt, "
                   "azure), and the share of prompt tokens that kept prefixes have: "
                   "rate=20,input=1024,output=256,lengths=sharegpt,hit=0.4")
      ->required()
      ->type_name("LOAD");
  command
      ->add_option(
          "--slo", flags.slo,
          "Time to the first token, and the mean per token after it, and the percentile of "
          "requests that must keep both: ttft=2s,tpot=80ms,at=p95 (default: none, p95)")
      ->type_name("SLO");
  command
      ->add_option("--catalogue", flags.catalogue,
                   "Devices, machines and prices (default: the one that comes with the programs)")
      ->type_name("FILE");
  command
      ->add_option("--budget", flags.budget,
                   "What all machines may cost in an hour, in the catalogue's currency: 20/h "
                   "(default: no bound)")
      ->type_name("N/h");
  command
      ->add_option("--calibration", flags.calibrations,
                   "What a device of the catalogue measured of itself (docs/formats/"
                   "calibration.md); repeat for more")
      ->take_all()
      ->expected(1)
      ->type_name("DEVICE=FILE");
  command->add_option("--machines", flags.machines, "Machines of a plan at most (default: 16)")
      ->transform(Whole(1, 64))
      ->type_name("N");
  command->add_option("--count", flags.count, "Plans to print of each list (default: 5)")
      ->transform(Whole(1, 50))
      ->type_name("N");
  command
      ->add_option("--cluster-file", flags.cluster_file,
                   "Write the best plan that runs as a cluster file")
      ->type_name("FILE");
  command->add_flag("--one-host", flags.one_host,
                    "In the cluster file all nodes are on this host, over shared memory");
  command->add_flag("--explain", flags.explain, "Why the runner-up lost");
}

void AddSimulationFlags(CLI::App* command, PlanFlags& flags) {
  constexpr char kGroup[] = "Simulation, and what if";
  command
      ->add_option("--simulate", flags.simulate,
                   "Plans of each list to simulate; 0: formulas alone (default: 3)")
      ->transform(Whole(0, 50))
      ->type_name("N")
      ->group(kGroup);
  command->add_option("--seed", flags.seed, "Of arrivals, lengths and failures (default: 0)")
      ->transform(Whole(0, UINT64_MAX))
      ->type_name("N")
      ->group(kGroup);
  command
      ->add_option(
          "--trace", flags.trace,
          "Simulate these requests (JSONL as of lamina bench) instead of the load's; means "
          "for the formulas stay the load's")
      ->type_name("FILE")
      ->group(kGroup);
  command
      ->add_flag("--skip-bad-lines", flags.skip_bad_lines,
                 "Name lines of the trace that are wrong, and use the rest")
      ->group(kGroup);
  command
      ->add_option("--failures", flags.failures,
                   "Losses of one node in 1000 hours, in simulations (default: 0)")
      ->check(Within(0, 1e6))
      ->type_name("N")
      ->group(kGroup);
  command
      ->add_flag(
          "--sensitivity", flags.sensitivity,
          "How the result follows prices, bandwidths and lengths, and where another plan wins")
      ->group(kGroup);
  command
      ->add_option("--pareto", flags.pareto, "Write cost against latency of the best plans as SVG")
      ->type_name("FILE")
      ->group(kGroup);
}

}  // namespace

void AddPlanCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "plan", "What to rent or buy for a model and a load", kExamples);
  const auto flags = std::make_shared<PlanFlags>();
  AddFlags(command, *flags);
  AddSimulationFlags(command, *flags);
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
