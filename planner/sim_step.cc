// SPDX-License-Identifier: Apache-2.0
#include "planner/sim_step.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "cost/token_price.h"
#include "cost/unit_seconds.h"

namespace lamina::planner {
namespace {

constexpr uint32_t kHeadPiecesMax = 16;

}  // namespace

Nanos NanosOf(double seconds) {
  constexpr double kMost = 1e9;  // Some thirty years: sums of several are still Nanos.
  return seconds < kMost ? std::max<Nanos>(1, std::llround(seconds * 1e9)) : Seconds(1'000'000'000);
}

// Tokens of a layer that a row attends to, in the mean over layers.
double StepPricer::AttendedOf(const plan::DecodeRow& row) const {
  return shape_.AttendedTokens(row.position + 1.0) / shape_.layers;
}

void StepPricer::Join(const plan::StepPlan& plan) {
  for (const plan::SequenceLeave& leave : plan.leaves) {
    joined_.erase(leave.id);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    joined_[join.id] = {.memory_node = join.memory_node,
                        .tokens = static_cast<uint32_t>(join.tokens.size()),
                        .inputs = join.input_tokens(),
                        .cached = join.cached_tokens};
  }
}

bool StepPricer::IsPrompt(const plan::DecodeRow& row) const {
  const auto joined = joined_.find(row.sequence);
  return joined != joined_.end() && row.position < joined->second.inputs;
}

// All do but prompt rows before the last one.
bool StepPricer::Samples(const plan::DecodeRow& row) const {
  const auto joined = joined_.find(row.sequence);
  return joined == joined_.end() || row.position + 1 >= joined->second.tokens;
}

StepPricer::Load StepPricer::LoadOf(const plan::StepPlan& plan, bool prompts, bool rows) const {
  Load load;
  load.step.rows = 0;
  for (const plan::DecodeRow& row : plan.rows) {
    if (IsPrompt(row) ? prompts : rows) {
      ++load.step.rows;
      load.attended += AttendedOf(row);
      load.sampled += Samples(row) ? 1 : 0;
    }
  }
  if (!prompts) {
    return load;
  }
  double length = 0;
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    load.step.prompt_tokens += chunk.tokens;
    // A chunk attends to as much as the middle of a prompt of this length.
    length += chunk.tokens * (2.0 * chunk.first_token + chunk.tokens);
    load.sampled += chunk.last ? 1 : 0;
  }
  if (load.step.prompt_tokens > 0) {
    load.step.prompt_length = length / load.step.prompt_tokens;
  }
  return load;
}

// Seconds of one layer, with the attention where the compute node does it.
double StepPricer::SliceSeconds(const Load& load) const {
  if (load.step.rows + load.step.prompt_tokens == 0) {
    return 0;
  }
  double seconds = cost::SliceSeconds(shape_, cluster_, load.step).value;
  if (!attends_away() && load.step.rows > 0) {
    const double bytes = load.attended * shape_.KvBytesPerTokenLayer() / cluster_.shards;
    seconds += cost::AttentionSeconds(cluster_.compute.attention, load.step.rows, bytes).value;
  }
  return seconds;
}

double StepPricer::ComputeSeconds(const Load& load) const {
  return shape_.layers * SliceSeconds(load) +
         (load.sampled > 0 ? cost::HeadSeconds(shape_, cluster_, load.sampled).value : 0);
}

void StepPricer::FillCompute(const plan::StepPlan& plan, const Load& load, SimStep& step) const {
  const double slice = SliceSeconds(load);
  step.slice = NanosOf(slice);
  if (load.sampled > 0) {
    const double head = cost::HeadSeconds(shape_, cluster_, load.sampled).value;
    step.head_pieces =
        std::clamp(static_cast<uint32_t>(std::lround(head / slice)), 1u, kHeadPiecesMax);
    step.head_piece = NanosOf(head / step.head_pieces);
  }
  step.hop =
      NanosOf(cost::HopSeconds(shape_, cluster_, load.step.rows + load.step.prompt_tokens).value);
  const double border =
      cost::BorderSeconds(cluster_, load.step.all_rows() + load.step.prompt_tokens);
  step.border = border > 0 ? NanosOf(border) : 0;
  const double both = ComputeSeconds(load);
  const double prompts = cost::ShapleyShares(both, ComputeSeconds(LoadOf(plan, true, false)),
                                             ComputeSeconds(LoadOf(plan, false, true)))
                             .input;
  const double found = std::min(prompts, FoundSeconds(plan));
  step.input_share = (prompts - found) / both;
  step.cached_share = found / both;
}

// Seconds for which compute nodes, where they attend, attend to what was found computed.
double StepPricer::FoundSeconds(const plan::StepPlan& plan) const {
  if (attends_away()) {
    return 0;
  }
  Read read;
  for (const plan::DecodeRow& row : plan.rows) {
    read.Add(ReadOf(row), 1.0 / cluster_.shards);
  }
  const Attended attended = Attend(cluster_.compute.attention, read);
  return shape_.layers * attended.seconds * attended.cached_share;
}

void StepPricer::Read::Add(const Read& row, double share) {
  rows += row.rows;
  prompt_rows += row.prompt_rows;
  all += share * row.all;
  prompts += share * row.prompts;
  cached += share * row.cached;
}

StepPricer::Read StepPricer::ReadOf(const plan::DecodeRow& row) const {
  Read read{.rows = 1, .all = AttendedOf(row) * shape_.KvBytesPerTokenLayer()};
  if (IsPrompt(row)) {
    read.prompt_rows = 1;
    read.prompts = read.all;
    read.cached = read.all * joined_.at(row.sequence).cached / (row.position + 1.0);
  }
  return read;
}

// Sets which rows a memory node attends, and what crosses its link; all of them with heads or token
// ranges spread.
void StepPricer::FillMemory(const plan::StepPlan& plan, const Load& load, SimStep& step) {
  const cost::Traffic traffic = cost::TrafficOf(shape_, cluster_, load.step);
  const double compute_byte = cluster_.compute_link.seconds_per_byte.value / cluster_.shards;
  const double memory_byte = cluster_.memory_link.seconds_per_byte.value;
  step.out = NanosOf(traffic.out * compute_byte);
  if (plan.rows.empty()) {
    return;
  }
  step.back = NanosOf(traffic.back * compute_byte);
  step.latency = NanosOf(cost::ExchangeSeconds(cluster_, load.step.rows).value / 2);
  const bool by_request = cluster_.partition == Partition::kRequest;
  const double share = by_request ? 1 : cost::BusiestShare(shape_, cluster_, 1);
  reads_.assign(cluster_.memory_nodes, {});
  double all = 0;
  for (const plan::DecodeRow& row : plan.rows) {
    const Read read = ReadOf(row);
    all += read.all;
    reads_[by_request ? joined_.at(row.sequence).memory_node : 0].Add(read, share);
  }
  if (!by_request) {
    std::fill(reads_.begin() + 1, reads_.end(), reads_[0]);
  }
  for (uint32_t node = 0; node < reads_.size(); ++node) {
    if (reads_[node].all > 0) {
      const Attended attended = Attend(cluster_.memory.attention, reads_[node]);
      step.attentions.push_back(
          {.node = node,
           .arrive = NanosOf(traffic.out * reads_[node].all / all * memory_byte),
           .attend = NanosOf(attended.seconds),
           .input_share = attended.input_share,
           .cached_share = attended.cached_share});
    }
  }
}

StepPricer::Attended StepPricer::Attend(const cost::AttentionRates& rates, const Read& read) {
  const auto seconds = [&](double rows, double bytes) {
    return bytes > 0 ? cost::AttentionSeconds(rates, rows, bytes).value : 0;
  };
  const double both = seconds(read.rows, read.all);
  if (both == 0) {
    return {};
  }
  const double prompts =
      cost::ShapleyShares(both, seconds(read.prompt_rows, read.prompts),
                          seconds(read.rows - read.prompt_rows, read.all - read.prompts))
          .input /
      both;
  const double cached = read.prompts > 0 ? read.cached / read.prompts : 0;
  return {.seconds = both, .input_share = prompts * (1 - cached), .cached_share = prompts * cached};
}

SimStep StepPricer::Of(const plan::StepPlan& plan) {
  Join(plan);
  SimStep step;
  step.result = {.epoch = plan.epoch, .lane = plan.lane, .step = plan.step};
  step.pinned = !plan.chunks.empty();
  step.rows = static_cast<uint32_t>(plan.rows.size());
  step.work_rows = static_cast<uint32_t>(plan.rows.size() + plan.chunks.size());
  for (const plan::DecodeRow& row : plan.rows) {
    if (Samples(row)) {
      step.result.tokens.push_back({.sequence = row.sequence, .position = row.position + 1});
    }
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    if (chunk.last) {
      step.result.tokens.push_back(
          {.sequence = chunk.sequence, .position = chunk.first_token + chunk.tokens});
    }
  }
  if (step.work_rows > 0) {
    const Load load = LoadOf(plan, true, true);
    FillCompute(plan, load, step);
    if (attends_away()) {
      FillMemory(plan, load, step);
    }
  }
  return step;
}

}  // namespace lamina::planner
