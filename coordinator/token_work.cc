// SPDX-License-Identifier: Apache-2.0
#include "coordinator/token_work.h"

#include <algorithm>
#include <cstddef>

namespace lamina::coordinator {
namespace {

double SecondsOf(const cost::UnitTimes& times, double units) {
  return units == 0 ? 0 : times.fixed + times.slope * units;
}

double SecondsOf(const cost::Work& work) { return work.input + work.output + work.cached; }

cost::StepShares SharesOf(const cost::UnitTimes& times, double prompts, double rows) {
  return cost::ShapleyShares(SecondsOf(times, prompts + rows), SecondsOf(times, prompts),
                             SecondsOf(times, rows));
}

}  // namespace

void TokenWork::Join(const plan::StepPlan& plan) {
  for (const plan::SequenceLeave& leave : plan.leaves) {
    joined_.erase(leave.id);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    joined_[join.id] = {.inputs = join.input_tokens(), .cached = join.cached_tokens};
    cached_tokens_ += join.cached_tokens;
  }
}

double TokenWork::Load::cached_share() const {
  const double prompts = prompt_context + cached_context;
  return prompts > 0 ? cached_context / prompts : 0;
}

TokenWork::Load TokenWork::LoadOf(const plan::StepPlan& plan) const {
  Load load;
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    load.prompt_tokens += chunk.tokens;
  }
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const plan::DecodeRow& row = plan.rows[i];
    const auto joined = joined_.find(row.sequence);
    const double context = row.position + 1.0;
    if (joined != joined_.end() && row.position < joined->second.inputs) {
      ++load.prompt_tokens;
      load.cached_context += joined->second.cached;
      load.prompt_context += context - joined->second.cached;
      const bool goes_on = i + 1 < plan.rows.size() && plan.rows[i + 1].sequence == row.sequence;
      load.prompt_read += goes_on ? 0 : context;
    } else {
      ++load.generated_tokens;
      load.generated_context += context;
    }
  }
  return load;
}

void TokenWork::Add(const plan::StepPlan& plan, bool on_prompt_nodes) {
  if (plan.epoch != epoch_) {
    joined_.clear();
    epoch_ = plan.epoch;
  }
  Join(plan);
  const Load load = LoadOf(plan);
  input_tokens_ += load.prompt_tokens;
  if (on_prompt_nodes) {
    return;
  }
  const cost::StepShares compute = SharesOf(times_.slice, static_cast<double>(load.prompt_tokens),
                                            static_cast<double>(load.generated_tokens));
  if (times_.memory_nodes == 0) {
    return AddLocal(load, compute);
  }
  work_.compute.input += layers_ * compute.input;
  work_.compute.output += layers_ * compute.output;
  const cost::StepShares memory = SharesOf(times_.attention, load.prompt_read / times_.memory_nodes,
                                           load.generated_context / times_.memory_nodes);
  const double cached = load.cached_share();
  work_.memory.input += layers_ * memory.input * (1 - cached);
  work_.memory.cached += layers_ * memory.input * cached;
  work_.memory.output += layers_ * memory.output;
}

// Attention is shared by what it reads, and the rest of the slice by rows.
void TokenWork::AddLocal(const Load& load, const cost::StepShares& slice) {
  const double both = slice.input + slice.output;
  const double read = load.prompt_read + load.generated_context;
  const double attention = std::min(both, SecondsOf(times_.attention, read));
  const double dense = both > 0 ? 1 - attention / both : 0;
  const double prompts = read > 0 ? attention * load.prompt_read / read : 0;
  const double cached = prompts * load.cached_share();
  work_.compute.input += layers_ * (dense * slice.input + prompts - cached);
  work_.compute.cached += layers_ * cached;
  work_.compute.output += layers_ * (dense * slice.output + attention - prompts);
}

void TokenWork::Hold(double kept_share, bool on_compute_nodes, Nanos now) {
  cost::Work& work = on_compute_nodes ? work_.compute : work_.memory;
  const cost::Work& before = on_compute_nodes ? held_.compute : held_.memory;
  work.cached += kept_share * (SecondsOf(work) - SecondsOf(before));
  held_ = work_;
  held_until_ = now;
}

}  // namespace lamina::coordinator
