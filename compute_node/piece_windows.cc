// SPDX-License-Identifier: Apache-2.0
#include "compute_node/piece_windows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/clock.h"
#include "common/kv_form.h"
#include "common/status_macros.h"
#include "kernels/int8_kv.h"
#include "plan/activation_part.h"
#include "plan/data_checksum.h"

namespace lamina::compute_node {
namespace {

// What of a piece of INT8 has come: of each head the slots behind those that are filled here.
// `data` is behind the window's header.
void AddInt8(const plan::FetchPiece& piece, uint32_t head_dim, const std::byte* data,
             plan::DataChecksum& checksum) {
  const auto add = [&](size_t first, size_t end) {
    checksum.Add(sizeof(plan::WindowHeader) + first, {data + first, end - first});
  };
  const plan::FetchPlanes planes = plan::PlanesOf(piece, head_dim);
  struct Slots {
    size_t all = 0;
    size_t filled = 0;
  };
  const auto add_heads = [&](size_t plane, Slots slots, size_t slot_bytes) {
    for (size_t head = 0; head < piece.heads.count; ++head) {
      add(plane + (head * slots.all + slots.filled) * slot_bytes,
          plane + (head + 1) * slots.all * slot_bytes);
    }
  };
  constexpr size_t kScale = sizeof(kernels::Int8Scale);
  const Slots closed{.all = piece.int8_slots, .filled = piece.filled};
  const Slots scales{.all = piece.scale_slots, .filled = piece.filled_scales};
  const Slots open{.all = piece.slots, .filled = piece.filled_open};
  add_heads(planes.int8_k, closed, head_dim);
  add_heads(planes.int8_v, closed, head_dim);
  add_heads(planes.k_scales, scales, Int8ScalesOfSlot(head_dim) * kScale);
  add_heads(planes.v_scales, closed, kScale);
  add_heads(planes.k, open, head_dim * sizeof(BFloat16));
  add_heads(planes.v, open, head_dim * sizeof(BFloat16));
}

}  // namespace

PieceWindows::PieceWindows(const WorkerContext& context)
    : context_(context),
      streams_(context.config.lanes, std::vector<Stream>(context.config.memory_nodes.size())),
      come_(context.config.lanes) {}

void PieceWindows::BeginStep(const Lane& lane) {
  for (uint32_t node = 0; node < streams_[lane.index].size(); ++node) {
    streams_[lane.index][node].pieces.clear();
    streams_[lane.index][node].piece = 0;
    // The memory node begins when it has the plan.
    const uint64_t taken = Taken(lane, node).pieces();
    Look(node).Expect(lane.index, {.sure = taken, .possible = taken + plan::FetchRing::kParts});
  }
}

telemetry::FetchedBandwidth& PieceWindows::Look(uint32_t node) {
  for (uint32_t lane = 0; lane < come_.size(); ++lane) {
    come_[lane] = context_.region.LoadSignal(windows().word(node, lane));
  }
  telemetry::FetchedBandwidth& link = context_.peers.Fetched(node);
  link.Look(RealClock().Now(), come_);
  return link;
}

size_t PieceWindows::BytesOf(uint32_t node, const Stream& stream, size_t piece) const {
  return plan::PieceBytes(stream.pieces[piece], context_.config.layers[stream.layer].head_dim,
                          plan::ActivationPartOf(context_.config, node).count);
}

size_t PieceWindows::SentAhead(const Lane& lane, uint32_t node) const {
  const Stream& stream = StreamOf(lane, node);
  plan::FetchRing ring = Taken(lane, node);
  const uint64_t given_back = ring.pieces();
  size_t ahead = 0;
  for (; ahead < stream.left(); ++ahead) {
    const uint32_t parts = PartsOf(node, stream, stream.piece + ahead);
    if (ring.Before(parts) > given_back) {
      break;
    }
    ring.Add(parts);
  }
  return ahead;
}

// The memory node sends the pieces of the layers behind without waiting for this one's rows. How
// large these are is not known yet: two fit in any case.
void PieceWindows::ExpectPieces(const Lane& lane, uint32_t node) {
  constexpr size_t kAnyTwo = 2;
  const Stream& stream = StreamOf(lane, node);
  const uint64_t taken = Taken(lane, node).pieces();
  telemetry::FetchedBandwidth::Pieces expected{.sure = taken, .possible = taken};
  if (!stream.pieces.empty()) {
    const size_t ahead = SentAhead(lane, node);
    expected.sure += stream.ends_step ? ahead : std::max(ahead, kAnyTwo);
    expected.possible += stream.ends_step ? ahead : plan::FetchRing::kParts;
  }
  Look(node).Expect(lane.index, expected);
}

void PieceWindows::BeginLayer(const Lane& lane, uint32_t node, uint32_t layer,
                              absl::Span<const plan::FetchRun> runs) {
  BeginHeads(lane, node, layer, AllHeads(context_.PartOf(layer, node)), runs);
}

void PieceWindows::BeginHeads(const Lane& lane, uint32_t node, uint32_t layer, HeadRange heads,
                              absl::Span<const plan::FetchRun> runs) {
  Stream& stream = streams_[lane.index][node];
  stream.layer = layer;
  plan::PiecesOf(context_.PartOf(layer, node), heads, runs, plan::FetchLimitsOf(context_.config),
                 stream.pieces);
  stream.piece = 0;
  stream.ends_step = layer + 1 == context_.config.layers.size() &&
                     heads.first + heads.count == context_.HeadsOf(layer, node).count;
  ExpectPieces(lane, node);
}

bool PieceWindows::Ended(const Lane& lane, uint32_t node) const {
  const Stream& stream = StreamOf(lane, node);
  return stream.piece == stream.pieces.size();
}

bool PieceWindows::Ended(const Lane& lane) const {
  const std::vector<Stream>& streams = streams_[lane.index];
  return std::all_of(streams.begin(), streams.end(),
                     [](const Stream& stream) { return stream.piece == stream.pieces.size(); });
}

bool PieceWindows::AwaitsActivations(const Lane& lane, uint32_t node) const {
  const Stream& stream = StreamOf(lane, node);
  return std::any_of(stream.pieces.begin() + static_cast<std::ptrdiff_t>(stream.piece),
                     stream.pieces.end(),
                     [](const plan::FetchPiece& piece) { return piece.activations(); });
}

bool PieceWindows::HasCome(const Lane& lane, uint32_t node) const {
  return context_.region.LoadSignal(windows().word(node, lane.index)) > Taken(lane, node).pieces();
}

void PieceWindows::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  for (uint32_t node = 0; node < streams_[lane.index].size(); ++node) {
    AppendAwaited(lane, node, awaited);
  }
}

void PieceWindows::AppendAwaited(const Lane& lane, uint32_t node,
                                 std::vector<AwaitedSignal>& awaited) const {
  if (!Ended(lane, node)) {
    awaited.push_back({.peer = MemoryPeer(node),
                       .word = windows().word(node, lane.index),
                       .value = Taken(lane, node).pieces() + 1});
  }
}

const plan::FetchPiece& PieceWindows::piece(const Lane& lane, uint32_t node, size_t behind) const {
  const Stream& stream = StreamOf(lane, node);
  return stream.pieces[stream.piece + behind];
}

BFloat16* PieceWindows::elements(const Lane& lane, uint32_t node, size_t behind) const {
  const Stream& stream = StreamOf(lane, node);
  plan::FetchRing ring = Taken(lane, node);
  for (size_t i = 0; i < behind; ++i) {
    ring.Add(PartsOf(node, stream, stream.piece + i));
  }
  const size_t window =
      windows().Window(node, lane.index, ring, PartsOf(node, stream, stream.piece + behind));
  return reinterpret_cast<BFloat16*>(context_.region.bytes().data() + window +
                                     sizeof(plan::WindowHeader));
}

absl::StatusOr<size_t> PieceWindows::Take(const Lane& lane, uint32_t node) {
  const Stream& stream = StreamOf(lane, node);
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  plan::WindowHeader header;
  std::memcpy(&header, reinterpret_cast<std::byte*>(elements(lane, node)) - sizeof(header),
              sizeof(header));
  plan::WindowHeader expected =
      context_.HeaderOf(lane, stream.layer, static_cast<uint32_t>(stream.piece), node);
  expected.kv_rows = piece.activations() ? piece.recomputed : piece.slots;
  LAMINA_RETURN_IF_ERROR(context_.peers.CheckSealedWindow(MemoryPeer(node), header, expected));
  if (header.data_checksum != 0) {
    LAMINA_RETURN_IF_ERROR(
        context_.peers.CheckData(MemoryPeer(node), header, Checksum(lane, node)));
  }
  // Slots that this node fills do not come.
  const uint32_t head_dim = context_.config.layers[stream.layer].head_dim;
  const size_t bytes =
      BytesOf(node, stream, stream.piece) - plan::FilledBytes(piece, head_dim, form());
  telemetry::AddTo(context_.counters.bytes_received, sizeof(header) + bytes);
  telemetry::FetchedBandwidth& link = Look(node);
  if (bytes > 0) {  // A header alone says nothing of the link.
    link.Count(bytes);
  }
  return bytes;
}

// Slots that this node fills did not come: the first ones of each head.
uint64_t PieceWindows::Checksum(const Lane& lane, uint32_t node) const {
  const Stream& stream = StreamOf(lane, node);
  const plan::FetchPiece& piece = stream.pieces[stream.piece];
  const auto* const data = reinterpret_cast<const std::byte*>(elements(lane, node));
  plan::DataChecksum checksum;
  const auto add = [&](size_t first, size_t count) {
    const size_t offset = first * sizeof(BFloat16);
    checksum.Add(sizeof(plan::WindowHeader) + offset, {data + offset, count * sizeof(BFloat16)});
  };
  if (piece.activations()) {
    add(0, BytesOf(node, stream, stream.piece) / sizeof(BFloat16));
    return checksum.value();
  }
  const uint32_t head_dim = context_.config.layers[stream.layer].head_dim;
  if (form() == KvForm::kInt8) {
    AddInt8(piece, head_dim, data, checksum);
    return checksum.value();
  }
  for (size_t head = 0; head < 2 * size_t{piece.heads.count}; ++head) {  // Heads of K, then of V.
    add((head * piece.slots + piece.filled) * head_dim, (piece.slots - piece.filled) * head_dim);
  }
  return checksum.value();
}

absl::Status PieceWindows::GiveBack(const Lane& lane, uint32_t node) {
  Stream& stream = streams_[lane.index][node];
  plan::FetchRing& taken = Taken(lane, node);
  taken.Add(PartsOf(node, stream, stream.piece));
  ++stream.piece;
  const transport::SignalUpdate credit{.word = windows().credit_word(context_.node, lane.index),
                                       .value = taken.pieces()};
  ExpectPieces(lane, node);
  return context_.peers.Put(MemoryPeer(node), 0, {}, &credit);
}

absl::StatusOr<bool> PieceWindows::AttendCome(Lane& lane,
                                              absl::FunctionRef<void(uint32_t node)> attend,
                                              absl::FunctionRef<void(uint32_t node)> ended) {
  for (uint32_t node = 0; node < streams_[lane.index].size(); ++node) {
    LAMINA_RETURN_IF_ERROR(AttendNext(lane, node, attend, ended));
  }
  return Ended(lane);
}

absl::Status PieceWindows::AttendNext(Lane& lane, uint32_t node,
                                      absl::FunctionRef<void(uint32_t node)> attend,
                                      absl::FunctionRef<void(uint32_t node)> ended) {
  if (Ended(lane, node) || !HasCome(lane, node)) {
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const size_t bytes, Take(lane, node));
  attend(node);
  telemetry::AddTo(context_.counters.kv_bytes_read, bytes);
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kAttend, StreamOf(lane, node).layer,
                                   MemoryPeer(node), bytes);
  LAMINA_RETURN_IF_ERROR(GiveBack(lane, node));
  if (Ended(lane, node)) {
    ended(node);
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
