// SPDX-License-Identifier: Apache-2.0
#include "memory_node/kv_stream.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "kernels/k_tiles.h"
#include "transport/put_all.h"

namespace lamina::memory_node {
namespace {

static_assert(plan::kFetchTile == kernels::kTileSlots);

// Path fetch has one compute node (plan::CheckFetch()).
constexpr uint32_t kComputeNode = 0;

}  // namespace

KvStream::KvStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter,
                   kernels::KvReads& reads)
    : epoch_(epoch), feed_(feed), meter_(meter), reads_(reads), streams_(epoch.config.lanes) {
  for (Stream& stream : streams_) {
    stream.staged.resize(2 * plan::FetchWindows(epoch.layout).window_bytes());
  }
}

absl::Status KvStream::Open() {
  for (const Stream& stream : streams_) {
    LAMINA_RETURN_IF_ERROR(control::TransportFault(
        epoch_.transport.RegisterSource(stream.staged, transport::MemoryKind::kHost)));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> KvStream::TakeStep(Lane& lane) {
  if (lane.fetched.empty()) {
    return false;
  }
  Stream& stream = streams_[lane.index];
  stream.active = true;
  stream.runs.clear();
  for (const FetchedRun& fetched : lane.fetched) {
    stream.runs.push_back(fetched.run);
  }
  stream.layer = 0;
  BeginLayer(stream);
  feed_.Join(lane);
  return false;
}

void KvStream::BeginLayer(Stream& stream) {
  plan::PiecesOf(epoch_.layers[stream.layer], stream.runs, epoch_.layout.shape().fetch_bytes,
                 stream.pieces);
  stream.piece = 0;
  stream.tiles_done = 0;
}

// Of two windows the last but one piece's has been used up.
bool KvStream::MayPut(const Stream& stream) const {
  return stream.active &&
         (stream.sent < 2 ||
          epoch_.region.LoadSignal(
              plan::FetchWindows(epoch_.layout).credit_word(kComputeNode, IndexOf(stream))) >=
              stream.sent - 1);
}

void KvStream::AppendAwaited(std::vector<transport::SignalCondition>& conditions) {
  for (const Stream& stream : streams_) {
    if (stream.active && !MayPut(stream)) {
      conditions.push_back(
          {.word = plan::FetchWindows(epoch_.layout).credit_word(kComputeNode, IndexOf(stream)),
           .at_least = stream.sent - 1});
    }
  }
}

Nanos KvStream::LookAt(Nanos now) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [this](const Stream& stream) { return MayPut(stream); })
             ? now
             : kNever;
}

absl::Status KvStream::Look() {
  for (size_t i = 0; i < streams_.size(); ++i) {
    const size_t index = (next_lane_ + i) % streams_.size();
    if (MayPut(streams_[index])) {
      next_lane_ = static_cast<uint32_t>(index + 1);
      epoch_.counters.beat.Begin(ThreadActivity::kWorking);
      return control::Blame(PutSome(feed_.lanes()[index], streams_[index]),
                            epoch_.NameOf(kComputeNode));
    }
  }
  return absl::OkStatus();
}

// Tiles of all heads follow each other, in K and in V, so a turn is one range of each.
absl::Status KvStream::PutSome(Lane& lane, Stream& stream) {
  const AttentionDescriptor& layer = epoch_.layers[stream.layer];
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  const size_t tile_bytes = plan::kFetchTile * size_t{layer.head_dim} * sizeof(BFloat16);
  const size_t tiles = size_t{piece.heads.count} * piece.slots / plan::kFetchTile;
  const size_t first = stream.tiles_done;
  const size_t end = std::min(tiles, first + std::max<size_t>(1, kTurnBytes / (2 * tile_bytes)));
  std::byte* const window = Staged(stream);
  auto* const k = reinterpret_cast<BFloat16*>(window + sizeof(plan::WindowHeader));
  BFloat16* const v = k + piece.elements(layer.head_dim);
  const uint64_t value = epoch_.layout.SignalValue(lane.step, stream.layer);
  LAMINA_RETURN_IF_ERROR(Gather(lane, stream, first, end, k, v));
  const size_t k_begin = sizeof(plan::WindowHeader) + first * tile_bytes;
  const size_t bytes = (end - first) * tile_bytes;
  if (first == 0) {
    const plan::WindowHeader header{.lane = lane.index,
                                    .epoch = epoch_.config.epoch,
                                    .step = lane.step,
                                    .layer = stream.layer,
                                    .rows = static_cast<uint32_t>(stream.piece),
                                    .kv_rows = piece.slots,
                                    .sender = epoch_.node};
    std::memcpy(window, &header, sizeof(header));
    LAMINA_RETURN_IF_ERROR(Put(stream, 0, sizeof(header) + bytes, nullptr));
  } else {
    LAMINA_RETURN_IF_ERROR(Put(stream, k_begin, bytes, nullptr));
  }
  const transport::SignalUpdate signal{
      .word = plan::FetchWindows(epoch_.layout).word(epoch_.node, lane.index),
      .value = stream.sent + 1};
  LAMINA_RETURN_IF_ERROR(
      Put(stream, k_begin + tiles * tile_bytes, bytes, end == tiles ? &signal : nullptr));
  epoch_.transport.Progress();
  telemetry::LinkCounters& link = meter_.link(kComputeNode);
  telemetry::AddTo(epoch_.counters.bytes_sent, 2 * bytes);
  telemetry::AddTo(link.bytes, 2 * bytes);
  telemetry::AddTo(link.puts, 2);
  telemetry::AddTo(link.nanos, static_cast<uint64_t>(meter_.Lap(telemetry::WorkPart::kReply, lane,
                                                                value, kComputeNode, 2 * bytes)));
  stream.tiles_done = end;
  return end == tiles ? EndPiece(lane, stream) : absl::OkStatus();
}

// Tiles [first_tile, end_tile) of the piece, counted over its heads. Slots without a token that
// lies here are zero: what an earlier piece left there is another sequence's.
absl::Status KvStream::Gather(const Lane& lane, const Stream& stream, size_t first_tile,
                              size_t end_tile, BFloat16* k, BFloat16* v) {
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  const size_t head_dim = epoch_.layers[stream.layer].head_dim;
  const size_t begin = first_tile * plan::kFetchTile;  // In slots, over all heads.
  const size_t end = end_tile * plan::kFetchTile;
  size_t slot = begin / piece.slots * piece.slots;
  for (auto head = static_cast<uint32_t>(begin / piece.slots); slot < end; ++head) {
    for (uint32_t run = piece.first_run; run < piece.runs_end && slot < end; ++run) {
      const plan::FetchRun& tokens = stream.runs[run];
      // Of the run's slots those in the range, and of these those with a token.
      const size_t from = std::max(slot, begin);
      const size_t to = std::min(slot + tokens.slots(), end);
      const size_t tokens_end = std::clamp(slot + tokens.before, from, std::max(from, to));
      if (from < to) {
        const size_t zeros = tokens_end / plan::kFetchTile * plan::kFetchTile;
        const size_t first_zero = std::max(zeros, from);
        std::fill(k + first_zero * head_dim, k + to * head_dim, BFloat16());
        std::fill(v + tokens_end * head_dim, v + to * head_dim, BFloat16());
        if (from < tokens_end) {
          LAMINA_RETURN_IF_ERROR(reads_.Load(
              stream.layer, piece.heads.first + head, lane.fetched[run].sequence->extents,
              static_cast<uint32_t>(from - slot), static_cast<uint32_t>(tokens_end - from),
              k + slot * head_dim, v + slot * head_dim));
        }
      }
      slot += tokens.slots();
    }
  }
  return absl::OkStatus();
}

absl::Status KvStream::Put(Stream& stream, size_t offset, size_t bytes,
                           const transport::SignalUpdate* signal) {
  const size_t window =
      plan::FetchWindows(epoch_.layout).Window(epoch_.node, IndexOf(stream), stream.sent + 1);
  return transport::PutAll(epoch_.transport, *epoch_.peers.compute[kComputeNode], window + offset,
                           {Staged(stream) + offset, bytes}, signal,
                           {.deadline = RealClock().Now() + epoch_.peer_deadline,
                            .abort = &epoch_.abort,
                            .beat = &epoch_.counters.beat});
}

absl::Status KvStream::EndPiece(Lane& lane, Stream& stream) {
  ++stream.sent;
  ++stream.piece;
  stream.tiles_done = 0;
  if (stream.piece < stream.pieces.size()) {
    return absl::OkStatus();
  }
  if (++stream.layer < epoch_.layers.size()) {
    BeginLayer(stream);
    return absl::OkStatus();
  }
  stream.active = false;
  return feed_.EndStep(lane);
}

}  // namespace lamina::memory_node
