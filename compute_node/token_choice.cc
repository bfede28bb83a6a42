// SPDX-License-Identifier: Apache-2.0
#include "compute_node/token_choice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "compute_node/put_token_sets.h"
#include "control/transport_fault.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {
namespace {

// Moves the tokens from `first` on from one set to the other.
void MoveFrom(uint32_t first, absl::Span<uint64_t> from, absl::Span<uint64_t> to) {
  std::fill(to.begin(), to.end(), 0);
  for (size_t word = first / 64; word < from.size(); ++word) {
    const uint64_t stay = word == first / 64 ? (uint64_t{1} << first % 64) - 1 : 0;
    to[word] = from[word] & ~stay;
    from[word] &= stay;
  }
}

}  // namespace

TokenChoice::TokenChoice(const WorkerContext& context, SparseSums& sums,
                         const RecentTokens& resident)
    : context_(context), sums_(sums), resident_(resident), lanes_(context.config.lanes) {
  const size_t nodes = context.config.memory_nodes.size();
  for (LaneState& lane : lanes_) {
    lane.nodes.resize(nodes);
    lane.staged.resize(StagedSetWords(context.config));
    lane.kept.resize(lane.staged.size());
  }
}

uint64_t TokenChoice::bytes() const {
  uint64_t words = 0;
  for (const LaneState& lane : lanes_) {
    words += lane.staged.size() + lane.kept.size();
  }
  return words * sizeof(uint64_t);
}

absl::Status TokenChoice::Open() {
  for (const LaneState& lane : lanes_) {
    LAMINA_RETURN_IF_ERROR(control::TransportFault(
        context_.transport.RegisterSource({reinterpret_cast<const std::byte*>(lane.staged.data()),
                                           lane.staged.size() * sizeof(uint64_t)},
                                          transport::MemoryKind::kHost)));
  }
  return absl::OkStatus();
}

absl::Status TokenChoice::BeginStep(const Lane& lane, absl::Span<const RowRun> runs) {
  LaneState& state = lanes_[lane.index];
  if (runs.size() > plan::RowSequencesMax(context_.config)) {
    return absl::InternalError(absl::StrCat("plan of lane ", lane.index, " step ", lane.plan.step,
                                            " has ", runs.size(), " runs of rows; windows have ",
                                            "room for sets of tokens of ",
                                            plan::RowSequencesMax(context_.config)));
  }
  size_t next_word = 0;
  for (uint32_t node = 0; node < state.nodes.size(); ++node) {
    Part& part = state.nodes[node];
    part.rows.clear();
    part.runs.clear();
    for (const RowRun& run : runs) {
      if (plan::Holds(context_.config, node, run.memory_node)) {
        part.rows.push_back(run);
        part.runs.push_back({.before = run.first_token, .tokens = run.tokens});
      }
    }
    if (part.rows.empty()) {
      continue;
    }
    part.sets = plan::TokenSets(static_cast<uint32_t>(context_.config.layers.size()), part.runs);
    part.first_word = next_word + kSetsHeaderWords;
    const size_t words = part.sets.bytes() / sizeof(uint64_t);
    next_word = part.first_word + words;
    if (node > 0 && ByHead(context_.config)) {  // As the first node's.
      for (std::vector<uint64_t>* sets : {&state.staged, &state.kept}) {
        std::copy_n(sets->data() + state.nodes[0].first_word, words,
                    sets->data() + part.first_word);
      }
    } else {
      ChooseAll(part, state);
    }
    LAMINA_RETURN_IF_ERROR(Put(lane, node));
  }
  return absl::OkStatus();
}

void TokenChoice::ChooseAll(const Part& part, LaneState& state) {
  const plan::TokenSets& sets = part.sets;
  for (uint32_t run = 0; run < part.rows.size(); ++run) {
    const RowRun& rows = part.rows[run];
    sums_.BeginRun(*context_.sequences.Find(rows.sequence), rows.first_token);
    const uint32_t resident = resident_.First(rows.sequence, rows.first_token);
    for (uint32_t layer = 0; layer < context_.config.layers.size(); ++layer) {
      const size_t at = part.first_word + sets.SetOf(layer, run);
      const auto set = absl::MakeSpan(state.staged).subspan(at, sets.words());
      Choose(layer, rows, set);
      const auto kept = absl::MakeSpan(state.kept).subspan(at, sets.words());
      MoveFrom(resident, set, kept);
      state.staged[part.first_word + sets.KeptOf(layer, run)] =
          resident_.WordOf(part.runs[run], kept);
    }
  }
}

void TokenChoice::Choose(uint32_t layer, const RowRun& run, absl::Span<uint64_t> set) {
  if (SparseSums::IsDense(*context_.sequences.Find(run.sequence), run)) {
    plan::TakeFirst(run.first_token, set);
    return;
  }
  absl::Span<const uint64_t> sums;
  if (sums_.weighs()) {
    policy::WindowSums& window = sums_.Of(run.sequence, layer);
    window.DropBefore(policy::FirstSummedRow(run.first_token, sums_.pattern().ratio));
    sums = window.sums();
  }
  policy::ChooseTokens(sums_.pattern(), run.first_token, sums, order_, set);
}

absl::Status TokenChoice::Put(const Lane& lane, uint32_t node) {
  LaneState& state = lanes_[lane.index];
  const Part& part = state.nodes[node];
  const size_t words = kSetsHeaderWords + part.sets.bytes() / sizeof(uint64_t);
  return PutTokenSets(
      context_, lane, node, static_cast<uint32_t>(part.rows.size()),
      absl::MakeSpan(state.staged).subspan(part.first_word - kSetsHeaderWords, words));
}

}  // namespace lamina::compute_node
