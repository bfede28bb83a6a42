// SPDX-License-Identifier: Apache-2.0
//
// lamina simulate: how a cluster file's cluster answers a load, in virtual time. Local; no server
// needed.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/bench_load.h"
#include "client/cli/command.h"
#include "client/cli/input.h"
#include "client/cli/plan_files.h"
#include "common/status_macros.h"
#include "config/cluster_config.h"
#include "cost/unit_seconds.h"
#include "planner/cluster_simulation.h"
#include "planner/request.h"

namespace lamina::cli {
namespace {

// A simulation that does not come to an end ends with an error. A request of some hundred tokens on
// a large fleet takes some thousand events.
constexpr uint64_t kEventsMax = 2'000'000'000;
constexpr uint64_t kEventsOfRequest = 20'000;

constexpr char kExamples[] =
    R"(  lamina simulate --cluster deploy/clusters/local.yaml --compute H200 --memory EPYC-9654 --link 200G-rdma --load rate=5,input=1024,output=256
  lamina simulate --cluster my.yaml --compute H200 --calibration H200=calibration.json --trace requests.jsonl --slo ttft=2s,tpot=80ms --json
  lamina simulate --cluster my.yaml --compute H200 --load rate=200,input=512,output=256 --cells 32 --requests 100000
The scheduler is the coordinator's own; nodes take the times that the cost model says, without
variance. --cells puts so many of these clusters behind a router that gives a request to the one
with the fewest tokens still to do. The same seed gives the same result.
)";

struct SimulateFlags {
  std::string cluster;
  std::vector<std::string> overrides;
  std::string model;
  std::string catalogue;
  std::string compute;
  std::string memory;
  std::string link;
  std::vector<std::string> calibrations;
  std::string load;
  std::string slo;
  std::string trace;
  bool skip_bad_lines = false;
  uint32_t requests = 1000;
  uint32_t cells = 1;
  uint64_t seed = 0;
  double failures = 0;
  double warm_up = 0.1;
};

absl::StatusOr<const cost::Device*> DeviceOf(const cost::Catalogue& catalogue, const char* flag,
                                             const std::string& name) {
  const cost::Device* device = catalogue.FindDevice(name);
  if (device == nullptr) {
    std::vector<std::string> known;
    for (const cost::Device& one : catalogue.devices) {
      known.push_back(one.name);
    }
    return absl::NotFoundError(absl::StrCat(flag, ": the catalogue has no device '", name,
                                            "'; it has ", absl::StrJoin(known, ", ")));
  }
  return device;
}

absl::StatusOr<planner::ClusterDevices> DevicesOf(const SimulateFlags& flags,
                                                  const cost::Catalogue& catalogue,
                                                  const cost::ModelShape& shape) {
  const std::string memory_name = flags.memory.empty() ? flags.compute : flags.memory;
  LAMINA_ASSIGN_OR_RETURN(const cost::Device* compute,
                          DeviceOf(catalogue, "--compute", flags.compute));
  LAMINA_ASSIGN_OR_RETURN(const cost::Device* memory, DeviceOf(catalogue, "--memory", memory_name));
  planner::ClusterDevices devices = {.compute = cost::RatesOf(*compute),
                                     .memory = cost::RatesOf(*memory)};
  for (const std::string& assignment : flags.calibrations) {
    LAMINA_ASSIGN_OR_RETURN(const DeviceCalibration calibration,
                            LoadCalibration(catalogue, assignment));
    if (calibration.device != flags.compute && calibration.device != memory_name) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--calibration: ", calibration.device, " is the device of no node; compute nodes are ",
          flags.compute, ", memory nodes ", memory_name, " (--compute, --memory)"));
    }
    if (calibration.device == flags.compute) {
      devices.compute = cost::WithCalibration(devices.compute, calibration.calibration, shape);
    }
    if (calibration.device == memory_name) {
      devices.memory = cost::WithCalibration(devices.memory, calibration.calibration, shape);
    }
  }
  if (!flags.link.empty()) {
    const cost::Link* link = catalogue.FindLink(flags.link);
    if (link == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("--link: the catalogue has no link '", flags.link, "'"));
    }
    devices.link = cost::RatesOf(*link, 1);
    devices.shard_link = devices.link;
  }
  return devices;
}

absl::StatusOr<std::vector<planner::TraceRequest>> RequestsOf(const SimulateFlags& flags,
                                                              uint32_t tokens_max) {
  std::vector<planner::TraceRequest> requests;
  if (!flags.trace.empty()) {
    LAMINA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.trace, kLoadBytesMax));
    std::vector<std::string> bad_lines;
    LAMINA_ASSIGN_OR_RETURN(const std::vector<Arrival> arrivals,
                            ParseTrace(text, flags.skip_bad_lines ? &bad_lines : nullptr));
    for (const std::string& line : bad_lines) {
      std::fprintf(stderr, "left out: %s\n", line.c_str());
    }
    for (const Arrival& arrival : arrivals) {
      requests.push_back({.at = arrival.at,
                          .input = arrival.input_tokens,
                          .output = arrival.output_tokens,
                          .prefix = arrival.prefix,
                          .prefix_tokens = arrival.prefix_tokens});
    }
    return requests;
  }
  const absl::StatusOr<planner::Load> load = planner::ParseLoad(flags.load);
  if (!load.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--load: ", load.status().message()));
  }
  if (load->input + load->output > tokens_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("--load: input ", load->input, " and output ", load->output,
                     " are more than the ", tokens_max,
                     " tokens that limits.sequence_tokens_max and the model allow for a request; "
                     "ask for fewer, or raise the limit"));
  }
  if (load->rate == 0) {
    // All at once, alike: what a closed loop of as many requests does.
    if (load->prefix > 0 || load->lengths != planner::Lengths::kFixed) {
      return absl::InvalidArgumentError("--load: lengths and prefix want a rate");
    }
    return std::vector<planner::TraceRequest>(flags.requests,
                                              {.at = 0,
                                               .input = static_cast<uint32_t>(load->input),
                                               .output = static_cast<uint32_t>(load->output)});
  }
  if (const absl::Status fits = planner::CheckArrivals(flags.requests, load->rate); !fits.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--load: ", fits.message()));
  }
  return planner::MakeArrivals({.requests = flags.requests,
                                .rate = load->rate,
                                .input = load->input,
                                .output = load->output,
                                .lengths = load->lengths,
                                .tokens_max = tokens_max,
                                .prefix_tokens = static_cast<uint32_t>(load->prefix),
                                .prefixes = static_cast<uint32_t>(load->prefixes),
                                .seed = flags.seed});
}

Json TimesToJson(const std::vector<float>& sorted) {
  return {{"p50", 1e3 * planner::PercentileOf(sorted, 0.50)},
          {"p90", 1e3 * planner::PercentileOf(sorted, 0.90)},
          {"p99", 1e3 * planner::PercentileOf(sorted, 0.99)}};
}

// Where the lengths of requests come from. Those that are drawn have an assumed spread.
std::string LengthsBasis(const SimulateFlags& flags) {
  if (!flags.trace.empty()) {
    return "trace";
  }
  const absl::StatusOr<planner::Load> load = planner::ParseLoad(flags.load);
  const bool fixed = load.ok() && load->lengths == planner::Lengths::kFixed;
  return fixed ? "load" : std::string(cost::ProvenanceName(cost::Provenance::kAssumed));
}

// Where the seconds come from.
Json BasisOf(const SimulateFlags& flags, const planner::SimCellSpec& cell) {
  const auto by = [](std::initializer_list<cost::Estimate> estimates) {
    cost::Provenance worst = cost::Provenance::kMeasured;
    for (const cost::Estimate& estimate : estimates) {
      worst = cost::Worse(worst, estimate.provenance);
    }
    return cost::ProvenanceName(worst);
  };
  const cost::Cluster& cluster = cell.cluster;
  const cost::StepLoad step = {.rows = 1, .context = 1, .prompt_tokens = 1, .prompt_length = 1};
  const bool local = cluster.policy == cost::KvPolicy::kLocal;
  const cost::AttentionRates& attention =
      local ? cluster.compute.attention : cluster.memory.attention;
  return {{"dense layers", by({cost::SliceSeconds(cell.shape, cluster, step),
                               cost::HeadSeconds(cell.shape, cluster, step.rows)})},
          {"attention", by({cost::AttentionSeconds(attention, step.rows, 1)})},
          {"network", flags.link.empty() ? "left out"
                                         : by({cost::ExchangeSeconds(cluster, step.rows),
                                               cluster.memory_link.seconds_per_byte})},
          {"coordinator", cost::ProvenanceName(cost::Provenance::kAssumed)},
          {"lengths", LengthsBasis(flags)},
          {"price", "cluster file"}};
}

Json ResultToJson(const planner::SimResult& result, const planner::Slo& slo, const Json& basis) {
  const double share = planner::ShareWithin(result, slo);
  const bool met = share >= slo.at;
  const Json cost = {{"input", result.bill.input},
                     {"output", result.bill.output},
                     {"cached", result.bill.cached},
                     {"per_million_input", result.bill.per_million_input},
                     {"per_million_output", result.bill.per_million_output},
                     {"per_million_cached", result.bill.per_million_cached}};
  return {{"simulated", true},
          {"requests", result.requests},
          {"answered", result.answered},
          {"refused", result.refused},
          {"failed", result.failed},
          {"seconds", result.seconds},
          {"requests_per_second", result.requests_per_second},
          {"output_tokens_per_second", result.tokens_per_second},
          {"answer_tokens", result.answer_tokens},
          {"answer_seconds", result.answer_seconds},
          {"ttft_ms", TimesToJson(result.ttft)},
          {"tpot_ms", TimesToJson(result.tpot)},
          {"slo",
           {{"at", slo.at},
            {"within_share", share},
            {"met", met},
            {"goodput", met ? result.requests_per_second : 0.0}}},
          {"cost", result.bill.total() > 0 ? cost : Json()},  // Null without prices.
          {"basis", basis},
          {"input_tokens", result.input_tokens},
          {"cached_tokens", result.cached_tokens},
          {"busy",
           {{"compute", result.compute_busy},
            {"memory", result.memory_busy},
            {"coordinator", result.coordinator_busy}}},
          {"preemptions", result.preemptions},
          {"nodes_lost", result.nodes_lost},
          {"epochs", result.epochs},
          {"events", result.events},
          {"ended_seconds", ToSeconds(result.ended)}};
}

std::string ResultText(const Json& json) {
  const auto times = [&](const char* key) {
    return absl::StrFormat("%10.2f %10.2f %10.2f", json[key]["p50"].get<double>(),
                           json[key]["p90"].get<double>(), json[key]["p99"].get<double>());
  };
  std::string text = absl::StrFormat(
      "simulated: %d requests counted, %d answered, %d refused, %d failed; %.2f requests/s, %.1f "
      "output tokens/s\nms           p50        p90        p99\nttft  %s\ntpot  %s\n"
      "within the SLO %.1f%%; busy: compute %.0f%%, memory %.0f%%, coordinator %.0f%%; %d "
      "preemptions, %d nodes lost, %d epochs; %d of %d prompt tokens found\n",
      json["requests"].get<uint64_t>(), json["answered"].get<uint64_t>(),
      json["refused"].get<uint64_t>(), json["failed"].get<uint64_t>(),
      json["requests_per_second"].get<double>(), json["output_tokens_per_second"].get<double>(),
      times("ttft_ms"), times("tpot_ms"), 100 * json["slo"]["within_share"].get<double>(),
      100 * json["busy"]["compute"].get<double>(), 100 * json["busy"]["memory"].get<double>(),
      100 * json["busy"]["coordinator"].get<double>(), json["preemptions"].get<uint64_t>(),
      json["nodes_lost"].get<uint64_t>(), json["epochs"].get<uint64_t>(),
      json["cached_tokens"].get<uint64_t>(),
      json["cached_tokens"].get<uint64_t>() + json["input_tokens"].get<uint64_t>());
  if (const Json& cost = json["cost"]; cost.is_object()) {
    absl::StrAppendFormat(
        &text, "1M tokens: %.3f of prompts, %.3f generated, %.3f found computed\n",
        cost["per_million_input"].get<double>(), cost["per_million_output"].get<double>(),
        cost["per_million_cached"].get<double>());
  }
  std::vector<std::string> basis;
  for (const auto& [part, by] : json["basis"].items()) {
    basis.push_back(absl::StrCat(part, " ", by.get<std::string>()));
  }
  return absl::StrCat(text, "figures: ", absl::StrJoin(basis, ", "), "\n");
}

absl::StatusOr<Json> SimulateFlagsRun(const SimulateFlags& flags) {
  planner::Slo slo;
  if (!flags.slo.empty()) {
    const absl::StatusOr<planner::Slo> read = planner::ParseSlo(flags.slo);
    if (!read.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--slo: ", read.status().message()));
    }
    slo = *read;
  }
  LAMINA_ASSIGN_OR_RETURN(const ClusterConfig config,
                          LoadClusterConfig(flags.cluster, flags.overrides));
  LAMINA_ASSIGN_OR_RETURN(const cost::Catalogue catalogue, LoadCatalogue(flags.catalogue));
  LAMINA_ASSIGN_OR_RETURN(const cost::ModelShape shape,
                          LoadShape(catalogue, flags.model.empty() ? config.model : flags.model));
  LAMINA_ASSIGN_OR_RETURN(const planner::ClusterDevices devices,
                          DevicesOf(flags, catalogue, shape));
  LAMINA_ASSIGN_OR_RETURN(planner::SimFleet fleet,
                          planner::FleetOfClusterFile(config, shape, devices,
                                                      {.per_node_hour = flags.failures / 1000}));
  fleet.cells *= flags.cells;
  LAMINA_ASSIGN_OR_RETURN(const std::vector<planner::TraceRequest> requests,
                          RequestsOf(flags, fleet.cell.scheduler.sequence_tokens_max));
  LAMINA_ASSIGN_OR_RETURN(
      const planner::SimResult result,
      planner::Simulate(fleet, requests,
                        {.seed = flags.seed,
                         .warm_up = flags.warm_up,
                         .events_max = kEventsMax + kEventsOfRequest * requests.size()}));
  return ResultToJson(result, slo, BasisOf(flags, fleet.cell));
}

int Run(const Invocation& invocation, const SimulateFlags& flags) {
  if (flags.load.empty() == flags.trace.empty()) {
    return FailUsage("simulate", "give one of --load, --trace");
  }
  const absl::StatusOr<Json> result = SimulateFlagsRun(flags);
  if (!result.ok()) {
    return Fail(result.status());
  }
  if (invocation.json) {
    PrintJson(*result);
  } else {
    std::printf("%s", ResultText(*result).c_str());
  }
  return kExitOk;
}

void AddClusterFlags(CLI::App* command, SimulateFlags& flags) {
  command->add_option("--cluster", flags.cluster, "The cluster file")
      ->required()
      ->type_name("FILE");
  command->add_option("--set", flags.overrides, "Override a key of the cluster file")
      ->take_all()
      ->expected(1)
      ->type_name("KEY=VALUE");
  command
      ->add_option("--model", flags.model,
                   "A model of the catalogue or a file (default: the cluster file's)")
      ->type_name("MODEL");
  command
      ->add_option("--catalogue", flags.catalogue,
                   "Devices and links (default: the one that comes with the programs)")
      ->type_name("FILE");
  command->add_option("--compute", flags.compute, "Device of compute nodes")
      ->required()
      ->type_name("DEVICE");
  command->add_option("--memory", flags.memory, "Device of memory nodes (default: --compute's)")
      ->type_name("DEVICE");
  command->add_option("--link", flags.link, "Link between nodes (default: one that takes no time)")
      ->type_name("LINK");
  command->add_option("--calibration", flags.calibrations, "As of lamina plan; repeat for more")
      ->take_all()
      ->expected(1)
      ->type_name("DEVICE=FILE");
}

void AddLoadFlags(CLI::App* command, SimulateFlags& flags) {
  command
      ->add_option("--load", flags.load,
                   "rate=5,input=1024,output=256,lengths=sharegpt; without rate all come at once")
      ->type_name("LOAD");
  command->add_option("--trace", flags.trace, "JSONL as of lamina bench")->type_name("FILE");
  command->add_flag("--skip-bad-lines", flags.skip_bad_lines,
                    "Name lines of the trace that are wrong, and use the rest");
  command->add_option("--slo", flags.slo, "ttft=2s,tpot=80ms,at=p95")->type_name("SLO");
  command->add_option("--requests", flags.requests, "Of the load (default: 1000)")
      ->transform(Whole(1, 10'000'000))
      ->type_name("N");
  command->add_option("--cells", flags.cells, "Clusters behind a router (default: 1)")
      ->transform(Whole(1, 10'000))
      ->type_name("N");
  command->add_option("--seed", flags.seed, "Of arrivals, lengths and failures (default: 0)")
      ->transform(Whole(0, UINT64_MAX))
      ->type_name("N");
  command->add_option("--failures", flags.failures, "Losses of one node in 1000 hours (default: 0)")
      ->check(Within(0, 1e6))
      ->type_name("N");
  command
      ->add_option("--warm-up", flags.warm_up,
                   "Share of requests, from the first on, that are not counted (default: 0.1)")
      ->check(Within(0, 0.9))
      ->type_name("SHARE");
}

}  // namespace

void AddSimulateCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "simulate",
                 "How a cluster file's cluster answers a load, in virtual time", kExamples);
  const auto flags = std::make_shared<SimulateFlags>();
  AddClusterFlags(command, *flags);
  AddLoadFlags(command, *flags);
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
