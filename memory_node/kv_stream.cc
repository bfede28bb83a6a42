// SPDX-License-Identifier: Apache-2.0
#include "memory_node/kv_stream.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
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

// Whether bytes may be written where a peer has them, past the transport: those of a decorator,
// "throttle(...)+shm://", are counted by their puts.
bool IsPlainSharedMemory(const std::string& transport) {
  return absl::StartsWith(transport, "shm://");
}

}  // namespace

KvStream::KvStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter, const Stored& stored)
    : epoch_(epoch), feed_(feed), meter_(meter), stored_(stored), streams_(epoch.config.lanes) {}

absl::Status KvStream::Open() {
  const transport::DirectMemory windows = epoch_.peers.compute[kComputeNode]->direct();
  if (!windows.empty() && IsPlainSharedMemory(epoch_.config.transport)) {
    direct_ = windows.bytes.data();
    return absl::OkStatus();
  }
  for (Stream& stream : streams_) {
    stream.staged.resize(2 * plan::FetchWindows(epoch_.layout).window_bytes());
  }
  for (const Stream& stream : streams_) {
    LAMINA_RETURN_IF_ERROR(control::TransportFault(
        epoch_.transport.RegisterSource(stream.staged, transport::MemoryKind::kHost)));
  }
  return absl::OkStatus();
}

std::byte* KvStream::Gathered(Stream& stream) const {
  const plan::FetchWindows windows(epoch_.layout);
  return direct_ != nullptr
             ? direct_ + windows.Window(epoch_.node, IndexOf(stream), stream.sent + 1)
             : stream.staged.data() + (stream.sent + 1) % 2 * windows.window_bytes();
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
  plan::PiecesOf(epoch_.layers[stream.layer], stream.runs, plan::FetchLimitsOf(epoch_.config),
                 stream.pieces);
  stream.piece = 0;
  stream.done = 0;
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

absl::Status KvStream::PutSome(Lane& lane, Stream& stream) {
  return stream.pieces[stream.piece].activations() ? PutActivations(lane, stream)
                                                   : PutTiles(lane, stream);
}

// The slots that are sent of all heads follow each other, in K and in V, unless each head begins
// with slots of recomputed tokens: a turn is one range of each.
absl::Status KvStream::PutTiles(Lane& lane, Stream& stream) {
  const AttentionDescriptor& layer = epoch_.layers[stream.layer];
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  const size_t tile_bytes = plan::kFetchTile * size_t{layer.head_dim} * sizeof(BFloat16);
  const size_t per_head = (piece.slots - piece.recomputed) / plan::kFetchTile;
  const size_t tiles = piece.heads.count * per_head;
  const size_t first = stream.done;
  size_t end = std::min(tiles, first + std::max<size_t>(1, kTurnBytes / (2 * tile_bytes)));
  if (piece.recomputed > 0) {
    end = std::min(end, (first / per_head + 1) * per_head);
  }
  std::byte* const window = Gathered(stream);
  auto* const k = reinterpret_cast<BFloat16*>(window + sizeof(plan::WindowHeader));
  BFloat16* const v = k + piece.elements(layer.head_dim);
  LAMINA_RETURN_IF_ERROR(Gather(lane, stream, first, end, k, v));
  const size_t before = (first / per_head + 1) * (piece.recomputed / plan::kFetchTile);
  const size_t k_begin = sizeof(plan::WindowHeader) + (before + first) * tile_bytes;
  const size_t bytes = (end - first) * tile_bytes;
  if (first == 0) {
    LAMINA_RETURN_IF_ERROR(PutHeader(lane, stream));
  }
  LAMINA_RETURN_IF_ERROR(Put(stream, k_begin, bytes, nullptr));
  const transport::SignalUpdate signal = SignalOf(lane, stream);
  LAMINA_RETURN_IF_ERROR(Put(stream, k_begin + piece.elements(layer.head_dim) * sizeof(BFloat16),
                             bytes, end == tiles ? &signal : nullptr));
  return EndTurn(lane, stream, 2 * bytes, 2, end, tiles);
}

absl::Status KvStream::PutActivations(Lane& lane, Stream& stream) {
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  const size_t token_bytes = epoch_.config.activation_width * sizeof(BFloat16);
  const size_t first = stream.done;
  const size_t end =
      std::min<size_t>(piece.recomputed, first + std::max<size_t>(1, kTurnBytes / token_bytes));
  const size_t begin = sizeof(plan::WindowHeader) + first * token_bytes;
  LAMINA_RETURN_IF_ERROR(GatherActivations(lane, stream, first, end,
                                           reinterpret_cast<BFloat16*>(Gathered(stream) + begin)));
  if (first == 0) {
    LAMINA_RETURN_IF_ERROR(PutHeader(lane, stream));
  }
  const size_t bytes = (end - first) * token_bytes;
  const transport::SignalUpdate signal = SignalOf(lane, stream);
  LAMINA_RETURN_IF_ERROR(Put(stream, begin, bytes, end == piece.recomputed ? &signal : nullptr));
  return EndTurn(lane, stream, bytes, 1, end, piece.recomputed);
}

absl::Status KvStream::PutHeader(const Lane& lane, Stream& stream) {
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  const plan::WindowHeader header{.lane = lane.index,
                                  .epoch = epoch_.config.epoch,
                                  .step = lane.step,
                                  .layer = stream.layer,
                                  .rows = static_cast<uint32_t>(stream.piece),
                                  .kv_rows = piece.activations() ? piece.recomputed : piece.slots,
                                  .sender = epoch_.node};
  std::memcpy(Gathered(stream), &header, sizeof(header));
  return Put(stream, 0, sizeof(header), nullptr);
}

transport::SignalUpdate KvStream::SignalOf(const Lane& lane, const Stream& stream) const {
  return {.word = plan::FetchWindows(epoch_.layout).word(epoch_.node, lane.index),
          .value = stream.sent + 1};
}

absl::Status KvStream::EndTurn(Lane& lane, Stream& stream, size_t bytes, uint32_t puts, size_t done,
                               size_t all) {
  epoch_.transport.Progress();
  telemetry::LinkCounters& link = meter_.link(kComputeNode);
  telemetry::AddTo(epoch_.counters.bytes_sent, bytes);
  telemetry::AddTo(link.bytes, bytes);
  telemetry::AddTo(link.puts, puts);
  const uint64_t value = epoch_.layout.SignalValue(lane.step, stream.layer);
  telemetry::AddTo(link.nanos, static_cast<uint64_t>(meter_.EndInterval(
                                   telemetry::WorkPart::kReply, lane, value, kComputeNode, bytes)));
  stream.done = done;
  return done == all ? EndPiece(lane, stream) : absl::OkStatus();
}

// Tiles [first_tile, end_tile) of those that the piece sends, counted over its heads. Slots without
// a token that lies here are zero: what an earlier piece left there is another sequence's.
absl::Status KvStream::Gather(const Lane& lane, const Stream& stream, size_t first_tile,
                              size_t end_tile, BFloat16* k, BFloat16* v) {
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  const size_t head_dim = epoch_.layers[stream.layer].head_dim;
  const size_t per_head = piece.slots - piece.recomputed;  // Slots that are sent.
  const size_t begin = first_tile * plan::kFetchTile;      // In these, over all heads.
  const size_t end = end_tile * plan::kFetchTile;
  size_t slot = begin / per_head * per_head;
  for (auto head = static_cast<uint32_t>(begin / per_head); slot < end; ++head) {
    // Where slot 0 would lie, had no head slots of recomputed tokens.
    const size_t skipped = (head + size_t{1}) * piece.recomputed;
    for (uint32_t run = piece.first_run; run < piece.runs_end && slot < end; ++run) {
      const plan::FetchRun& tokens = stream.runs[run];
      // Of the run's slots those in the range, and of these those with a token.
      const size_t from = std::max(slot, begin);
      const size_t to = std::min(slot + tokens.slots(), end);
      const size_t tokens_end = std::clamp(slot + tokens.fetched(), from, std::max(from, to));
      if (from < to) {
        const size_t zeros = tokens_end / plan::kFetchTile * plan::kFetchTile;
        const size_t first_zero = std::max(zeros, from);
        std::fill(k + (skipped + first_zero) * head_dim, k + (skipped + to) * head_dim, BFloat16());
        std::fill(v + (skipped + tokens_end) * head_dim, v + (skipped + to) * head_dim, BFloat16());
        // What lies nowhere any more is not seen by any row.
        const FetchedRun& fetched = lane.fetched[run];
        const size_t first = std::clamp(slot + fetched.hidden_kv, from, std::max(from, tokens_end));
        std::fill(k + (skipped + from) * head_dim, k + (skipped + first) * head_dim, BFloat16());
        std::fill(v + (skipped + from) * head_dim, v + (skipped + first) * head_dim, BFloat16());
        if (first < tokens_end) {
          // Tokens go to slots of their numbers among those that come as K and V.
          const size_t token_0 = (skipped + slot) * head_dim;
          LAMINA_RETURN_IF_ERROR(
              stored_.kv.Load(stream.layer, piece.heads.first + head, fetched.slots.kv,
                              static_cast<uint32_t>(first - slot),
                              static_cast<uint32_t>(tokens_end - first), k + token_0, v + token_0));
        }
      }
      slot += tokens.slots();
    }
  }
  return absl::OkStatus();
}

// Tokens [first, end) of the piece's, counted over its runs.
absl::Status KvStream::GatherActivations(const Lane& lane, const Stream& stream, size_t first,
                                         size_t end, BFloat16* to) {
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  size_t token = 0;
  for (uint32_t run = piece.first_run; run < piece.runs_end && token < end; ++run) {
    const size_t run_end = token + stream.runs[run].recomputed;
    const size_t from = std::max(token, first);
    const size_t upto = std::min(run_end, end);
    if (from < upto) {
      const FetchedRun& fetched = lane.fetched[run];
      const size_t kept = std::clamp<size_t>(token + fetched.hidden_activations, from, upto);
      to = std::fill_n(to, (kept - from) * epoch_.config.activation_width, BFloat16());
      LAMINA_RETURN_IF_ERROR(stored_.activations->Load(stream.layer, fetched.slots.activations,
                                                       static_cast<uint32_t>(kept - token),
                                                       static_cast<uint32_t>(upto - kept), to));
      to += (upto - kept) * epoch_.config.activation_width;
    }
    token = run_end;
  }
  return absl::OkStatus();
}

absl::Status KvStream::Put(Stream& stream, size_t offset, size_t bytes,
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

absl::Status KvStream::EndPiece(Lane& lane, Stream& stream) {
  ++stream.sent;
  ++stream.piece;
  stream.done = 0;
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
