// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/step_maker.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace lamina::core {
namespace {

// Stands for the row of a token that a chunk samples.
constexpr uint32_t kNoRow = UINT32_MAX;

// The tokens in the order of their rows, which have moved; those of chunks stay behind them.
void SortTokens(const std::vector<uint32_t>& moved_to, const std::vector<uint32_t>& token_rows,
                std::vector<PlannedToken>& tokens) {
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> token_of_row(moved_to.size(), kNone);
  std::vector<PlannedToken> sorted;
  sorted.reserve(tokens.size());
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    if (token_rows[i] != kNoRow) {
      token_of_row[moved_to[token_rows[i]]] = i;
    }
  }
  for (const uint32_t token : token_of_row) {
    if (token != kNone) {
      sorted.push_back(tokens[token]);
    }
  }
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    if (token_rows[i] == kNoRow) {
      sorted.push_back(tokens[i]);
    }
  }
  tokens = std::move(sorted);
}

// What lies in front of the rows; those of one sequence that follow each other are a run.
uint64_t TokensBefore(const std::vector<plan::DecodeRow>& rows) {
  uint64_t tokens = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool goes_on = i > 0 && rows[i].sequence == rows[i - 1].sequence &&
                         rows[i].position == rows[i - 1].position + 1;
    tokens += goes_on ? 0 : rows[i].position;
  }
  return tokens;
}

}  // namespace

// What the packing strategy sees of an open step, and does with it.
class StepMaker::Packed final : public StepToPack {
 public:
  Packed(StepMaker& maker, OpenStep& open) : maker_(maker), open_(open) {}

  uint32_t rows() const override { return static_cast<uint32_t>(open_.plan.rows.size()); }
  uint32_t tokens_left() const override { return open_.tokens_left; }

  std::vector<Sequence*> Decoding() const override {
    if (lanes().IsPrefill(open_.plan.lane)) {
      return {};  // There who has no prompt left waits for room in another lane.
    }
    return Those(lane().running, [](const Sequence& sequence) { return MayHaveRow(sequence); });
  }
  std::vector<Sequence*> Prefilling() const override {
    return Those(lane().prefilling,
                 [](const Sequence& sequence) { return HasPromptLeft(sequence); });
  }

  bool AddRow(Sequence& sequence) override {
    return Runs(sequence) && MayHaveRow(sequence) && sequence.last_work != open_.plan.step &&
           maker_.AddRow(sequence, open_);
  }
  // What a row needs lies in four places of memory, each of which says where the next one is. They
  // are fetched some rows ahead.
  void AddRows(const std::vector<Sequence*>& sequences) override {
    constexpr size_t kAhead = 6;
    const size_t count = sequences.size();
    for (size_t i = 0; i < count; ++i) {
      if (i + 4 * kAhead < count) {
        sequences[i + 4 * kAhead]->Prefetch();
      }
      if (i + 3 * kAhead < count) {
        __builtin_prefetch(sequences[i + 3 * kAhead]->held);
      }
      if (i + 2 * kAhead < count && sequences[i + 2 * kAhead]->held != nullptr) {
        __builtin_prefetch(sequences[i + 2 * kAhead]->held->last);
      }
      if (i + kAhead < count && sequences[i + kAhead]->held != nullptr) {
        PrefetchTail(*sequences[i + kAhead]->held);
      }
      AddRow(*sequences[i]);
    }
  }
  uint32_t AddChunk(Sequence& sequence, uint32_t tokens_max) override {
    if (!Runs(sequence) || !HasPromptLeft(sequence) || sequence.last_work == open_.plan.step) {
      return 0;
    }
    return maker_.AddChunk(sequence, tokens_max, open_);
  }

 private:
  static void PrefetchTail(const HeldSpans& held) {
    if (held.last == nullptr) {
      return;
    }
    if (const auto extents = KvDirectory::ExtentsOf(*held.last); !extents.empty()) {
      __builtin_prefetch(&extents.back());
    }
  }
  const Lanes& lanes() const { return maker_.places_.lanes; }
  const Lanes::LaneSequences& lane() const { return lanes()[open_.plan.lane]; }
  // The strategy may hold on to those that have been taken out meanwhile.
  bool Runs(const Sequence& sequence) const {
    return sequence.runs() && sequence.lane == open_.plan.lane;
  }
  static bool MayHaveRow(const Sequence& sequence) {
    return sequence.state == SequenceState::kDecoding && !sequence.moving() &&
           sequence.planned_tokens < sequence.request.tokens_max;
  }
  static bool HasPromptLeft(const Sequence& sequence) {
    return sequence.state == SequenceState::kPrefilling && sequence.parent == 0 &&
           !sequence.restoring && sequence.chunked_tokens < sequence.join_tokens;
  }
  template <typename Which>
  static std::vector<Sequence*> Those(const SequenceQueue& queue, const Which& which) {
    constexpr size_t kAhead = 12;  // Sequences whose memory is fetched meanwhile.
    std::vector<Sequence*> those;
    those.reserve(queue.size());
    for (Sequence* sequence : queue) {
      those.push_back(sequence);
    }
    size_t kept = 0;
    for (size_t i = 0; i < those.size(); ++i) {
      if (i + kAhead < those.size()) {
        those[i + kAhead]->Prefetch();
      }
      if (which(*those[i])) {
        those[kept++] = those[i];
      }
    }
    those.resize(kept);
    return those;
  }

  StepMaker& maker_;
  OpenStep& open_;
};

StepMaker::StepMaker(const SchedulerOptions& options, SequenceLife& life,
                     const SequenceLife::Places& places, PlannedSteps& steps, RowSlots& slots,
                     std::unique_ptr<StepPacking> packing, std::unique_ptr<FetchPlanning> fetching)
    : options_(options),
      life_(life),
      places_(places),
      steps_(steps),
      slots_(slots),
      packing_(std::move(packing)),
      fetching_(std::move(fetching)) {}

OpenStep StepMaker::Open(uint64_t epoch, uint32_t lane) {
  OpenStep open;
  open.plan.epoch = epoch;
  open.plan.lane = lane;
  open.plan.step = steps_.planned(lane) + 1;
  open.record.step = open.plan.step;
  open.tokens_left = options_.step_tokens_max;
  const size_t rows = places_.lanes[lane].running.size();
  open.plan.rows.reserve(rows);
  open.plan.allocations.reserve(rows);
  open.row_nodes.reserve(rows);
  open.record.tokens.reserve(rows);
  open.token_rows.reserve(rows);
  places_.borders.Begin(lane, open.plan.step);
  if (options_.windows.longest() > 0) {
    for (Sequence* sequence : places_.lanes[lane].running) {
      slots_.ReleaseBehindWindow(*sequence, open.plan);
    }
  }
  return open;
}

void StepMaker::Pack(OpenStep& open) {
  Packed packed(*this, open);
  packing_->Pack(packed);
  StepBorder border = places_.borders.Seal(open.plan.lane);
  border.scratch.insert(border.scratch.end(), open.record.border.scratch.begin(),
                        open.record.border.scratch.end());
  // Who was taken out meanwhile gives up everything.
  std::erase_if(open.plan.releases, [&border](const plan::SlotRelease& release) {
    return std::any_of(
        border.leaves.begin(), border.leaves.end(),
        [&](const plan::SequenceLeave& leave) { return leave.id == release.sequence; });
  });
  open.record.border = std::move(border);
}

// No more sequences than a lane has: one that joins has no rows in a step that has those of one
// which it took the place of.
uint32_t StepMaker::RoomForRows(const OpenStep& open) const {
  if (open.row_sequences >= options_.rows_max) {
    return 0;
  }
  const uint32_t most = options_.rows_max + options_.prompt_rows_max;
  const auto rows = static_cast<uint32_t>(open.plan.rows.size());
  return most - std::min(most, rows);
}

bool StepMaker::AddRow(Sequence& sequence, OpenStep& open) {
  if (open.tokens_left == 0 || RoomForRows(open) == 0 || !slots_.Allocate(sequence, open.plan)) {
    return false;
  }
  const auto row = static_cast<uint32_t>(open.plan.rows.size());
  open.plan.rows.push_back(
      {.sequence = sequence.request.id, .position = sequence.planned_tokens - 1});
  open.row_nodes.push_back(sequence.node);
  ++open.row_sequences;
  open.path = sequence.path;
  AddToken(sequence, sequence.planned_tokens, row, open);
  ++sequence.planned_tokens;
  sequence.last_step = open.plan.step;
  sequence.last_work = open.plan.step;
  --open.tokens_left;
  return true;
}

void StepMaker::AddToken(const Sequence& sequence, uint32_t position, uint32_t row,
                         OpenStep& open) {
  open.record.tokens.push_back(
      {.sequence = sequence.request.id, .position = position, .seat = sequence.seat});
  open.token_rows.push_back(row);
}

// By memory node, else in the order in which they were packed.
void StepMaker::SortRows(OpenStep& open) const {
  std::vector<uint32_t> begin(options_.memory_nodes.size() + 1);
  for (const uint32_t node : open.row_nodes) {
    ++begin[node + 1];
  }
  open.rows_of_node = *std::max_element(begin.begin(), begin.end());
  for (size_t node = 1; node < begin.size(); ++node) {
    begin[node] += begin[node - 1];
  }
  std::vector<plan::DecodeRow> sorted(open.plan.rows.size());
  std::vector<uint32_t>& moved_to = open.row_nodes;
  for (size_t i = 0; i < sorted.size(); ++i) {
    moved_to[i] = begin[open.row_nodes[i]]++;
    sorted[moved_to[i]] = open.plan.rows[i];
  }
  open.plan.rows = std::move(sorted);
  SortTokens(moved_to, open.token_rows, open.record.tokens);
  open.row_nodes.clear();
  open.token_rows.clear();
}

// How many tokens of a prompt may come together: those that count as decoded come one by one.
uint32_t StepMaker::BeforeDecode(const Sequence& sequence) {
  const uint32_t from = sequence.request.decode_from;
  return from == 0 ? sequence.join_tokens
                   : std::max(1u, from - std::min(from, sequence.chunked_tokens));
}

uint32_t StepMaker::AddChunk(Sequence& sequence, uint32_t tokens_max, OpenStep& open) {
  const uint32_t rest =
      places_.kept.EndOfMissing(sequence, sequence.chunked_tokens) - sequence.chunked_tokens;
  uint32_t tokens = std::min({rest, options_.chunk_tokens, open.tokens_left, tokens_max});
  const uint32_t room =
      sequence.has_scratch ? sequence.scratch_tokens - sequence.chunked_tokens : RoomForRows(open);
  tokens = std::min({tokens, room, BeforeDecode(sequence)});
  if (tokens == 0) {
    return 0;
  }
  const uint32_t allocated =
      slots_.AllocatePrompt(sequence, sequence.chunked_tokens + tokens, open.plan);
  if (allocated <= sequence.chunked_tokens) {
    return 0;  // It waits for slots, or has been taken out.
  }
  tokens = allocated - sequence.chunked_tokens;
  const plan::SequenceId id = sequence.request.id;
  const bool last = sequence.chunked_tokens + tokens == sequence.join_tokens;
  uint32_t row = kNoRow;
  if (sequence.has_scratch) {
    open.plan.chunks.push_back({.sequence = id,
                                .first_token = sequence.chunked_tokens,
                                .tokens = tokens,
                                .scratch_offset = sequence.scratch_offset,
                                .last = last});
  } else {
    AddPromptRows(sequence, tokens, open);
    row = static_cast<uint32_t>(open.plan.rows.size()) - 1;
  }
  open.path = sequence.path;
  if (places_.kept.keeps()) {
    open.record.prompts.push_back({.sequence = id,
                                   .seat = sequence.seat,
                                   .first = sequence.chunked_tokens,
                                   .tokens = tokens});
  }
  sequence.chunked_tokens += tokens;
  if (sequence.has_scratch && sequence.chunked_tokens == sequence.scratch_tokens) {
    LeaveScratch(sequence, open);
  }
  sequence.chunked_tokens = places_.kept.NextMissing(sequence, sequence.chunked_tokens);
  sequence.last_work = open.plan.step;
  for (const plan::SequenceId fork : sequence.attached) {
    life_.Find(fork)->last_work = open.plan.step;
  }
  open.tokens_left -= tokens;
  if (sequence.request.score) {
    open.record.scores.push_back({.sequence = id, .last = last});
  }
  if (last) {
    EndPrompt(sequence, row, open);
  }
  return tokens;
}

// The next tokens of its prompt attend where K and V of those before them lie.
void StepMaker::AddPromptRows(const Sequence& sequence, uint32_t tokens, OpenStep& open) {
  for (uint32_t i = 0; i < tokens; ++i) {
    open.plan.rows.push_back(
        {.sequence = sequence.request.id, .position = sequence.chunked_tokens + i});
    open.row_nodes.push_back(sequence.node);
  }
  open.has_prompt_rows = true;
  ++open.row_sequences;
}

// The step is the last one to read its scratch.
void StepMaker::LeaveScratch(Sequence& sequence, OpenStep& open) {
  open.record.border.scratch.push_back(sequence.scratch_offset);
  sequence.has_scratch = false;
}

// The last of its prompt is planned, in this row or in a chunk.
void StepMaker::EndPrompt(Sequence& sequence, uint32_t row, OpenStep& open) {
  if (sequence.request.score) {
    return;
  }
  AddToken(sequence, sequence.join_tokens, row, open);
  sequence.planned_tokens = sequence.join_tokens + 1;
  for (const plan::SequenceId id : sequence.attached) {
    Sequence& fork = *life_.Find(id);
    AddToken(fork, sequence.join_tokens, kNoRow, open);
    fork.planned_tokens = sequence.join_tokens + 1;
  }
}

uint32_t StepMaker::TokensForNewcomer(OpenStep& open) {
  return std::min(open.tokens_left, packing_->TokensForNewcomer(Packed(*this, open)));
}

void StepMaker::AddJoin(const Sequence& sequence, const std::vector<HeldExtent>& slots,
                        OpenStep& open) const {
  const SequenceRequest& request = sequence.request;
  const bool keeps_activations = sequence.path == plan::AttentionPath::kRecompute;
  plan::SequenceJoin join{.id = request.id,
                          .tokens = request.prompt,
                          .prompt_tokens = static_cast<uint32_t>(request.prompt.size()),
                          .parent = sequence.parent,
                          .sampling = request.sampling,
                          .tokens_max = request.tokens_max,
                          .end_tokens = request.end_tokens,
                          .tokens_min = request.tokens_min,
                          .memory_node = sequence.node,
                          .path = sequence.path,
                          .decode_from = request.decode_from,
                          .bare_tokens = keeps_activations ? places_.kv.BareOf(request.id) : 0,
                          .resident = sequence.resident,
                          .score = request.score,
                          .cached_tokens = sequence.is_new() ? sequence.cached_tokens : 0};
  join.tokens.insert(join.tokens.end(), sequence.committed.begin(), sequence.committed.end());
  open.path = sequence.path;
  open.join_tokens += join.tokens.size();
  open.plan.joins.push_back(std::move(join));
  for (const HeldExtent& held : slots) {
    open.plan.allocations.push_back(
        {.sequence = request.id, .extent = held.extent, .memory_node = held.memory_node});
  }
}

void StepMaker::AddContinued(Sequence& sequence, OpenStep& open) {
  slots_.AllocatePrompt(sequence, sequence.join_tokens, open.plan);
  LAMINA_CHECK(AddChunk(sequence, std::max(1u, TokensForNewcomer(open)), open) > 0);
}

void StepMaker::AddNewcomer(Sequence& sequence, OpenStep& open) {
  AddChunk(sequence, TokensForNewcomer(open), open);
}

bool StepMaker::Close(OpenStep& open, const cost::LinkCosts& link, const cost::LaneCosts& costs) {
  plan::StepPlan& plan = open.plan;
  plan.leaves = open.record.border.leaves;
  plan.spills_out = open.record.border.spills;
  if (plan.leaves.empty() && plan.releases.empty() && plan.rows.empty() && plan.chunks.empty() &&
      plan.spills_in.empty() && !places_.spills.has_drops()) {
    return false;
  }
  places_.cache.CopyOut(plan);
  plan.spill_drops = places_.spills.TakeDrops();
  open.record.border.drops = plan.spill_drops;
  if (!plan.rows.empty()) {
    SortRows(open);
    sub_batches_ = SubBatchesFor(open, link, costs);
    plan.chunking = sub_batches_.cut;
    PlanFetching(open);
  }
  steps_.Add(plan.lane, std::move(open.record));
  return true;
}

// The words of a step whose path has something to choose stay until another one has.
void StepMaker::PlanFetching(OpenStep& open) {
  const plan::AttentionPath path = open.path.value_or(plan::AttentionPath::kRemote);
  uint32_t lanes = 0;
  for (uint32_t lane = 0; lane < places_.lanes.size(); ++lane) {
    lanes += !places_.lanes[lane].running.empty() && places_.lanes.PathOf(lane) == path ? 1 : 0;
  }
  // Tokens that every layer's window hides have no slots.
  const Lanes::LaneSequences& lane = places_.lanes[open.plan.lane];
  const uint64_t held = lane.running.size() * uint64_t{options_.SlotsAtOnce(UINT32_MAX)};
  uint64_t resident = 0;
  if (options_.resident_tokens > 0) {
    for (const Sequence* sequence : lane.running) {
      if (sequence->state == SequenceState::kDecoding) {
        const uint32_t seen = sequence->planned_tokens - 1;  // By its next row.
        const plan::ResidentTokens& kept = sequence->resident;
        const uint32_t first = std::max(kept.first, sequence->held->released);
        const uint32_t end = std::min(seen, kept.first + kept.tokens);
        resident += end - std::min(end, first);
      }
    }
  }
  const uint64_t tokens = std::min(lane.tokens, held);
  const FetchShare share = fetching_->Plan({.path = path,
                                            .tokens = tokens,
                                            .resident = std::min(resident, tokens),
                                            .lanes = lanes,
                                            .rows = static_cast<uint32_t>(open.plan.rows.size()),
                                            .sequences = static_cast<uint32_t>(lane.running.size()),
                                            .contexts = TokensBefore(open.plan.rows)},
                                           fetch_rates_);
  open.plan.recomputed = share.recomputed;
  if (!share.why.empty()) {
    fetch_share_ = share;
  }
}

SubBatchCount StepMaker::SubBatchesFor(const OpenStep& open, cost::LinkCosts link,
                                       const cost::LaneCosts& costs) const {
  link.measured = link.measured && costs.measured;
  const auto rows = static_cast<uint32_t>(open.plan.rows.size());
  const double context = static_cast<double>(places_.lanes[open.plan.lane].context_tokens_all);
  SubBatchOptions chunks = options_.sub_batches;
  if (open.has_prompt_rows) {
    chunks.query_first = QueryFirst::kNever;  // Tokens of full blocks may come with the rows.
  }
  return ChooseSubBatches(
      chunks, link,
      {.rows = rows,
       // Spans of a row may lie on all.
       .rows_of_node = options_.span_tokens > 0 ? rows : open.rows_of_node,
       .attention_seconds = costs.attention_fixed + costs.attention_per_token * context,
       .slice_seconds = costs.slice_fixed + costs.slice_per_row * rows});
}

}  // namespace lamina::core
