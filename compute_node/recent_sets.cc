// SPDX-License-Identifier: Apache-2.0
#include "compute_node/recent_sets.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "compute_node/put_token_sets.h"
#include "control/transport_fault.h"
#include "plan/fetch_pieces.h"
#include "plan/token_sets.h"

namespace lamina::compute_node {

RecentSets::RecentSets(const WorkerContext& context)
    : context_(context),
      staged_(context.config.lanes, std::vector<uint64_t>(StagedSetWords(context.config))) {}

uint64_t RecentSets::bytes() const {
  uint64_t words = 0;
  for (const std::vector<uint64_t>& lane : staged_) {
    words += lane.size();
  }
  return words * sizeof(uint64_t);
}

absl::Status RecentSets::Open() {
  for (const std::vector<uint64_t>& lane : staged_) {
    LAMINA_RETURN_IF_ERROR(control::TransportFault(context_.transport.RegisterSource(
        {reinterpret_cast<const std::byte*>(lane.data()), lane.size() * sizeof(uint64_t)},
        transport::MemoryKind::kHost)));
  }
  return absl::OkStatus();
}

absl::Status RecentSets::Put(const Lane& lane, const FetchedKv& kv) {
  const auto layers = static_cast<uint32_t>(context_.config.layers.size());
  const uint32_t runs_max = plan::TokenSetRunsMax(context_.config);
  absl::Span<uint64_t> left = absl::MakeSpan(staged_[lane.index]);
  for (const uint32_t node : kv.Senders(lane)) {
    const std::vector<plan::FetchRun>& runs = kv.StreamOf(lane, node).runs;
    const plan::TokenSets sets(layers, runs);
    const size_t words = kSetsHeaderWords + sets.bytes() / sizeof(uint64_t);
    if (runs.size() > runs_max || words > left.size()) {
      return absl::InternalError(absl::StrCat(
          "plan of lane ", lane.index, " step ", lane.plan.step, " has ", runs.size(),
          " runs of rows in spans of one memory node; windows have room for sets of tokens of ",
          runs_max, " over all nodes"));
    }
    const absl::Span<uint64_t> window = left.first(words);
    left.remove_prefix(words);
    const absl::Span<uint64_t> body = window.subspan(kSetsHeaderWords);
    for (uint32_t layer = 0; layer < layers; ++layer) {
      for (uint32_t run = 0; run < runs.size(); ++run) {
        plan::TakeFirst(runs[run].fetched(), body.subspan(sets.SetOf(layer, run), sets.words()));
        body[sets.KeptOf(layer, run)] = runs[run].kept;
      }
    }
    LAMINA_RETURN_IF_ERROR(
        PutTokenSets(context_, lane, node, static_cast<uint32_t>(runs.size()), window));
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
