// SPDX-License-Identifier: Apache-2.0
#include "memory_node/sparse_stream.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/blame.h"
#include "plan/token_sets.h"

namespace lamina::memory_node {
namespace {

// Path sparse has one compute node (plan::CheckFetch()).
constexpr uint32_t kComputeNode = 0;

// The slots of the tokens of `set`, in order; `extents` are those of all tokens.
void SlotsOfTokens(absl::Span<const uint64_t> set, absl::Span<const Extent> extents,
                   std::vector<Extent>& slots) {
  slots.clear();
  uint32_t passed = 0;  // Tokens of the extents before.
  for (uint32_t word = 0; word < set.size(); ++word) {
    for (uint64_t left = set[word]; left != 0; left &= left - 1) {
      const uint32_t token = word * 64 + static_cast<uint32_t>(std::countr_zero(left));
      while (token - passed >= extents.front().tokens) {
        passed += extents.front().tokens;
        extents.remove_prefix(1);
      }
      const uint32_t slot = extents.front().first_slot + token - passed;
      if (!slots.empty() && slots.back().first_slot + slots.back().tokens == slot) {
        ++slots.back().tokens;
      } else {
        slots.push_back({.first_slot = slot, .tokens = 1});
      }
    }
  }
}

}  // namespace

SparseStream::SparseStream(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed,
                           UnitMeter& meter, kernels::KvReads& kv)
    : epoch_(epoch), checks_(checks), feed_(feed), kv_(kv) {
  for (uint32_t lane = 0; lane < epoch.config.lanes; ++lane) {
    streams_.push_back({.pieces = PieceStream(epoch, meter, lane)});
  }
}

absl::Status SparseStream::Open() {
  for (Stream& stream : streams_) {
    LAMINA_RETURN_IF_ERROR(stream.pieces.Open());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SparseStream::TakeStep(Lane& lane) {
  if (lane.fetched.empty() || lane.fetched_by != plan::AttentionPath::kSparse) {
    return false;
  }
  Stream& stream = streams_[lane.index];
  stream.phase = Phase::kAwaitsSets;
  stream.rows.clear();
  for (const FetchedRun& fetched : lane.fetched) {
    stream.rows.push_back(fetched.run);
  }
  stream.slots.resize(std::max(stream.slots.size(), stream.rows.size()));
  feed_.Join(lane);
  return false;
}

// What the stream needs next.
transport::SignalCondition SparseStream::Awaited(const Stream& stream) const {
  if (stream.phase == Phase::kAwaitsSets) {
    const uint32_t lane = IndexOf(stream);
    return {.word = plan::TokenSetWindows(epoch_.layout).word(kComputeNode, lane),
            .at_least = feed_.lanes()[lane].step};
  }
  return stream.pieces.Credit();
}

bool SparseStream::MayGoOn(const Stream& stream) const {
  if (stream.phase == Phase::kIdle) {
    return false;
  }
  const transport::SignalCondition awaited = Awaited(stream);
  return epoch_.region.LoadSignal(awaited.word) >= awaited.at_least;
}

void SparseStream::AppendAwaited(std::vector<transport::SignalCondition>& conditions) {
  for (const Stream& stream : streams_) {
    if (stream.phase != Phase::kIdle && !MayGoOn(stream)) {
      conditions.push_back(Awaited(stream));
    }
  }
}

Nanos SparseStream::LookAt(Nanos now) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [this](const Stream& stream) { return MayGoOn(stream); })
             ? now
             : kNever;
}

absl::Status SparseStream::Look() {
  for (size_t i = 0; i < streams_.size(); ++i) {
    const size_t index = (next_lane_ + i) % streams_.size();
    if (MayGoOn(streams_[index])) {
      next_lane_ = static_cast<uint32_t>(index + 1);
      epoch_.counters.beat.Begin(ThreadActivity::kWorking);
      return control::Blame(GoOn(feed_.lanes()[index], streams_[index]),
                            epoch_.NameOf(kComputeNode));
    }
  }
  return absl::OkStatus();
}

absl::Status SparseStream::GoOn(Lane& lane, Stream& stream) {
  if (stream.phase == Phase::kAwaitsSets) {
    LAMINA_RETURN_IF_ERROR(TakeSets(lane, stream));
    stream.phase = Phase::kSends;
    BeginLayer(lane, stream, 0);
    return absl::OkStatus();
  }
  LAMINA_RETURN_IF_ERROR(stream.pieces.PutTiles(lane, kv_, stream.tokens));
  if (!stream.pieces.LayerEnded()) {
    return absl::OkStatus();
  }
  if (const uint32_t next = stream.pieces.layer() + 1; next < epoch_.layers.size()) {
    BeginLayer(lane, stream, next);
    return absl::OkStatus();
  }
  stream.phase = Phase::kIdle;
  return feed_.EndStep(lane);
}

// Copied, so that what is checked is what is used.
absl::Status SparseStream::TakeSets(const Lane& lane, Stream& stream) {
  const std::byte* const window =
      epoch_.region.bytes().data() +
      plan::TokenSetWindows(epoch_.layout).Window(kComputeNode, lane.index);
  plan::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  LAMINA_RETURN_IF_ERROR(checks_.Header(header, {.lane = lane.index,
                                                 .epoch = epoch_.config.epoch,
                                                 .step = lane.step,
                                                 .rows = static_cast<uint32_t>(stream.rows.size()),
                                                 .sender = kComputeNode}));
  const plan::TokenSets sets(epoch_.layout.layer_count(), stream.rows);
  stream.sets.resize(sets.bytes() / sizeof(uint64_t));
  std::memcpy(stream.sets.data(), window + sizeof(header), sets.bytes());
  for (uint32_t layer = 0; layer < epoch_.layout.layer_count(); ++layer) {
    for (uint32_t run = 0; run < stream.rows.size(); ++run) {
      const auto set =
          absl::MakeConstSpan(stream.sets).subspan(sets.SetOf(layer, run), sets.words());
      if (!plan::EndsBefore(set, stream.rows[run].before)) {
        return absl::InternalError(
            absl::StrCat("token sets of lane ", lane.index, " step ", lane.step, " layer ", layer,
                         " name tokens that run ", run, " does not have before it: there are ",
                         stream.rows[run].before));
      }
    }
  }
  return absl::OkStatus();
}

void SparseStream::BeginLayer(const Lane& lane, Stream& stream, uint32_t layer) {
  const plan::TokenSets sets(epoch_.layout.layer_count(), stream.rows);
  stream.runs.clear();
  stream.tokens.clear();
  for (uint32_t run = 0; run < stream.rows.size(); ++run) {
    const auto set = absl::MakeConstSpan(stream.sets).subspan(sets.SetOf(layer, run), sets.words());
    SlotsOfTokens(set, lane.fetched[run].sequence->extents, stream.slots[run]);
    stream.runs.push_back({.before = plan::CountTokens(set), .tokens = stream.rows[run].tokens});
    stream.tokens.push_back({.slots = stream.slots[run]});
  }
  stream.pieces.BeginLayer(layer, stream.runs);
}

}  // namespace lamina::memory_node
