// SPDX-License-Identifier: Apache-2.0
#include "compute_node/fetch_splits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "compute_node/resident_kv.h"
#include "plan/slot_kinds.h"
#include "plan/slot_tables.h"

namespace lamina::compute_node {
namespace {

// Errors: kInternal  the tables do not have it.
absl::StatusOr<const Sequence*> Find(SequenceTable& sequences, const RowRun& run,
                                     const plan::StepPlan& plan) {
  const Sequence* const sequence = sequences.Find(run.sequence);
  if (sequence == nullptr) {
    return absl::InternalError(absl::StrCat("plan of lane ", plan.lane, " step ", plan.step,
                                            " fetches tokens of sequence ", run.sequence,
                                            ", which is not in the tables"));
  }
  return sequence;
}

class AsKv final : public FetchSplits {
 public:
  AsKv(const plan::EpochConfig& config, SequenceTable& sequences)
      : config_(config), sequences_(sequences) {}

  absl::Status Apply(const plan::StepPlan& /*plan*/) override { return absl::OkStatus(); }

  absl::StatusOr<plan::FetchSplit> Of(const RowRun& run,
                                      const plan::StepPlan& plan) const override {
    LAMINA_ASSIGN_OR_RETURN(const uint32_t hidden, HiddenOf(run, plan));
    return plan::SplitByShare(run.first_token, run.tokens, /*share=*/0, /*bare=*/0, hidden);
  }

  absl::StatusOr<plan::FetchSplit> OfSpan(const RowRun& run, const plan::StepPlan& plan,
                                          uint32_t span) const override {
    LAMINA_ASSIGN_OR_RETURN(const uint32_t hidden, HiddenOf(run, plan));
    return plan::SplitBySpan(run.first_token, run.tokens, hidden, plan::SpanAt(config_, span));
  }

 private:
  absl::StatusOr<uint32_t> HiddenOf(const RowRun& run, const plan::StepPlan& plan) const {
    if (plan.recomputed > 0) {
      return absl::InternalError("plan recomputes from activations of a path that keeps none");
    }
    LAMINA_ASSIGN_OR_RETURN(const Sequence* const sequence, Find(sequences_, run, plan));
    return plan::HiddenOf(config_, plan::AttentionPath::kFetch, sequence->released);
  }

  const plan::EpochConfig& config_;
  SequenceTable& sequences_;
};

// Errors: kInternal  the plan keeps activations of the sequence in places that are not there.
absl::Status CheckPlaces(plan::SequenceId sequence, const plan::ResidentTokens& resident,
                         uint32_t places) {
  const uint64_t end = uint64_t{resident.place} + resident.tokens;
  return end <= places ? absl::OkStatus()
                       : absl::InternalError(absl::StrCat("plan has activations of sequence ",
                                                          sequence, " in places ", resident.place,
                                                          " to ", end, " of ", places));
}

class ByShare final : public FetchSplits {
 public:
  ByShare(const plan::EpochConfig& config, SequenceTable& sequences)
      : config_(config), sequences_(sequences) {}

  absl::Status Apply(const plan::StepPlan& /*plan*/) override { return absl::OkStatus(); }

  absl::StatusOr<plan::FetchSplit> Of(const RowRun& run,
                                      const plan::StepPlan& plan) const override {
    LAMINA_ASSIGN_OR_RETURN(const Sequence* const sequence, FindPlaced(run, plan));
    const plan::SequenceJoin& join = sequence->join;
    return plan::SplitByShare(run.first_token, run.tokens, plan.recomputed, join.bare_tokens,
                              sequence->released, join.resident);
  }

  absl::StatusOr<plan::FetchSplit> OfSpan(const RowRun& run, const plan::StepPlan& plan,
                                          uint32_t span) const override {
    LAMINA_ASSIGN_OR_RETURN(const Sequence* const sequence, FindPlaced(run, plan));
    const plan::SequenceJoin& join = sequence->join;
    return plan::SplitBySpan(run.first_token, run.tokens, sequence->released,
                             plan::SpanAt(config_, span), plan.recomputed, join.bare_tokens,
                             join.resident);
  }

 private:
  absl::StatusOr<const Sequence*> FindPlaced(const RowRun& run, const plan::StepPlan& plan) const {
    LAMINA_ASSIGN_OR_RETURN(const Sequence* const sequence, Find(sequences_, run, plan));
    LAMINA_RETURN_IF_ERROR(
        CheckPlaces(run.sequence, sequence->join.resident, config_.resident_tokens));
    return sequence;
  }

  const plan::EpochConfig& config_;
  SequenceTable& sequences_;
};

class ByTokens final : public FetchSplits {
 public:
  ByTokens(const plan::EpochConfig& config, SequenceTable& sequences)
      : config_(config),
        form_(config.KvFormOf(plan::AttentionPath::kRecompute)),
        sequences_(sequences) {}

  absl::Status Apply(const plan::StepPlan& /*plan*/) override { return absl::OkStatus(); }

  absl::StatusOr<plan::FetchSplit> Of(const RowRun& run,
                                      const plan::StepPlan& plan) const override {
    LAMINA_ASSIGN_OR_RETURN(const Sequence* const sequence, Find(sequences_, run, plan));
    return plan::SplitByTokens(run.first_token, run.tokens, plan.recomputed, sequence->released,
                               form_);
  }

  absl::StatusOr<plan::FetchSplit> OfSpan(const RowRun& run, const plan::StepPlan& plan,
                                          uint32_t span) const override {
    LAMINA_ASSIGN_OR_RETURN(const Sequence* const sequence, Find(sequences_, run, plan));
    return plan::SplitTokensBySpan(run.first_token, run.tokens, plan.recomputed, sequence->released,
                                   plan::SpanAt(config_, span));
  }

 private:
  const plan::EpochConfig& config_;
  const KvForm form_;
  SequenceTable& sequences_;
};

class BySlots final : public FetchSplits {
 public:
  // Slots of all memory nodes: which of them a sequence's, or a span's, are follows from where it
  // lives.
  explicit BySlots(const plan::EpochConfig& config)
      : config_(config),
        kinds_(config.activation_share),
        tables_({.slots = *std::max_element(config.slots.begin(), config.slots.end()),
                 .span_tokens = config.span_tokens,
                 .holds_all = true,
                 .all_spans = true,
                 .hybrid_slots = config.hybrid_slots.empty()
                                     ? 0
                                     : *std::max_element(config.hybrid_slots.begin(),
                                                         config.hybrid_slots.end())}) {}

  absl::Status Apply(const plan::StepPlan& plan) override { return tables_.Apply(plan); }

  absl::StatusOr<plan::FetchSplit> Of(const RowRun& run,
                                      const plan::StepPlan& plan) const override {
    LAMINA_ASSIGN_OR_RETURN(const plan::SlotTables::Sequence* const sequence,
                            FindPlaced(run, plan));
    return plan::SplitBySlots(run.first_token, run.tokens, *sequence, kinds_);
  }

  absl::StatusOr<plan::FetchSplit> OfSpan(const RowRun& run, const plan::StepPlan& plan,
                                          uint32_t span) const override {
    LAMINA_ASSIGN_OR_RETURN(const plan::SlotTables::Sequence* const sequence,
                            FindPlaced(run, plan));
    if (span >= sequence->spans.size()) {
      return absl::InternalError(absl::StrCat("plan of lane ", plan.lane, " step ", plan.step,
                                              " fetches span ", span, " of sequence ", run.sequence,
                                              ", which has ", sequence->spans.size()));
    }
    return plan::SplitSlotsBySpan(run.first_token, run.tokens, *sequence, kinds_,
                                  plan::SpanAt(config_, span), sequence->spans[span].extents);
  }

 private:
  absl::StatusOr<const plan::SlotTables::Sequence*> FindPlaced(const RowRun& run,
                                                               const plan::StepPlan& plan) const {
    const plan::SlotTables::Sequence* const sequence = tables_.Find(run.sequence);
    if (plan.recomputed > 0 || sequence == nullptr || sequence->tokens < run.first_token) {
      return absl::InternalError(absl::StrCat(
          "plan of lane ", plan.lane, " step ", plan.step, " fetches ", run.first_token,
          " tokens of sequence ", run.sequence, ", which has slots for ",
          sequence == nullptr ? 0 : sequence->tokens, ", and recomputes ", plan.recomputed));
    }
    LAMINA_RETURN_IF_ERROR(CheckPlaces(run.sequence, sequence->resident, config_.resident_tokens));
    return sequence;
  }

  const plan::EpochConfig& config_;
  const plan::SlotKinds kinds_;
  plan::SlotTables tables_;
};

class ByRecent final : public FetchSplits {
 public:
  ByRecent(const plan::EpochConfig& config, const ResidentKv& recent)
      : config_(config), recent_(recent) {}

  absl::Status Apply(const plan::StepPlan& /*plan*/) override { return absl::OkStatus(); }

  absl::StatusOr<plan::FetchSplit> Of(const RowRun& run,
                                      const plan::StepPlan& plan) const override {
    return Split(run, plan, {.first = 0, .tokens = config_.sequence_tokens_max});
  }

  absl::StatusOr<plan::FetchSplit> OfSpan(const RowRun& run, const plan::StepPlan& plan,
                                          uint32_t span) const override {
    return Split(run, plan, plan::SpanAt(config_, span));
  }

 private:
  absl::StatusOr<plan::FetchSplit> Split(const RowRun& run, const plan::StepPlan& plan,
                                         const plan::TokenSpan& span) const {
    if (plan.recomputed > 0) {
      return absl::InternalError("plan recomputes from activations of a path that keeps none");
    }
    return plan::SplitKeptBySpan(run.first_token, run.tokens,
                                 recent_.First(run.sequence, run.first_token), span);
  }

  const plan::EpochConfig& config_;
  const ResidentKv& recent_;
};

}  // namespace

std::unique_ptr<FetchSplits> MakeRecentSplits(const plan::EpochConfig& config,
                                              const ResidentKv& recent) {
  return std::make_unique<ByRecent>(config, recent);
}

std::unique_ptr<FetchSplits> MakeFetchSplits(const plan::EpochConfig& config,
                                             plan::AttentionPath path, SequenceTable& sequences) {
  if (path == plan::AttentionPath::kRecompute && config.made_tokens_max > 0) {
    return std::make_unique<ByTokens>(config, sequences);
  }
  if (path == plan::AttentionPath::kRecompute) {
    return std::make_unique<ByShare>(config, sequences);
  }
  if (path == plan::AttentionPath::kHybrid && config.activation_share > 0) {
    return std::make_unique<BySlots>(config);
  }
  return std::make_unique<AsKv>(config, sequences);
}

}  // namespace lamina::compute_node
