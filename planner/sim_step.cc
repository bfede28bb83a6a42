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

Nanos NanosOf(double seconds) { return std::max<Nanos>(1, std::llround(seconds * 1e9)); }

// Tokens of a layer that a row attends to, in the mean over layers.
double StepPricer::AttendedOf(const plan::DecodeRow& row) const {
  return shape_.AttendedTokens(row.position + 1.0) / shape_.layers;
}

StepPricer::Load StepPricer::LoadOf(const plan::StepPlan& plan) const {
  Load load;
  load.step.rows = static_cast<double>(plan.rows.size());
  load.sampled = static_cast<uint32_t>(plan.rows.size());
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

// Of one layer, with the attention where it is the compute node's.
double StepPricer::SliceSeconds(const Load& load, double attended) const {
  if (load.step.rows + load.step.prompt_tokens == 0) {
    return 0;
  }
  double seconds = cost::SliceSeconds(shape_, cluster_, load.step).value;
  if (!attends_away() && load.step.rows > 0) {
    seconds += cost::AttentionSeconds(cluster_.compute.attention,
                                      attended * shape_.KvBytesPerTokenLayer() / cluster_.shards)
                   .value;
  }
  return seconds;
}

double StepPricer::ComputeSeconds(const Load& load, double attended) const {
  return shape_.layers * SliceSeconds(load, attended) +
         (load.sampled > 0 ? cost::HeadSeconds(shape_, cluster_, load.sampled).value : 0);
}

void StepPricer::FillCompute(const Load& load, double attended, SimStep& step) const {
  const double slice = SliceSeconds(load, attended);
  step.slice = NanosOf(slice);
  if (load.sampled > 0) {
    const double head = cost::HeadSeconds(shape_, cluster_, load.sampled).value;
    step.head_pieces =
        std::clamp(static_cast<uint32_t>(std::lround(head / slice)), 1u, kHeadPiecesMax);
    step.head_piece = NanosOf(head / step.head_pieces);
  }
  step.hop =
      NanosOf(cost::HopSeconds(shape_, cluster_, load.step.rows + load.step.prompt_tokens).value);
  Load prompts = load;
  prompts.step.rows = 0;
  prompts.sampled -= static_cast<uint32_t>(load.step.rows);
  Load rows = load;
  rows.step.prompt_tokens = 0;
  rows.sampled = static_cast<uint32_t>(load.step.rows);
  const double both = ComputeSeconds(load, attended);
  step.input_share =
      cost::ShapleyShares(both, ComputeSeconds(prompts, 0), ComputeSeconds(rows, attended)).input /
      both;
}

// Which rows a memory node attends, and what crosses its link; all of them with heads or token
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
  step.latency = NanosOf((cluster_.compute_link.latency + cluster_.memory_link.latency).value / 2);
  bytes_.assign(cluster_.memory_nodes, 0);
  double all = 0;
  for (const plan::DecodeRow& row : plan.rows) {
    const double bytes = AttendedOf(row) * shape_.KvBytesPerTokenLayer();
    all += bytes;
    if (cluster_.partition == Partition::kRequest) {
      bytes_[nodes_.at(row.sequence)] += bytes;
    }
  }
  if (cluster_.partition != Partition::kRequest) {
    std::fill(bytes_.begin(), bytes_.end(), all * cost::BusiestShare(shape_, cluster_, 1));
  }
  for (uint32_t node = 0; node < bytes_.size(); ++node) {
    if (bytes_[node] > 0) {
      step.attentions.push_back(
          {.node = node,
           .arrive = NanosOf(traffic.out * bytes_[node] / all * memory_byte),
           .attend =
               NanosOf(cost::AttentionSeconds(cluster_.memory.attention, bytes_[node]).value)});
    }
  }
}

SimStep StepPricer::Of(const plan::StepPlan& plan) {
  for (const plan::SequenceJoin& join : plan.joins) {
    nodes_[join.id] = join.memory_node;
  }
  SimStep step;
  step.result = {.epoch = plan.epoch, .lane = plan.lane, .step = plan.step};
  step.pinned = !plan.chunks.empty();
  step.rows = static_cast<uint32_t>(plan.rows.size());
  step.work_rows = static_cast<uint32_t>(plan.rows.size() + plan.chunks.size());
  double attended = 0;
  for (const plan::DecodeRow& row : plan.rows) {
    attended += AttendedOf(row);
    step.result.tokens.push_back({.sequence = row.sequence, .position = row.position + 1});
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    if (chunk.last) {
      step.result.tokens.push_back(
          {.sequence = chunk.sequence, .position = chunk.first_token + chunk.tokens});
    }
  }
  if (step.work_rows > 0) {
    const Load load = LoadOf(plan);
    FillCompute(load, attended, step);
    if (attends_away()) {
      FillMemory(plan, load, step);
    }
  }
  return step;
}

}  // namespace lamina::planner
