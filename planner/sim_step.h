// SPDX-License-Identifier: Apache-2.0
//
// SimStep: what one planned step of a lane asks of simulated nodes: times of its slices, of its
// rows' attention on each memory node, and of its transfers, by the cost model. StepPricer makes it
// from the scheduler's plan. Of rows some are prompts' (plan/step_plan.h): each reads all K and V
// before it by itself, as a decode row does.
//
// Threading: one thread.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "cost/model_shape.h"
#include "cost/step_cost.h"
#include "plan/step_plan.h"

namespace lamina::planner {

struct SimStep {
  plan::StepResult result;  // As the nodes will report it.
  bool pinned = false;      // It has chunks, and runs on the lane's home replica.
  uint32_t rows = 0;
  uint32_t work_rows = 0;  // Rows and chunks: what the coordinator lists.
  Nanos slice = 0;         // Each layer's; with K and V on compute nodes, attention is in it.
  Nanos head_piece = 0;    // The LM head runs in pieces, between which other lanes run.
  uint32_t head_pieces = 0;
  Nanos hop = 0;            // To the next stage.
  double input_share = 0;   // Prompts' Shapley share of compute nodes' time, without this:
  double cached_share = 0;  // what they attend to there that was found computed.
  Nanos out = 0;            // A layer's rows out, on a compute node's link.
  Nanos back = 0;           // A layer's outputs back, on the same link.
  Nanos latency = 0;        // One way.
  Nanos border = 0;         // What compute nodes wait for at its end, if other lanes run.
  struct Attention {
    uint32_t node = 0;
    Nanos arrive = 0;  // On the memory node's link.
    Nanos attend = 0;
    double input_share = 0;   // Share of `attend` for prompt rows that were computed.
    double cached_share = 0;  // Share of `attend` for prompt rows that were found computed.
  };
  std::vector<Attention> attentions;  // One layer's; empty where rows wait for no memory node.
};

class StepPricer {
 public:
  // `cluster` as of an epoch: its replicas and memory nodes are those that are there.
  StepPricer(const cost::ModelShape& shape, const cost::Cluster& cluster)
      : shape_(shape), cluster_(cluster) {}

  // In the order of planning: joins of a plan count from then on.
  SimStep Of(const plan::StepPlan& plan);

 private:
  // What a sequence joined with.
  struct Joined {
    uint32_t memory_node = 0;
    uint32_t tokens = 0;
    uint32_t inputs = 0;  // SequenceJoin::input_tokens()
    uint32_t cached = 0;
  };
  struct Load {
    cost::StepLoad step;   // Prompt rows count as rows.
    double attended = 0;   // Tokens of a layer, over all rows.
    uint32_t sampled = 0;  // Rows of the LM head.
  };
  // Rows that attend on a node, and bytes of K and V of a layer that they read there.
  struct Read {
    double rows = 0;
    double prompt_rows = 0;
    double all = 0;
    double prompts = 0;  // Bytes that prompt rows read.
    double cached = 0;   // Bytes of these that were found computed.

    // A row of which the node reads this share.
    void Add(const Read& row, double share);
  };
  // A layer's attention of what is read.
  struct Attended {
    double seconds = 0;
    double input_share = 0;  // As SimStep::Attention has them.
    double cached_share = 0;
  };
  void Join(const plan::StepPlan& plan);
  bool IsPrompt(const plan::DecodeRow& row) const;
  bool Samples(const plan::DecodeRow& row) const;
  // Load of the plan's prompts, of its decode rows, or of both.
  Load LoadOf(const plan::StepPlan& plan, bool prompts, bool rows) const;
  Read ReadOf(const plan::DecodeRow& row) const;
  static Attended Attend(const cost::AttentionRates& rates, const Read& read);
  void FillCompute(const plan::StepPlan& plan, const Load& load, SimStep& step) const;
  void FillMemory(const plan::StepPlan& plan, const Load& load, SimStep& step);
  double ComputeSeconds(const Load& load) const;
  double FoundSeconds(const plan::StepPlan& plan) const;
  double SliceSeconds(const Load& load) const;
  double AttendedOf(const plan::DecodeRow& row) const;
  bool attends_away() const { return cluster_.policy == cost::KvPolicy::kAttendRemote; }

  const cost::ModelShape& shape_;
  cost::Cluster cluster_;
  absl::flat_hash_map<plan::SequenceId, Joined> joined_;  // Looked up, never walked through.
  std::vector<Read> reads_;                               // By memory node; scratch of Of().
};

// One nanosecond at least, and 10^9 seconds at most.
Nanos NanosOf(double seconds);

}  // namespace lamina::planner
