// SPDX-License-Identifier: Apache-2.0
#include "memory_node/step_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/attention.h"
#include "plan/epoch_shape.h"
#include "plan/hybrid_slots.h"
#include "plan/token_sets.h"

namespace lamina::memory_node {
namespace {

// Adds the row if it sees a span that lies here.
absl::Status CollectSpanRow(const plan::EpochConfig& config, const plan::SlotTables& tables,
                            const plan::SlotTables::Sequence& sequence, uint32_t position,
                            Lane& lane) {
  const uint32_t span_tokens = config.span_tokens;
  Row row{.sequence = &sequence, .position = position, .own = false};
  for (const plan::SlotTables::Span& span : sequence.spans) {
    row.partials += span.index * span_tokens <= position;
  }
  if (row.partials == 0) {
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Extent> slot, tables.SlotsOf(sequence, position, 1));
  if (!slot.empty()) {
    row.own = true;
    row.slot = slot[0];
  }
  lane.rows.push_back(row);
  return absl::OkStatus();
}

// Adds tokens with these slots of the node, whose rows are of the path. Where slots are of kinds
// each part is a chunk of its own. Errors: kInternal  tokens of other rows bring other activations.
absl::Status CollectTokens(const plan::EpochConfig& config, plan::AttentionPath path, uint32_t node,
                           std::vector<Extent> slots, Lane& lane) {
  const uint32_t width = plan::ActivationWidthOf(config, path);
  if (!lane.chunks.empty() && lane.activation_width != width) {
    return absl::InternalError(absl::StrCat(
        "plan of lane ", lane.index, " has tokens with activations of ", lane.activation_width,
        " and of ", width, " elements, which lie in one window"));
  }
  lane.activation_width = width;
  const uint32_t tokens =
      std::accumulate(slots.begin(), slots.end(), 0u,
                      [](uint32_t sum, const Extent& extent) { return sum + extent.tokens; });
  lane.chunk_tokens += tokens;
  const plan::SlotKinds kinds = plan::KindsOf(config, path, node);
  if (kinds.share() == 0) {
    for (Extent& extent : slots) {
      extent.first_slot = kinds.IndexOf(extent.first_slot);
    }
    lane.chunks.push_back(
        {.tokens = tokens, .slots = std::move(slots), .kept = width > 0 ? Kept::kAll : Kept::kKv});
    return absl::OkStatus();
  }
  for (const Extent& extent : slots) {
    kinds.VisitParts(extent, [&](Extent part, bool activation) {
      lane.chunks.push_back(
          {.tokens = part.tokens,
           .slots = {{.first_slot = kinds.IndexOf(part.first_slot), .tokens = part.tokens}},
           .kept = activation ? Kept::kActivation : Kept::kKv});
    });
  }
  return absl::OkStatus();
}

// Tokens of a prompt, of which some may lie here. Those of a cut sequence whose slots are INT8 are
// stored span by span, each with the open block that it has there.
absl::Status CollectPrompt(const plan::EpochConfig& config, const plan::SlotTables& tables,
                           const plan::SlotTables::Sequence& sequence,
                           const plan::PrefillChunk& prompt, Lane& lane) {
  const bool by_span = config.span_tokens > 0 && config.KvFormOf(sequence.path) == KvForm::kInt8;
  const uint32_t end = prompt.first_token + prompt.tokens;
  for (uint32_t first = prompt.first_token; first < end;) {
    const uint32_t span_end = by_span ? (first / config.span_tokens + 1) * config.span_tokens : end;
    const uint32_t tokens = std::min(span_end, end) - first;
    LAMINA_ASSIGN_OR_RETURN(std::vector<Extent> slots, tables.SlotsOf(sequence, first, tokens));
    if (!slots.empty()) {  // Else it is all of spans on other nodes.
      LAMINA_RETURN_IF_ERROR(
          CollectTokens(config, sequence.path, tables.node(), std::move(slots), lane));
      lane.chunks.back().sequence = &sequence;
      lane.chunks.back().first_token = first;
    }
    first += tokens;
  }
  return absl::OkStatus();
}

// The own token of a row that attends elsewhere. With INT8 consecutive ones are stored together,
// block by block.
absl::Status CollectFetchedToken(const plan::EpochConfig& config,
                                 const plan::SlotTables::Sequence& sequence, uint32_t node,
                                 uint32_t position, std::vector<Extent> slot, Lane& lane) {
  if (config.KvFormOf(sequence.path) == KvForm::kBF16) {
    return CollectTokens(config, sequence.path, node, std::move(slot), lane);
  }
  if (!lane.chunks.empty()) {
    Chunk& last = lane.chunks.back();
    if (last.sequence == &sequence && last.first_token + last.tokens == position) {
      last.slots.push_back(slot[0]);
      ++last.tokens;
      ++lane.chunk_tokens;
      return absl::OkStatus();
    }
  }
  lane.chunks.push_back(
      {.tokens = 1, .slots = std::move(slot), .sequence = &sequence, .first_token = position});
  ++lane.chunk_tokens;
  return absl::OkStatus();
}

// Rows of a step, and tokens of its prompts, have K and V of one form: one arena's.
// Errors: kInternal  this sequence's are of the other one.
absl::Status TakeForm(const plan::EpochConfig& config, const plan::SlotTables::Sequence& sequence,
                      bool is_first, Lane& lane) {
  const KvForm form = config.KvFormOf(sequence.path);
  if (!is_first && form != lane.form) {
    return absl::InternalError(absl::StrCat("plan of lane ", lane.index, " has rows of K and V as ",
                                            KvFormName(form), " and as ", KvFormName(lane.form)));
  }
  lane.form = form;
  return absl::OkStatus();
}

// Rows of one sequence follow each other in order.
void CollectFetchedRow(const plan::SlotTables::Sequence& sequence, uint32_t position, Lane& lane) {
  if (!lane.fetched.empty()) {
    FetchedRun& last = lane.fetched.back();
    if (last.sequence == &sequence && last.run.before + last.run.tokens == position) {
      ++last.run.tokens;
      return;
    }
  }
  lane.fetched.push_back(
      {.sequence = &sequence, .run = {.before = position, .tokens = 1}, .slots = {}, .unseen = 0});
}

// Whether the compute node makes K and V of some tokens of the path from their numbers.
bool MakesFromTokens(const plan::EpochConfig& config, plan::AttentionPath path) {
  return path == plan::AttentionPath::kRecompute && config.made_tokens_max > 0;
}

// Which of the tokens before a run come as what, and where they lie on the node.
void SplitRun(const plan::EpochConfig& config, uint32_t node, const plan::StepPlan& plan,
              FetchedRun& fetched) {
  const plan::SlotTables::Sequence& sequence = *fetched.sequence;
  const plan::SlotKinds kinds = plan::KindsOf(config, sequence.path, node);
  const plan::FetchSplit split =
      kinds.share() > 0
          ? plan::SplitBySlots(fetched.run.before, fetched.run.tokens, sequence, kinds)
      : MakesFromTokens(config, sequence.path)
          ? plan::SplitByTokens(fetched.run.before, fetched.run.tokens, plan.recomputed,
                                sequence.released, config.KvFormOf(sequence.path))
          : plan::SplitByShare(
                fetched.run.before, fetched.run.tokens, plan.recomputed, sequence.bare,
                plan::HiddenOf(config, sequence.path, sequence.released), sequence.resident);
  fetched.run = split.run;
  fetched.slots = plan::SlotsOf(split, sequence.extents, kinds);
  fetched.unseen = std::min(sequence.released, fetched.run.before) - fetched.run.hidden;
}

// Splits what of the run is of a span that lies here, on the node.
FetchedRun SplitSpan(const plan::EpochConfig& config, uint32_t node, const plan::StepPlan& plan,
                     const FetchedRun& whole, const plan::SlotTables::Span& span) {
  const plan::SlotTables::Sequence& sequence = *whole.sequence;
  const plan::SlotKinds kinds = plan::KindsOf(config, sequence.path, node);
  const plan::TokenSpan tokens = plan::SpanAt(config, span.index);
  const uint32_t hidden = plan::HiddenOf(config, sequence.path, sequence.released);
  const plan::FetchSplit split =
      kinds.share() > 0 ? plan::SplitSlotsBySpan(whole.run.before, whole.run.tokens, sequence,
                                                 kinds, tokens, span.extents)
      : MakesFromTokens(config, sequence.path)
          ? plan::SplitTokensBySpan(whole.run.before, whole.run.tokens, plan.recomputed, hidden,
                                    tokens)
          : plan::SplitBySpan(whole.run.before, whole.run.tokens, hidden, tokens, plan.recomputed,
                              sequence.bare, sequence.resident);
  return {.sequence = &sequence,
          .run = split.run,
          .slots = plan::SlotsOf(split, span.extents, kinds),
          .unseen = 0};
}

// Partition token_range: what of the runs is of spans that lie here, span by span.
std::vector<FetchedRun> CutBySpan(const plan::EpochConfig& config, uint32_t node,
                                  const plan::StepPlan& plan, const std::vector<FetchedRun>& runs) {
  std::vector<FetchedRun> cut;
  for (const FetchedRun& whole : runs) {
    for (const plan::SlotTables::Span& span : whole.sequence->spans) {
      if (plan::SpanAt(config, span.index).first >= whole.run.before + whole.run.tokens) {
        break;
      }
      cut.push_back(SplitSpan(config, node, plan, whole, span));
    }
  }
  return cut;
}

}  // namespace

absl::Status CollectRows(const plan::EpochConfig& config, const plan::SlotTables& tables,
                         const plan::StepPlan& plan, Lane& lane) {
  const uint32_t kv_rows_max = plan::WindowShapeOf(config).kv_rows_max;
  const uint32_t node = tables.node();
  const bool by_span = config.partition == Partition::kTokenRange;
  lane.fetched.clear();
  lane.rows.clear();
  lane.chunks.clear();
  lane.chunk_tokens = 0;
  lane.activation_width = 0;
  for (const plan::DecodeRow& row : plan.rows) {
    const plan::SlotTables::Sequence* sequence = tables.Find(row.sequence);
    if (sequence == nullptr) {
      continue;  // The sequence is another node's.
    }
    LAMINA_RETURN_IF_ERROR(
        TakeForm(config, *sequence, lane.rows.empty() && lane.fetched.empty(), lane));
    const bool fetches = plan::Fetches(sequence->path);
    if (by_span && !fetches) {
      LAMINA_RETURN_IF_ERROR(CollectSpanRow(config, tables, *sequence, row.position, lane));
      continue;
    }
    if (by_span && row.position >= sequence->tokens) {  // Its slot may be another node's.
      return absl::InternalError(absl::StrCat("plan of lane ", lane.index,
                                              " has a row at position ", row.position,
                                              " of a sequence with slots for ", sequence->tokens));
    }
    LAMINA_ASSIGN_OR_RETURN(std::vector<Extent> slot, tables.SlotsOf(*sequence, row.position, 1));
    if (fetches) {
      if (!lane.fetched.empty() && lane.fetched_by != sequence->path) {
        return absl::InternalError(
            absl::StrCat("plan of lane ", lane.index, " step ", plan.step,
                         " has rows of two paths that fetch, which come through the same windows"));
      }
      lane.fetched_by = sequence->path;
      if (!slot.empty()) {
        LAMINA_RETURN_IF_ERROR(
            CollectFetchedToken(config, *sequence, node, row.position, std::move(slot), lane));
      }
      CollectFetchedRow(*sequence, row.position, lane);
      continue;
    }
    lane.rows.push_back({.sequence = sequence, .position = row.position, .slot = slot[0]});
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    const plan::SlotTables::Sequence* sequence = tables.Find(chunk.sequence);
    if (sequence == nullptr) {
      continue;
    }
    LAMINA_RETURN_IF_ERROR(
        TakeForm(config, *sequence, lane.rows.empty() && lane.chunks.empty(), lane));
    LAMINA_RETURN_IF_ERROR(CollectPrompt(config, tables, *sequence, chunk, lane));
  }
  if (!lane.rows.empty() && !lane.fetched.empty()) {
    return absl::InternalError(absl::StrCat("plan of lane ", lane.index, " step ", plan.step,
                                            " has rows that attend here and rows that fetch"));
  }
  const auto others = std::stable_partition(lane.rows.begin(), lane.rows.end(),
                                            [](const Row& row) { return row.own; });
  lane.own_rows = static_cast<uint32_t>(others - lane.rows.begin());
  lane.partials = 0;
  for (Row& row : lane.rows) {
    row.first_partial = lane.partials;
    lane.partials += row.partials;
  }
  if (plan.recomputed > 0 && !lane.fetched.empty() &&
      lane.fetched_by != plan::AttentionPath::kRecompute) {
    return absl::InternalError(
        "plan says how many tokens are recomputed, of rows whose path keeps no activations in "
        "addition to K and V, and makes none from token numbers");
  }
  if (by_span) {
    lane.fetched = CutBySpan(config, node, plan, lane.fetched);
  } else {
    for (FetchedRun& fetched : lane.fetched) {
      SplitRun(config, node, plan, fetched);
    }
  }
  if (lane.rows.size() > config.rows_max || lane.chunk_tokens > kv_rows_max) {
    return absl::InternalError(absl::StrCat("plan has ", lane.rows.size(), " rows and ",
                                            lane.chunk_tokens, " chunk tokens for a window of ",
                                            config.rows_max, " and ", kv_rows_max));
  }
  if (!lane.fetched.empty() && lane.fetched_by == plan::AttentionPath::kSparse &&
      lane.fetched.size() > plan::TokenSetRunsMax(config)) {
    return absl::InternalError(absl::StrCat("plan has ", lane.fetched.size(),
                                            " runs of rows for a window of sets of tokens of ",
                                            plan::TokenSetRunsMax(config)));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> CutAtFullBlocks(const plan::SlotTables& tables, Lane& lane) {
  using Span = plan::SlotTables::Span;
  const uint32_t ahead =
      plan::PiecesOf(lane.chunking, static_cast<uint32_t>(lane.rows.size()), /*kv_heads=*/1)
          .RowsEnd(0);
  size_t spans_all = 0;
  for (uint32_t i = 0; i < ahead; ++i) {
    Row& row = lane.rows[i];
    const plan::SlotTables::Sequence& sequence = *row.sequence;
    if (sequence.released > 0) {
      continue;  // Every layer has a window, where no row is cut.
    }
    const uint32_t blocks = row.position / kernels::kBlockTokens;
    uint32_t block = 0;
    const auto span_of = [&](uint32_t first, uint32_t tokens) -> absl::StatusOr<Span> {
      LAMINA_ASSIGN_OR_RETURN(std::vector<Extent> extents, tables.SlotsOf(sequence, first, tokens));
      return Span{
          .index = first / kernels::kBlockTokens, .extents = std::move(extents), .tokens = tokens};
    };
    for (uint32_t length = uint32_t{1} << 31; length > 0 && blocks > 0; length >>= 1) {
      if ((blocks & length) != 0) {
        LAMINA_ASSIGN_OR_RETURN(
            Span span, span_of(block * kernels::kBlockTokens, length * kernels::kBlockTokens));
        row.closed.push_back(std::move(span));
        block += length;
      }
    }
    if (blocks > 0) {
      const uint32_t first = blocks * kernels::kBlockTokens;
      LAMINA_ASSIGN_OR_RETURN(row.open, span_of(first, row.position + 1 - first));
      spans_all += row.closed.size() + 1;
    }
  }
  return spans_all;
}

}  // namespace lamina::memory_node
