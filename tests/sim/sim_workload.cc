// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/sim_workload.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/sim/fake_model.h"

namespace lamina::sim {
namespace {

uint32_t Between(Prng& random, uint32_t least, uint32_t most) {
  return least + static_cast<uint32_t>(random.Below(most - least + 1));
}

core::SchedulerOptions MakeOptions(Prng& random) {
  core::SchedulerOptions options;
  options.lanes = Between(random, 1, 3);
  options.plan_ahead = Between(random, 1, 3);
  options.rows_max = Between(random, 1, 12);
  options.step_tokens_max = Between(random, 1, 40);
  options.chunk_tokens = Between(random, 1, 24);
  options.sequence_tokens_max = Between(random, 16, 64);
  options.scratch_tokens = options.sequence_tokens_max * Between(random, 1, 3);
  options.running_max = Between(random, 1, 24);
  options.waiting_max = Between(random, 4, 40);
  options.admission_headroom = random.Chance(0.5) ? 0 : Between(random, 0, 8);
  options.soft_reservation_min = Between(random, 0, 4);
  options.soft_reservation_max = options.soft_reservation_min + Between(random, 0, 16);
  const uint32_t nodes = Between(random, 1, 3);
  for (uint32_t i = 0; i < nodes; ++i) {
    // From too little for the longest sequence to plenty for many.
    options.memory_nodes.push_back({.name = absl::StrCat("memory", i),
                                    .slots = Between(random, 12, random.Chance(0.7) ? 80 : 600),
                                    .bandwidth_bytes_per_second = 1.0 + random.Uniform()});
  }
  options.lanes_auto = options.running_max % 2 == 0;
  options.sub_batches = {.automatic = true, .query_first = QueryFirst::kAuto};
  return options;
}

core::SequenceRequest MakeRequest(Prng& random, const core::SchedulerOptions& options) {
  core::SequenceRequest request;
  const uint32_t prompt = Between(random, 1, options.sequence_tokens_max - 1);
  request.prompt.resize(random.Chance(0.5) ? prompt : std::min(prompt, 6u));
  for (TokenId& token : request.prompt) {
    token = static_cast<TokenId>(random.Below(kVocabulary));
  }
  const auto size = static_cast<uint32_t>(request.prompt.size());
  request.tokens_max = Between(random, size + 1, options.sequence_tokens_max);
  request.tokens_min = random.Chance(0.2) ? size + 3 : 0;
  request.sampling.seed = random();
  request.score = random.Chance(0.1);
  request.priority = static_cast<int32_t>(random.Below(3));
  const uint32_t ends = random.Chance(0.5) ? Between(random, 0, 60) : 0;
  for (uint32_t end = 0; end < ends; ++end) {
    request.end_tokens.push_back(static_cast<TokenId>(end));
  }
  return request;
}

}  // namespace

SimWorkload MakeWorkload(Prng& random) {
  SimWorkload workload;
  workload.options = MakeOptions(random);
  workload.priority_order = random.Chance(0.3);
  workload.faults = {.cancel = random.Chance(0.5) ? 0.2 * random.Uniform() : 0,
                     .epochs = random.Chance(0.3) ? Between(random, 1, 3) : 0,
                     .message_delay_max = Micros(Between(random, 1, 300)),
                     .step_max = Micros(Between(random, 2, 500))};
  const uint32_t bursts = Between(random, 1, 6);
  plan::SequenceId next_id = 1;
  Nanos time = 0;
  for (uint32_t burst = 0; burst < bursts; ++burst) {
    time += static_cast<Nanos>(random.Below(Millis(random.Chance(0.5) ? 1 : 20)));
    SimArrival arrival{.time = time};
    const uint32_t requests = Between(random, 1, 8);
    for (uint32_t i = 0; i < requests; ++i) {
      core::SequenceRequest request = MakeRequest(random, workload.options);
      request.id = next_id++;
      arrival.requests.push_back(request);
      const uint32_t forks = random.Chance(0.3) ? Between(random, 1, 4) : 0;
      const plan::SequenceId parent = request.id;
      for (uint32_t fork = 0; fork < forks; ++fork) {
        request.id = next_id++;
        request.fork_of = parent;
        request.sampling.seed = random();
        arrival.requests.push_back(request);
      }
    }
    workload.arrivals.push_back(std::move(arrival));
  }
  workload.arrivals_end = time;
  return workload;
}

namespace {

// A request's prompt and what the model answers.
std::vector<TokenId> ConversationOf(const core::SequenceRequest& request) {
  std::vector<TokenId> tokens = request.prompt;
  FakeModel model(request.sampling.seed);
  for (const TokenId token : tokens) {
    model.See(token);
  }
  while (tokens.size() < request.tokens_max) {
    tokens.push_back(model.Next());
    model.See(tokens.back());
  }
  return tokens;
}

}  // namespace

std::unique_ptr<core::ServiceOrder> OrderOf(const SimWorkload& workload) {
  return workload.priority_order ? core::MakePriorityOrder() : core::MakeFirstComeFirstServed();
}

void ContinueConversations(Prng random, SimWorkload& workload) {
  const uint32_t longest = workload.options.sequence_tokens_max;
  std::vector<core::SequenceRequest> earlier;
  for (SimArrival& arrival : workload.arrivals) {
    for (core::SequenceRequest& request : arrival.requests) {
      if (request.fork_of != 0) {
        request.prompt = earlier.back().prompt;  // Its parent's, or another fork's.
      } else if (!earlier.empty() && random.Chance(0.8)) {
        std::vector<TokenId> tokens = ConversationOf(earlier[random.Below(earlier.size())]);
        tokens.resize(std::min<size_t>(1 + random.Below(tokens.size()), longest - 1));
        const auto more = static_cast<uint32_t>(random.Below(longest - tokens.size()));
        for (uint32_t i = 0; i < more / 2; ++i) {
          tokens.push_back(static_cast<TokenId>(random.Below(kVocabulary)));
        }
        request.prompt = std::move(tokens);
      }
      const auto size = static_cast<uint32_t>(request.prompt.size());
      request.tokens_max = Between(random, size + 1, longest);
      request.tokens_min = request.tokens_min > 0 ? size + 3 : 0;
      earlier.push_back(request);
    }
  }
}

void HaveSalts(Prng random, SimWorkload& workload) {
  constexpr const char* kSalts[] = {"", "a", "b"};
  for (SimArrival& arrival : workload.arrivals) {
    for (core::SequenceRequest& request : arrival.requests) {
      request.cache_salt =
          request.fork_of != 0 ? (&request - 1)->cache_salt : kSalts[random.Below(3)];
    }
  }
}

void SearchBeams(Prng random, SimWorkload& workload) {
  plan::SequenceId last_id = 0;
  std::set<plan::SequenceId> parents;
  for (const SimArrival& arrival : workload.arrivals) {
    for (const core::SequenceRequest& request : arrival.requests) {
      last_id = std::max(last_id, request.id);
      parents.insert(request.fork_of);
    }
  }
  for (SimArrival& arrival : workload.arrivals) {
    for (core::SequenceRequest& request : arrival.requests) {
      if (request.score || request.fork_of != 0 || parents.contains(request.id) ||
          random.Chance(0.3)) {
        continue;
      }
      constexpr BeamStop kStops[] = {BeamStop::kHeuristic, BeamStop::kFull, BeamStop::kNever};
      request.beams = {.width = Between(random, 1, 5),
                       .length_penalty = random.Uniform() * 3 - 1,
                       .early_stopping = kStops[random.Below(3)]};
      request.end_tokens.resize(std::min<size_t>(request.end_tokens.size(), 12));
      request.answers = {request.id};
      while (request.answers.size() < Between(random, 1, request.beams.width)) {
        request.answers.push_back(++last_id);
      }
    }
  }
}

// Any tokens will do, but those that may end an answer.
void ResumeRequests(Prng random, SimWorkload& workload) {
  constexpr TokenId kFirst = 100;
  for (SimArrival& arrival : workload.arrivals) {
    for (core::SequenceRequest& request : arrival.requests) {
      const auto prompt = static_cast<uint32_t>(request.prompt.size());
      if (request.score || request.beams.width > 0 || request.tokens_max <= prompt ||
          random.Chance(0.5)) {
        continue;
      }
      const uint32_t tokens = Between(random, 0, request.tokens_max - prompt - 1);
      for (uint32_t i = 0; i < tokens; ++i) {
        request.generated.push_back(kFirst +
                                    static_cast<TokenId>(random.Below(kVocabulary - kFirst)));
      }
    }
  }
}

void HaveSpillTiers(uint64_t seed, SimWorkload& workload) {
  workload.options.prefill_lanes = {};
  workload.options.strategies.out_of_slots = core::MakeSpillLast;
  workload.options.copied_run_tokens = 16u << seed / 3 % 3;
  workload.options.int8_block_tokens = 1u << seed % 5;  // Runs are of whole blocks.
  for (core::MemoryNodeShare& node : workload.options.memory_nodes) {
    // A token takes a fifth of the second that it takes to be computed, or twenty times as long.
    node.spill = {
        .blocks = static_cast<uint32_t>(seed % 6 * (seed / 18 % 2 == 0 ? 1 : 8)),
        .nodes = 1 + static_cast<uint32_t>(seed / 6 % 2),
        .rates = {.write_bytes_per_second = 10, .read_bytes_per_second = 10, .bytes_per_token = 1}};
  }
}

}  // namespace lamina::sim
