// SPDX-License-Identifier: Apache-2.0
#include "memory_node/sparse_stream.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "plan/token_sets.h"
#include "transport/put_all.h"

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
    : epoch_(epoch),
      checks_(checks),
      feed_(feed),
      meter_(meter),
      kv_(kv),
      streams_(epoch.config.lanes) {}

absl::Status SparseStream::Open() {
  const transport::DirectMemory windows = epoch_.peers.compute[kComputeNode]->direct();
  // Bytes of a decorator, "throttle(...)+shm://", are counted by their puts.
  if (!windows.empty() && absl::StartsWith(epoch_.config.transport, "shm://")) {
    direct_ = windows.bytes.data();
    return absl::OkStatus();
  }
  for (Stream& stream : streams_) {
    stream.staged.resize(2 * plan::FetchWindows(epoch_.layout).window_bytes());
    LAMINA_RETURN_IF_ERROR(control::TransportFault(
        epoch_.transport.RegisterSource(stream.staged, transport::MemoryKind::kHost)));
  }
  return absl::OkStatus();
}

std::byte* SparseStream::Gathered(Stream& stream) const {
  const plan::FetchWindows windows(epoch_.layout);
  return direct_ != nullptr
             ? direct_ + windows.Window(epoch_.node, IndexOf(stream), stream.sent + 1)
             : stream.staged.data() + (stream.sent + 1) % 2 * windows.window_bytes();
}

absl::StatusOr<bool> SparseStream::TakeStep(Lane& lane) {
  if (lane.fetched.empty()) {
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

// What the stream needs next. Of two windows the last but one piece's must have been used up.
transport::SignalCondition SparseStream::Awaited(const Stream& stream) const {
  const uint32_t lane = IndexOf(stream);
  if (stream.phase == Phase::kAwaitsSets) {
    return {.word = plan::TokenSetWindows(epoch_.layout).word(kComputeNode, lane),
            .at_least = feed_.lanes()[lane].step};
  }
  return {.word = plan::FetchWindows(epoch_.layout).credit_word(kComputeNode, lane),
          .at_least = stream.sent < 2 ? 0 : stream.sent - 1};
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
    stream.layer = 0;
    BeginLayer(lane, stream);
    return absl::OkStatus();
  }
  return PutTiles(lane, stream);
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

void SparseStream::BeginLayer(const Lane& lane, Stream& stream) {
  const plan::TokenSets sets(epoch_.layout.layer_count(), stream.rows);
  stream.runs.clear();
  for (uint32_t run = 0; run < stream.rows.size(); ++run) {
    const auto set =
        absl::MakeConstSpan(stream.sets).subspan(sets.SetOf(stream.layer, run), sets.words());
    SlotsOfTokens(set, lane.fetched[run].sequence->extents, stream.slots[run]);
    stream.runs.push_back({.before = plan::CountTokens(set), .tokens = stream.rows[run].tokens});
  }
  plan::PiecesOf(epoch_.layers[stream.layer], stream.runs, plan::FetchLimitsOf(epoch_.config),
                 stream.pieces);
  stream.piece = 0;
  stream.done = 0;
}

// A turn is one range of K and one of V: slots of all heads follow each other.
absl::Status SparseStream::PutTiles(Lane& lane, Stream& stream) {
  const uint32_t head_dim = epoch_.layers[stream.layer].head_dim;
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  const size_t tile_bytes = plan::kFetchTile * size_t{head_dim} * sizeof(BFloat16);
  const size_t tiles = size_t{piece.heads.count} * piece.slots / plan::kFetchTile;
  const size_t first = stream.done;
  const size_t end = std::min(tiles, first + std::max<size_t>(1, kTurnBytes / (2 * tile_bytes)));
  auto* const k = reinterpret_cast<BFloat16*>(Gathered(stream) + sizeof(plan::WindowHeader));
  LAMINA_RETURN_IF_ERROR(Gather(stream, first, end, k, k + piece.elements(head_dim)));
  if (first == 0) {
    LAMINA_RETURN_IF_ERROR(PutHeader(lane, stream));
  }
  const size_t k_begin = sizeof(plan::WindowHeader) + first * tile_bytes;
  const size_t bytes = (end - first) * tile_bytes;
  const transport::SignalUpdate signal{
      .word = plan::FetchWindows(epoch_.layout).word(epoch_.node, lane.index),
      .value = stream.sent + 1};
  LAMINA_RETURN_IF_ERROR(Put(stream, k_begin, bytes, nullptr));
  LAMINA_RETURN_IF_ERROR(Put(stream, k_begin + piece.elements(head_dim) * sizeof(BFloat16), bytes,
                             end == tiles ? &signal : nullptr));
  telemetry::LinkCounters& link = meter_.link(kComputeNode);
  telemetry::AddTo(link.bytes, 2 * bytes);
  telemetry::AddTo(link.puts, 2);
  const uint64_t value = epoch_.layout.SignalValue(lane.step, stream.layer);
  telemetry::AddTo(
      link.nanos, static_cast<uint64_t>(meter_.EndInterval(telemetry::WorkPart::kReply, lane, value,
                                                           kComputeNode, 2 * bytes)));
  stream.done = end;
  return end == tiles ? EndPiece(lane, stream) : absl::OkStatus();
}

absl::Status SparseStream::PutHeader(const Lane& lane, Stream& stream) {
  const plan::WindowHeader header{.lane = lane.index,
                                  .epoch = epoch_.config.epoch,
                                  .step = lane.step,
                                  .layer = stream.layer,
                                  .rows = static_cast<uint32_t>(stream.piece),
                                  .kv_rows = stream.pieces[stream.piece].slots,
                                  .sender = epoch_.node};
  std::memcpy(Gathered(stream), &header, sizeof(header));
  return Put(stream, 0, sizeof(header), nullptr);
}

// Slots without a token are zero: what an earlier piece left there is another sequence's.
absl::Status SparseStream::Gather(const Stream& stream, size_t first, size_t end, BFloat16* k,
                                  BFloat16* v) {
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  const size_t head_dim = epoch_.layers[stream.layer].head_dim;
  const size_t begin_slot = first * plan::kFetchTile;  // Over all heads.
  const size_t end_slot = end * plan::kFetchTile;
  size_t slot = begin_slot / piece.slots * piece.slots;
  for (auto head = static_cast<uint32_t>(begin_slot / piece.slots); slot < end_slot; ++head) {
    for (uint32_t run = piece.first_run; run < piece.runs_end && slot < end_slot; ++run) {
      const plan::FetchRun& tokens = stream.runs[run];
      const size_t from = std::max(slot, begin_slot);
      const size_t to = std::min(slot + tokens.slots(), end_slot);
      if (from < to) {
        const size_t tokens_end = std::clamp(slot + tokens.before, from, to);
        // Of a tile with some tokens K is cleared whole before these come.
        const size_t zeros = std::max(tokens_end / plan::kFetchTile * plan::kFetchTile, from);
        std::fill(k + zeros * head_dim, k + to * head_dim, BFloat16());
        std::fill(v + tokens_end * head_dim, v + to * head_dim, BFloat16());
        if (from < tokens_end) {
          LAMINA_RETURN_IF_ERROR(kv_.Load(stream.layer, piece.heads.first + head, stream.slots[run],
                                          static_cast<uint32_t>(from - slot),
                                          static_cast<uint32_t>(tokens_end - from),
                                          k + slot * head_dim, v + slot * head_dim));
        }
      }
      slot += tokens.slots();
    }
  }
  return absl::OkStatus();
}

absl::Status SparseStream::Put(Stream& stream, size_t offset, size_t bytes,
                               const transport::SignalUpdate* signal) {
  if (direct_ != nullptr && signal == nullptr) {
    return absl::OkStatus();
  }
  const absl::Span<const std::byte> put =
      direct_ != nullptr ? absl::Span<const std::byte>()
                         : absl::Span<const std::byte>(Gathered(stream) + offset, bytes);
  const size_t window =
      plan::FetchWindows(epoch_.layout).Window(epoch_.node, IndexOf(stream), stream.sent + 1);
  return transport::PutAll(epoch_.transport, *epoch_.peers.compute[kComputeNode], window + offset,
                           put, signal,
                           {.deadline = RealClock().Now() + epoch_.peer_deadline,
                            .abort = &epoch_.abort,
                            .beat = &epoch_.counters.beat});
}

absl::Status SparseStream::EndPiece(Lane& lane, Stream& stream) {
  ++stream.sent;
  ++stream.piece;
  stream.done = 0;
  if (stream.piece < stream.pieces.size()) {
    return absl::OkStatus();
  }
  if (++stream.layer < epoch_.layers.size()) {
    BeginLayer(lane, stream);
    return absl::OkStatus();
  }
  stream.phase = Phase::kIdle;
  return feed_.EndStep(lane);
}

}  // namespace lamina::memory_node
