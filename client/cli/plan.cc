// SPDX-License-Identifier: Apache-2.0
//
// lamina plan: what to rent or buy for a model and a load. Local; no server needed.
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cli/plan_files.h"
#include "client/cli/plan_view.h"
#include "common/status_macros.h"
#include "planner/cluster_file.h"
#include "planner/optimiser.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] =
    R"(  lamina plan --model Llama-3-8B --load rate=5,input=1024,output=256 --slo ttft=2s,tpot=80ms
  lamina plan --model Llama-3-70B --load input=2000,output=500 --slo tpot=100ms --budget 20/h --explain
  lamina plan --model models/smollm2-135m-instruct.gguf --load rate=50,input=512,output=128 --cluster-file plan.yaml
  lamina plan --model Llama-3-8B --load input=512,output=128 --calibration H200=calibration.json --json
The evaluation is analytic, of the steady state: means by the formulas of the cost model, without
queues, variance or failures; goodput is a bound. Each plan says which of its figures were measured,
come from datasheets, or are assumed. Catalogues: docs/formats/catalogue.md.
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
  bool explain = false;
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

absl::Status WriteClusterFile(const planner::Problem& problem, const planner::Plans& plans,
                              const PlanFlags& flags) {
  if (plans.runnable.empty()) {
    return absl::NotFoundError(
        "--cluster-file: no plan is one that this software runs; the table says why");
  }
  const planner::Plan& best = plans.runnable.front();
  std::ofstream file(flags.cluster_file, std::ios::trunc);
  file
      << "# " << planner::HardwareName(best.configuration.hardware) << ": "
      << planner::ArrangementName(best.configuration) << ".\n"
      << "# Written by lamina plan. Replace compute-N and memory-N by your hosts, and model by the "
         "path of its files.\n"
      << ToYaml(planner::ClusterFileOf(problem, best.configuration, best.evaluation, flags.model))
      << "\n";
  file.close();
  return file ? absl::OkStatus()
              : absl::DataLossError(
                    absl::StrCat("--cluster-file: cannot write '", flags.cluster_file, "'"));
}

int Run(const Invocation& invocation, const PlanFlags& flags) {
  const absl::StatusOr<planner::Problem> problem = ProblemOf(flags);
  if (!problem.ok()) {
    return Fail(problem.status());
  }
  const planner::WhyNot why_not = [&](const planner::Configuration& configuration,
                                      const planner::Evaluation& evaluation) {
    return planner::WhyNotRunnable(*problem, configuration, evaluation);
  };
  const absl::StatusOr<planner::Plans> plans =
      planner::Optimise(*problem, flags.count, why_not, planner::Search::kBounded);
  if (!plans.ok()) {
    return Fail(plans.status());
  }
  const std::string today = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  if (invocation.json) {
    Json json = PlansToJson(*problem, *plans, today);
    if (flags.explain) {
      json["explain"] = ExplainText(*problem, *plans);
    }
    PrintJson(json);
  } else {
    std::printf("%s", PlansText(*problem, *plans, today).c_str());
    std::printf("%s", flags.explain ? ExplainText(*problem, *plans).c_str() : "");
  }
  if (!flags.cluster_file.empty()) {
    if (const absl::Status written = WriteClusterFile(*problem, *plans, flags); !written.ok()) {
      return Fail(written);
    }
  }
  return kExitOk;
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
                   "prompt and answer: rate=20,input=1024,output=256")
      ->required()
      ->type_name("LOAD");
  command
      ->add_option("--slo", flags.slo,
                   "Mean time to the first token, and per token after it: ttft=2s,tpot=80ms "
                   "(default: none)")
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
  command->add_flag("--explain", flags.explain, "Why the runner-up lost");
}

}  // namespace

void AddPlanCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "plan", "What to rent or buy for a model and a load", kExamples);
  const auto flags = std::make_shared<PlanFlags>();
  AddFlags(command, *flags);
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
