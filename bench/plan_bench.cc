// SPDX-License-Identifier: Apache-2.0
//
// How long the scheduler takes: to let a sequence in, to plan a step of all rows, to encode the
// plan for the network, once for all compute nodes and once for all memory nodes, and to take its
// result, with many sequences running on many memory nodes, of which some may end in every step and
// make place for others. Nothing is computed and nothing sent. In time of the processor, so that
// others on the machine count for little.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "bench/flags.h"
#include "common/malloc_pages.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/node_stream_service.h"

namespace lamina {
namespace {

struct Options {
  uint32_t running = 10'000;
  uint32_t nodes = 64;
  uint32_t lanes = 1;
  uint32_t prompt = 100;
  uint32_t steps = 1000;
  uint32_t ending = 0;  // Sequences that end in each step, and as many that are submitted then.
  bool prefix_cache = false;
  uint32_t span_tokens = 0;
  // Share of what all prompts and steps take; near 100 slots run out.
  uint32_t slots_percent = 200;
};

core::SchedulerOptions SchedulerOptionsOf(const Options& options) {
  core::SchedulerOptions scheduler{
      .lanes = options.lanes,
      .plan_ahead = 1,
      .rows_max = options.running,
      .step_tokens_max = 2 * options.running,
      .chunk_tokens = options.prompt,
      .scratch_tokens = 2 * options.running * options.prompt,
      .sequence_tokens_max = 4096,
      .running_max = options.running,
      .waiting_max = options.running + options.ending,
      .admission_headroom = options.slots_percent > 150 ? 16u : 0u,
      .span_tokens = options.span_tokens,
      .prefix_cache = options.prefix_cache,
  };
  const uint64_t slots = uint64_t{options.running} * (options.prompt + options.steps) /
                         options.nodes * options.slots_percent / 100;
  for (uint32_t i = 0; i < options.nodes; ++i) {
    scheduler.memory_nodes.push_back({.name = "m" + std::to_string(i),
                                      .slots = std::max(8192u, static_cast<uint32_t>(slots)),
                                      .bandwidth_bytes_per_second = 1e9});
  }
  return scheduler;
}

// How many tokens each sequence joined with, last.
class Joined {
 public:
  void Note(const plan::StepPlan& plan) {
    for (const plan::SequenceJoin& join : plan.joins) {
      tokens_.resize(std::max<size_t>(tokens_.size(), join.id + 1));
      tokens_[join.id] = static_cast<uint32_t>(join.tokens.size());
    }
  }

  // Whether the row's token is followed by one that is known: nothing is sampled then.
  bool IsBehind(const plan::DecodeRow& row) const {
    return row.position + 1 < tokens_[row.sequence];
  }

 private:
  std::vector<uint32_t> tokens_;  // By id.
};

// Rows of the sequences before `end_before` end.
plan::StepResult Answer(const plan::StepPlan& plan, const Joined& joined,
                        plan::SequenceId end_before) {
  plan::StepResult result{.epoch = plan.epoch, .lane = plan.lane, .step = plan.step};
  for (const plan::DecodeRow& row : plan.rows) {
    if (joined.IsBehind(row)) {
      continue;
    }
    const bool ends = row.sequence < end_before;
    result.tokens.push_back(
        {.sequence = row.sequence,
         .position = row.position + 1,
         .token = 100,
         .finish = ends ? plan::FinishReason::kStop : plan::FinishReason::kNone});
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    if (chunk.last) {
      result.tokens.push_back(
          {.sequence = chunk.sequence, .position = chunk.first_token + chunk.tokens, .token = 100});
    }
  }
  return result;
}

[[noreturn]] void Die(const absl::Status& why) {
  std::fprintf(stderr, "%s\n", why.ToString().c_str());
  std::abort();
}

struct Times {
  std::vector<double> plan_ms;
  std::vector<double> encode_ms;
  std::vector<double> done_ms;
  uint64_t bytes = 0;
  double rows = 0;
};

double ProcessorMillis() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Plans what may be planned, and answers it.
void Round(core::Scheduler& scheduler, Joined& joined, Times& times,
           plan::SequenceId end_before = 0) {
  std::vector<plan::StepPlan> plans;
  double start = ProcessorMillis();
  scheduler.Plan(plans);
  times.plan_ms.push_back(ProcessorMillis() - start);
  double encoded = 0;
  double done = 0;
  for (const plan::StepPlan& plan : plans) {
    joined.Note(plan);
    start = ProcessorMillis();
    for (int pool = 0; pool < 2; ++pool) {
      times.bytes += coordinator::EncodePlan(plan).size();
    }
    encoded += ProcessorMillis() - start;
    const plan::StepResult result = Answer(plan, joined, end_before);
    core::Events events;
    start = ProcessorMillis();
    if (const absl::Status taken = scheduler.OnStepDone(result, events); !taken.ok()) {
      Die(taken);
    }
    done += ProcessorMillis() - start;
    times.rows += static_cast<double>(plan.rows.size());
  }
  times.encode_ms.push_back(encoded);
  times.done_ms.push_back(done);
}

// A prompt that no other sequence has. Where slots are few and sequences come all the time, the
// queue is full at some time: what comes then is lost.
void Submit(core::Scheduler& scheduler, const Options& options, plan::SequenceId id) {
  core::SequenceRequest request{.id = id, .tokens_max = 4096};
  request.prompt.assign(options.prompt, static_cast<TokenId>(id));
  const absl::Status submitted = scheduler.Submit(std::move(request));
  if (!submitted.ok() && !absl::IsResourceExhausted(submitted)) {
    Die(submitted);
  }
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void Run(const Options& options) {
  core::Scheduler scheduler(SchedulerOptionsOf(options), core::MakeFirstComeFirstServed());
  plan::SequenceId ids = 0;
  while (ids < options.running) {
    Submit(scheduler, options, ++ids);
  }
  Joined joined;
  Times joining;
  while (scheduler.Stats().waiting > 0 && joining.plan_ms.size() < 2000) {
    Round(scheduler, joined, joining);
  }
  double joins_ms = 0;
  for (const double ms : joining.plan_ms) {
    joins_ms += ms;
  }
  Times times;
  plan::SequenceId oldest = 1;
  for (uint32_t i = 0; i < options.steps; ++i) {
    for (uint32_t j = 0; j < options.ending; ++j) {
      Submit(scheduler, options, ++ids);
    }
    oldest += options.ending;
    Round(scheduler, joined, times, oldest);
  }
  const core::SchedulerStats stats = scheduler.Stats();
  std::printf(
      "%u running on %u nodes, %u lanes: joined in %zu steps, %.1f ms of planning; then %.0f rows "
      "a step, plan %.3f ms, encoded twice %.3f ms (%.0f bytes each), result %.3f ms (medians); "
      "%llu preemptions\n",
      stats.running, options.nodes, options.lanes, joining.plan_ms.size(), joins_ms,
      times.rows / options.steps, Median(times.plan_ms), Median(times.encode_ms),
      static_cast<double>(times.bytes) / (2.0 * options.steps), Median(times.done_ms),
      static_cast<unsigned long long>(stats.preemptions));
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  lamina::EnsureHugePagesForMalloc(argv);  // As the coordinator does.
  lamina::KeepFreedMemory();
  lamina::Options options;
  CLI::App app("Times of the scheduler");
  app.add_option("--running", options.running, "sequences");
  app.add_option("--nodes", options.nodes, "memory nodes");
  app.add_option("--lanes", options.lanes, "lanes");
  app.add_option("--prompt", options.prompt, "tokens of each prompt");
  app.add_option("--steps", options.steps, "steps that are timed once all run");
  app.add_option("--ending", options.ending, "sequences that end in each step, and come");
  app.add_flag("--prefix_cache", options.prefix_cache, "keep K and V of prompts");
  app.add_option("--span_tokens", options.span_tokens, "partition token_range: tokens of a span");
  app.add_option("--slots_percent", options.slots_percent, "slots, of what prompts and steps take");
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }
  lamina::Run(options);
  return 0;
}
