// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cost/price.h"
#include "plan/limits.h"

namespace lamina::planner {
namespace {

using cost::Cluster;
using cost::Estimate;
using cost::KvPolicy;

constexpr double kRunningMax = plan::kRunningMax;
constexpr double kChunkTokensMax = plan::kChunkTokensMax;
constexpr double kChunkTokensLeast = 512;
// A bound is a little more than what it bounds, so that rounding prunes nothing that is as good.
constexpr double kRounding = 1.000001;
// Share of prompt replicas' time: beyond, queues grow long.
constexpr double kPromptShareMax = 0.9;
constexpr double kSecondsPerHour = 3600;
constexpr double kMillion = 1e6;

// One configuration at some number of rows.
struct Operation {
  cost::StepTimes times;
  Estimate ttft;
  double chunk_tokens = kChunkTokensLeast;
  // Share of the time that may be spent on prompts; above 1 rows wait for them.
  double prompt_share = 0;
  double rate = 0;  // Requests a second.
};

class Evaluator {
 public:
  Evaluator(const Problem& problem, const Rates& rates, const Configuration& configuration)
      : problem_(problem),
        configuration_(configuration),
        cluster_(rates.ClusterOf(configuration)),
        hit_(KeepsPrefixes(problem, configuration) ? problem.load.hit() : 0),
        service_(configuration.prompt_replicas > 0
                     ? cost::PromptSeconds(problem.model, cluster_, problem.load.input)
                     : Estimate{}) {}

  Evaluation Run();
  Rank BestPossible();

 private:
  cost::StepLoad StepLoadOf(double rows) const;
  // Tokens of a prompt that are not found; the last one never is.
  double Computed() const { return std::max(1.0, (1 - hit_) * problem_.load.input); }
  Operation OperateWith(double rows) const;
  // Sequences that fit into so many tokens of K and V.
  double RowsWithin(Estimate kv_tokens) const {
    return std::floor(kv_tokens.value / problem_.model.TokensHeld(problem_.load.context()));
  }
  // How many of them limits.running_max allows.
  double RowsMax(double fit) const {
    return std::min(fit, std::max(kRunningMax, cost::Real(cluster_.lanes)));
  }
  // The first limit that `rows` rows break; none if they are fine.
  bool Breaks(const Operation& operation, Limit& limit) const;
  double MostRows(double bound, Limit& limit) const;
  // What the configuration does with the most rows.
  void Fill(const Operation& most, cost::Provenance capacity, Evaluation& evaluation) const;
  void Price(Evaluation& evaluation) const;
  Estimate InputShareOfCompute(double rows) const;
  // What prompt rows' attention costs, and of that the reads of K and V that were found.
  struct PromptReads {
    Estimate all;
    Estimate found;
  };
  PromptReads PriceOfPromptReads(double rows, Estimate compute, Estimate memory) const;
  Estimate KeptShare(double rows) const;

  const Problem& problem_;
  const Configuration& configuration_;
  Cluster cluster_;
  const double hit_;
  const Estimate service_;  // A prompt replica's time for one prompt.
};

// The rank of a bound on goodput, requests a second.
Rank RankOfGoodput(const Problem& problem, const Hardware& hardware, double bound) {
  Evaluation best;
  best.price_per_hour = PricePerHour(problem, hardware);
  best.goodput = {kRounding * bound};
  best.carries = best.goodput.value >= problem.margin * problem.load.rate;
  return RankOf(problem, best);
}

// The least power of two that has room for so many tokens, within what a chunk may have.
double ChunkTokensFor(double tokens) {
  if (tokens >= kChunkTokensMax) {
    return kChunkTokensMax;
  }
  const auto whole = static_cast<uint32_t>(std::ceil(std::max(kChunkTokensLeast, tokens)));
  return cost::Real(std::bit_ceil(whole));
}

// What follows a found prefix is rows, and prompts of which nothing is found are chunks.
cost::StepLoad Evaluator::StepLoadOf(double rows) const {
  const Load& load = problem_.load;
  const double prompts = rows * Computed() / load.output;
  cost::StepLoad step = {.rows = rows, .context = load.context(), .prompt_length = load.input};
  if (hit_ > 0) {
    step.prompt_rows = prompts;
    step.prompt_row_context = load.input - Computed() / 2;
  } else {
    step.prompt_tokens = prompts;
  }
  return step;
}

Operation Evaluator::OperateWith(double rows) const {
  Operation operation;
  const cost::StepLoad load = StepLoadOf(rows);
  operation.times = cost::StepOf(problem_.model, cluster_, load);
  const Estimate step = operation.times.step;
  operation.rate = rows / step.value / problem_.load.output;
  if (cluster_.prompt_replicas == 0) {
    const double needed = (load.prompt_tokens + load.prompt_rows) / cluster_.lanes;
    operation.chunk_tokens = ChunkTokensFor(needed);
    operation.prompt_share = needed / kChunkTokensMax;
    operation.ttft = std::ceil(Computed() / operation.chunk_tokens) * step;
    return operation;
  }
  // A prompt waits for those before it as in a queue with Poisson arrivals and equal service.
  const double most = kPromptShareMax * cluster_.prompt_replicas / service_.value;
  operation.prompt_share = operation.rate / most;
  operation.rate = std::min(operation.rate, most);
  const double busy = kPromptShareMax * std::min(1.0, operation.prompt_share);
  operation.ttft = (1 + busy / (2 * (1 - busy))) * service_ + step;
  return operation;
}

bool Evaluator::Breaks(const Operation& operation, Limit& limit) const {
  if (operation.times.step.value > problem_.slo.tpot_seconds) {
    limit = Limit::kTpot;
  } else if (operation.ttft.value > problem_.slo.ttft_seconds) {
    limit = Limit::kTtft;
  } else if (operation.prompt_share > 1) {
    limit = Limit::kPrompts;
  } else {
    return false;
  }
  return true;
}

// The most rows within the latencies, by bisection: all that Breaks() looks at grows with rows.
double Evaluator::MostRows(double bound, Limit& limit) const {
  Limit broken = limit;
  if (!Breaks(OperateWith(bound), broken)) {
    return bound;
  }
  double good = cluster_.lanes;
  double bad = std::max(bound, good + 1);
  while (bad - good > 1) {
    const double middle = std::floor((good + bad) / 2);
    (Breaks(OperateWith(middle), broken) ? bad : good) = middle;
  }
  Breaks(OperateWith(bad), limit);
  return good;
}

// The Shapley share of two players in the compute nodes' time: prompts and rows.
Estimate Evaluator::InputShareOfCompute(double rows) const {
  if (cluster_.prompt_replicas > 0) {
    return {0};
  }
  const cost::StepLoad both = StepLoadOf(rows);
  cost::StepLoad prompts = both;
  prompts.rows = 0;
  cost::StepLoad decode = both;
  decode.prompt_tokens = 0;
  decode.prompt_rows = 0;
  const Estimate all = cost::ComputeSeconds(problem_.model, cluster_, both);
  const Estimate alone = cost::ComputeSeconds(problem_.model, cluster_, prompts);
  const Estimate without = cost::ComputeSeconds(problem_.model, cluster_, decode);
  return 0.5 * (alone + all - without) / all;
}

// Attention takes time in proportion to what it reads, on memory nodes or of compute nodes' time.
Evaluator::PromptReads Evaluator::PriceOfPromptReads(double rows, Estimate compute,
                                                     Estimate memory) const {
  const cost::StepLoad load = StepLoadOf(rows);
  const double prompts = load.prompt_rows * problem_.model.AttendedTokens(load.prompt_row_context);
  const double answers = load.rows * problem_.model.AttendedTokens(load.context);
  Estimate attention = memory;
  if (cluster_.policy != KvPolicy::kAttendRemote) {
    cost::StepLoad blind = load;
    blind.context = 0;
    blind.prompt_row_context = 0;
    const Estimate all = cost::ComputeSeconds(problem_.model, cluster_, load);
    const Estimate dense = cost::ComputeSeconds(problem_.model, cluster_, blind);
    attention = (all - dense) / all * compute;
  }
  PromptReads reads{.all = prompts / (prompts + answers) * attention};
  reads.found = (problem_.load.input - Computed()) / load.prompt_row_context * reads.all;
  return reads;
}

// Share of all slots that prefixes hold which no row uses. What prompts leave behind fills every
// slot that `rows` rows do not need, and is dropped as they need more.
Estimate Evaluator::KeptShare(double rows) const {
  const Estimate slots = cost::KvTokensMax(problem_.model, cluster_);
  const double used = rows * problem_.model.TokensHeld(problem_.load.context());
  return {std::max(0.0, 1 - used / slots.value), slots.provenance};
}

void Evaluator::Price(Evaluation& evaluation) const {
  const Hardware& hardware = configuration_.hardware;
  const double replicas = configuration_.replicas + configuration_.prompt_replicas;
  const double prompts = configuration_.prompt_replicas / replicas;
  const Estimate compute =
      cost::PriceOfMachines(problem_.catalogue, *hardware.compute, hardware.compute_machines);
  Estimate input =
      (prompts * Estimate{1} + (1 - prompts) * InputShareOfCompute(evaluation.rows)) * compute;
  Estimate cached;
  if (hit_ > 0) {
    const Estimate memory = evaluation.price_per_hour - compute;
    const PromptReads reads = PriceOfPromptReads(evaluation.rows, compute, memory);
    // To what the holders of K and V do comes, as work of theirs, what they keep for nobody yet.
    const Estimate busy = Estimate{1} / (Estimate{1} + KeptShare(evaluation.rows));
    const Estimate held = Estimate{1} - busy;
    switch (cluster_.policy) {
      case KvPolicy::kAttendRemote:
        input = input + busy * (reads.all - reads.found);
        cached = busy * reads.found + held * memory;
        break;
      case KvPolicy::kLocal:  // The reads are in the compute nodes' share already.
        input = busy * (input - reads.found);
        cached = busy * reads.found + held * compute;
        break;
      default:  // Here too, and memory nodes hold.
        input = input - reads.found;
        cached = reads.found + held * memory;
    }
  }
  const Estimate output = evaluation.price_per_hour - input - cached;
  const double rate = problem_.load.rate > 0
                          ? std::min(problem_.load.rate, evaluation.goodput.value)
                          : evaluation.goodput.value;
  const Estimate served =
      Estimate{rate, evaluation.goodput.provenance} * cost::MeanLoad(problem_.catalogue.economics);
  const Estimate requests = kSecondsPerHour * served;
  evaluation.input_price = kMillion * input / (Computed() * requests);
  evaluation.output_price = kMillion * output / (problem_.load.output * requests);
  if (hit_ > 0) {
    evaluation.cached_price = kMillion * cached / ((problem_.load.input - Computed()) * requests);
  }
  evaluation.tokens_per_price = evaluation.tokens_per_second / evaluation.price_per_hour;
}

void Evaluator::Fill(const Operation& most, cost::Provenance capacity,
                     Evaluation& evaluation) const {
  evaluation.times = most.times;
  evaluation.ttft = most.ttft;
  evaluation.chunk_tokens = static_cast<uint32_t>(most.chunk_tokens);
  evaluation.tokens_per_second = {most.rate * problem_.load.output,
                                  Worse(most.times.step.provenance, most.ttft.provenance)};
  if (evaluation.limit == Limit::kKvCapacity) {  // Else more memory would not change it.
    evaluation.tokens_per_second.provenance =
        Worse(evaluation.tokens_per_second.provenance, capacity);
  }
  evaluation.goodput = evaluation.tokens_per_second / problem_.load.output;
  evaluation.carries = evaluation.goodput.value >= problem_.margin * problem_.load.rate;
  Price(evaluation);
  evaluation.basis = {.dense = Worse(most.times.slice.provenance, most.times.head.provenance),
                      .attention = most.times.attention.provenance,
                      .capacity = capacity,
                      .price = evaluation.price_per_hour.provenance};
  if (cluster_.policy != KvPolicy::kLocal) {
    evaluation.basis.network = most.times.network.provenance;
  }
}

Evaluation Evaluator::Run() {
  Evaluation evaluation;
  evaluation.hit = hit_;
  evaluation.price_per_hour = PricePerHour(problem_, configuration_.hardware);
  const Estimate kv_tokens = cost::KvTokensMax(problem_.model, cluster_);
  const double fit = RowsWithin(kv_tokens);
  if (fit < cluster_.lanes) {
    const double held = problem_.model.TokensHeld(problem_.load.context());
    const double weights = cost::WeightBytesOfNode(problem_.model, cluster_);
    const bool too_large = kv_tokens.value <= 0;
    evaluation.limit = too_large ? Limit::kWeights : Limit::kKvCapacity;
    evaluation.shortfall = too_large ? weights / cluster_.compute.capacity.value
                                     : cluster_.lanes * held / kv_tokens.value;
    return evaluation;
  }
  const Operation least = OperateWith(cluster_.lanes);
  evaluation.times = least.times;
  evaluation.ttft = least.ttft;
  // Rows that wait for prompt replicas are idle, which costs goodput and breaks nothing.
  const bool idle = cluster_.prompt_replicas > 0;
  if (Breaks(least, evaluation.limit) && !(idle && evaluation.limit == Limit::kPrompts)) {
    evaluation.shortfall =
        std::max({least.times.step.value / problem_.slo.tpot_seconds,
                  least.ttft.value / problem_.slo.ttft_seconds, idle ? 0 : least.prompt_share});
    return evaluation;
  }
  evaluation.feasible = true;
  evaluation.limit = fit > kRunningMax ? Limit::kRunningMax : Limit::kKvCapacity;
  evaluation.rows = MostRows(RowsMax(fit), evaluation.limit);
  Fill(OperateWith(evaluation.rows), kv_tokens.provenance, evaluation);
  return evaluation;
}

// A step by the rates takes no more seconds a row with more rows, but where windows have no room
// for the next layer of so many; so here they have it. Its goodput with all rows that fit, and
// without any latency to keep, is the most that there is.
Rank Evaluator::BestPossible() {
  if (cluster_.compute.times != nullptr) {
    return {.carries = true, .cost = -std::numeric_limits<double>::infinity()};
  }
  const double fit = RowsWithin(cost::KvTokensMax(problem_.model, cluster_));
  if (fit < cluster_.lanes) {
    return {.carries = false, .cost = std::numeric_limits<double>::infinity()};
  }
  cluster_.fetch_window = std::numeric_limits<double>::infinity();
  return RankOfGoodput(problem_, configuration_.hardware, OperateWith(RowsMax(fit)).rate);
}

// Seconds that nothing on a compute node goes below.
struct LeastSeconds {
  double layer_row = 0;  // A row in a layer.
  double head_row = 0;   // A row in the LM head.
  double layer = 0;      // A layer, with whatever rows.
};

// Measured times are for layers without shards, rates for those with.
LeastSeconds LeastSecondsOf(const cost::ModelShape& model, const cost::DeviceRates& compute,
                            double shards_max) {
  const double flop = compute.dense.seconds_per_flop.value;
  const double bytes = cost::kElementBytes * model.LayerWeightsRead(1) / shards_max;
  LeastSeconds least = {.layer_row = model.LayerFlopsPerRow() * flop,
                        .head_row = 2 * model.HeadWeights() * flop,
                        .layer = bytes * compute.dense.seconds_per_byte.value};
  if (const cost::MeasuredTimes* times = compute.times.get(); times != nullptr) {
    least.layer_row = std::min(least.layer_row, times->slice.LeastOfUnit());
    least.layer = std::min(least.layer, times->slice.Least());
    least.head_row = times->head.empty() ? least.head_row : times->head.LeastOfUnit();
  }
  return least;
}

}  // namespace

cost::Provenance WorstOf(const Basis& basis) {
  const cost::Provenance times = Worse(Worse(basis.dense, basis.attention),
                                       basis.network.value_or(cost::Provenance::kMeasured));
  return Worse(times, Worse(basis.capacity, basis.price));
}

std::string LimitName(Limit limit) {
  switch (limit) {
    case Limit::kWeights:
      return "weights";
    case Limit::kKvCapacity:
      return "KV capacity";
    case Limit::kTpot:
      return "TPOT";
    case Limit::kTtft:
      return "TTFT";
    case Limit::kPrompts:
      return "prompts";
    case Limit::kRunningMax:
      return "running_max";
  }
  return "?";
}

Evaluation Evaluate(const Problem& problem, const Rates& rates,
                    const Configuration& configuration) {
  return Evaluator(problem, rates, configuration).Run();
}

Estimate PricePerHour(const Problem& problem, const Hardware& hardware) {
  const auto price = [&](const cost::Machine& machine, uint32_t count) {
    return cost::PriceOfMachines(problem.catalogue, machine, count);
  };
  if (hardware.memory == nullptr) {  // Hosts are part of the compute machines.
    return price(*hardware.compute, hardware.compute_machines);
  }
  if (hardware.memory == hardware.compute) {  // One kind, and its spares once.
    return price(*hardware.compute, hardware.compute_machines + hardware.memory_machines);
  }
  return price(*hardware.compute, hardware.compute_machines) +
         price(*hardware.memory, hardware.memory_machines);
}

Rank RankOf(const Problem& problem, const Evaluation& evaluation) {
  if (problem.load.rate > 0 && !evaluation.carries) {
    return {.carries = false, .cost = -evaluation.goodput.value};
  }
  // With a rate all that carry it serve the same requests. What costs nothing comes first, and of
  // that whatever answers most.
  const double price = evaluation.price_per_hour.value;
  if (problem.load.rate > 0) {
    return {.carries = true, .cost = price};
  }
  const double goodput = evaluation.goodput.value;
  return {.carries = true, .cost = price > 0 ? price / goodput : -goodput};
}

int Compare(const Rank& a, const Rank& b) {
  if (a.carries != b.carries) {
    return a.carries ? -1 : 1;
  }
  return a.cost < b.cost ? -1 : a.cost > b.cost ? 1 : 0;
}

// Goodput is bounded by the arithmetic of all compute nodes, and by the rows that fit, or that
// running_max allows, while every step reads the weights.
Rank BestPossibleRank(const Problem& problem, const Rates& rates, const Hardware& hardware) {
  Configuration configuration;
  configuration.hardware = hardware;
  configuration.policy = hardware.two_pools() ? KvPolicy::kAttendRemote : KvPolicy::kLocal;
  const Cluster cluster = rates.ClusterOf(configuration);
  const double devices = hardware.compute->devices * cost::Real(hardware.compute_machines);
  const double prompts =
      std::max(1.0, problem.load.input - problem.load.prefix) / problem.load.output;
  const double layers = problem.model.layers;
  const LeastSeconds least =
      LeastSecondsOf(problem.model, cluster.compute, hardware.compute->devices);
  const double by_arithmetic =
      devices / (layers * least.layer_row * (1 + prompts) + least.head_row);
  const double bytes = hardware.two_pools()
                           ? cluster.memory_nodes * cluster.memory.capacity.value
                           : devices * cluster.compute.capacity.value - problem.model.WeightBytes();
  const double fit = std::max(0.0, bytes) / problem.model.KvBytesPerToken() /
                     problem.model.TokensHeld(problem.load.context());
  const double rows = std::min(fit, std::max(kRunningMax, devices));
  const double by_memory = rows / (layers * least.layer);
  return RankOfGoodput(problem, hardware, std::min(by_arithmetic, by_memory) / problem.load.output);
}

Rank BestPossibleRank(const Problem& problem, const Rates& rates,
                      const Configuration& configuration) {
  return Evaluator(problem, rates, configuration).BestPossible();
}

}  // namespace lamina::planner
