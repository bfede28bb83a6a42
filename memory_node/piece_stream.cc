// SPDX-License-Identifier: Apache-2.0
#include "memory_node/piece_stream.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "common/kv_form.h"
#include "common/status_macros.h"
#include "control/transport_fault.h"
#include "kernels/int8_kv.h"
#include "kernels/k_tiles.h"
#include "transport/put_all.h"

namespace lamina::memory_node {
namespace {

static_assert(plan::kFetchTile == kernels::kTileSlots);

// Paths whose K and V come have one compute node (plan::CheckFetch()).
constexpr uint32_t kComputeNode = 0;

// Whether bytes may be written where a peer has them, past the transport: those of a decorator,
// "throttle(...)+shm://", are counted by their puts.
bool IsPlainSharedMemory(const std::string& transport) {
  return absl::StartsWith(transport, "shm://");
}

void Clear(BFloat16* begin, size_t first, size_t end, size_t head_dim) {
  std::fill(begin + first * head_dim, begin + end * head_dim, BFloat16());
}

// Calls lies(token, slot, tokens) for whole tiles of tokens [first, end) that are whole tiles of
// one extent too, `least` tokens of them or more. `extents` have the slots of tokens 0, 1, 2, ...
template <typename Lies>
void VisitTilesThatLie(absl::Span<const Extent> extents, size_t first, size_t end, size_t least,
                       Lies lies) {
  size_t extent_begin = 0;  // The extent's first token.
  for (const Extent& extent : extents) {
    if (extent_begin >= end) {
      return;
    }
    const size_t extent_end = extent_begin + extent.tokens;
    const size_t from = kernels::WholeTiles(std::max(first, extent_begin));
    const size_t to = std::min(end, extent_end) / plan::kFetchTile * plan::kFetchTile;
    const size_t slot = extent.first_slot + (from - extent_begin);
    if (from + least <= to && slot % plan::kFetchTile == 0) {
      lies(from, slot, to - from);
    }
    extent_begin = extent_end;
  }
}

}  // namespace

PieceStream::PieceStream(const NodeEpoch& epoch, UnitMeter& meter, uint32_t lane)
    : epoch_(epoch), meter_(meter), lane_(lane) {}

absl::Status PieceStream::Open() {
  stretches_.reserve(2 * (kTurnBytes / 2 / kLyingBytesMin) + 1);
  if (IsPlainSharedMemory(epoch_.config.transport)) {
    const transport::DirectMemory region = epoch_.peers.compute[kComputeNode]->direct();
    if (!region.empty()) {
      direct_ = region.bytes.data();
      return absl::OkStatus();
    }
  }
  staged_.resize(windows().ring_bytes());
  return control::TransportFault(
      epoch_.transport.RegisterSource(staged_, transport::MemoryKind::kHost));
}

void PieceStream::BeginStep() {
  layer_ = 0;
  pieces_.clear();
  piece_ = 0;
  done_ = 0;
}

void PieceStream::BeginHeads(uint32_t layer, HeadRange heads,
                             absl::Span<const plan::FetchRun> runs) {
  layer_ = layer;
  runs_ = runs;
  plan::PiecesOf(epoch_.layers[layer], heads, runs, plan::FetchLimitsOf(epoch_.config), pieces_);
  piece_ = 0;
  done_ = 0;
}

uint32_t PieceStream::Parts() const {
  return windows().Parts(
      plan::PieceBytes(piece(), epoch_.layers[layer_].head_dim, epoch_.activation_width));
}

transport::SignalCondition PieceStream::Credit() const {
  return {.word = windows().credit_word(kComputeNode, lane_), .at_least = sent().Before(Parts())};
}

bool PieceStream::HasRoom() const {
  const transport::RemoteRegion* const paced = epoch_.peers.pieces.get();
  return paced == nullptr ||
         epoch_.pieces_under_way.Of(epoch_.transport.Pending(*paced)) <= kTurnBytes;
}

std::byte* PieceStream::Gathered() {
  return direct_ != nullptr ? direct_ + windows().Window(epoch_.node, lane_, sent(), Parts())
                            : staged_.data() + windows().Offset(sent(), Parts());
}

// The slots that are sent of all heads follow each other, in K and in V, unless each head begins
// with slots that the compute node fills: a turn is one range of each.
absl::Status PieceStream::PutTiles(Lane& lane, kernels::KvReads& kv,
                                   absl::Span<const RunTokens> tokens) {
  const uint32_t head_dim = epoch_.layers[layer_].head_dim;
  const size_t tile_bytes = plan::kFetchTile * size_t{head_dim} * sizeof(BFloat16);
  const size_t per_head = (piece().slots - piece().filled) / plan::kFetchTile;
  const size_t tiles = piece().heads.count * per_head;
  if (tiles == 0) {  // The compute node fills all slots.
    LAMINA_RETURN_IF_ERROR(PutLast(lane, sizeof(plan::WindowHeader), 0));
    EndTurn(lane, 0, 1, 0, 0);
    return absl::OkStatus();
  }
  const size_t first = done_;
  size_t end = std::min(tiles, first + std::max<size_t>(1, kTurnBytes / (2 * tile_bytes)));
  if (piece().filled > 0) {
    end = std::min(end, (first / per_head + 1) * per_head);
  }
  CutIntoStretches(kv, tokens, first, end);
  auto* const k = reinterpret_cast<BFloat16*>(Gathered() + sizeof(plan::WindowHeader));
  const size_t before = (first / per_head + 1) * (piece().filled / plan::kFetchTile);
  const auto k_of = [&](const Stretch& stretch) {
    return sizeof(plan::WindowHeader) + (before + stretch.first) * tile_bytes;
  };
  const auto bytes_of = [&](const Stretch& stretch) {
    return (stretch.end - stretch.first) * tile_bytes;
  };
  for (const Stretch& stretch : stretches_) {
    if (stretch.k == nullptr) {
      LAMINA_RETURN_IF_ERROR(
          GatherTiles(kv, tokens, stretch.first, stretch.end, k, k + piece().elements(head_dim)));
    }
    LAMINA_RETURN_IF_ERROR(PutData(k_of(stretch), bytes_of(stretch), stretch.k));
  }
  for (const Stretch& stretch : stretches_) {
    const size_t v_begin = k_of(stretch) + piece().elements(head_dim) * sizeof(BFloat16);
    if (stretch.end < tiles) {
      LAMINA_RETURN_IF_ERROR(PutData(v_begin, bytes_of(stretch), stretch.v));
    } else {
      LAMINA_RETURN_IF_ERROR(PutLast(lane, v_begin, bytes_of(stretch), stretch.v));
    }
  }
  EndTurn(lane, 2 * (end - first) * tile_bytes, 2 * static_cast<uint32_t>(stretches_.size()), end,
          tiles);
  return absl::OkStatus();
}

void PieceStream::CutIntoStretches(kernels::KvReads& kv, absl::Span<const RunTokens> tokens,
                                   size_t first_tile, size_t end_tile) {
  stretches_.clear();
  size_t reached = first_tile;
  const auto reach = [&](const Stretch& lying) {
    if (reached < lying.first) {
      stretches_.push_back({.first = reached, .end = lying.first});
    }
    reached = lying.end;
    if (lying.first < lying.end) {
      stretches_.push_back(lying);
    }
  };
  if (direct_ == nullptr && epoch_.puts_arena) {
    const size_t slot_bytes = epoch_.layers[layer_].head_dim * sizeof(BFloat16);
    const size_t least = std::max<size_t>(plan::kFetchTile, kLyingBytesMin / slot_bytes);
    VisitRunParts(first_tile, end_tile, [&](const RunPart& part) {
      const std::optional<kernels::KvView> arena = kv.View(layer_, piece().heads.first + part.head);
      if (arena.has_value()) {
        VisitTilesThatLie(tokens[part.run].slots, part.begin - part.run_begin,
                          part.tokens_end - part.run_begin, least,
                          [&](size_t token, size_t slot, size_t count) {
                            const size_t tile = (part.run_begin + token) / plan::kFetchTile;
                            const size_t element = slot * epoch_.layers[layer_].head_dim;
                            reach({.first = tile,
                                   .end = tile + count / plan::kFetchTile,
                                   .k = arena->k + element,
                                   .v = arena->v + element});
                          });
      }
    });
  }
  reach({.first = end_tile, .end = end_tile});
}

// First INT8 of all heads, then scales of K, then open blocks. Of these every run has some, for its
// own rows, unless the compute node fills them. Where each head begins with slots that the compute
// node fills, a turn is of one head.
absl::Status PieceStream::PutInt8(Lane& lane, kernels::KvReads& reads,
                                  absl::Span<const Int8RunTokens> tokens) {
  constexpr size_t kHeader = sizeof(plan::WindowHeader);
  constexpr size_t kScale = sizeof(kernels::Int8Scale);
  const uint32_t head_dim = epoch_.layers[layer_].head_dim;
  const Int8Gather gather(piece(), layer_, head_dim, {.runs = runs_, .tokens = tokens},
                          Gathered() + kHeader);
  const plan::FetchPlanes planes = plan::PlanesOf(piece(), head_dim);
  const size_t scales = gather.closed_tiles();  // Where tiles of scales begin, and those of tails.
  const size_t tails = scales + gather.scale_tiles();
  const size_t all = tails + gather.tail_tiles();
  if (all == 0) {  // The compute node fills all slots.
    LAMINA_RETURN_IF_ERROR(PutLast(lane, kHeader, 0));
    EndTurn(lane, 0, 1, 0, 0);
    return absl::OkStatus();
  }
  const bool is_closed = done_ < scales;
  const bool is_scales = !is_closed && done_ < tails;
  const size_t begin = is_closed ? 0 : is_scales ? scales : tails;
  const size_t last = is_closed ? scales : is_scales ? tails : all;
  const size_t scale_bytes = Int8ScalesOfSlot(head_dim) * kScale;
  const size_t tile_bytes =
      plan::kFetchTile * (is_closed   ? KvHeadBytes(head_dim, KvForm::kInt8) - scale_bytes
                          : is_scales ? scale_bytes
                                      : KvHeadBytes(head_dim, KvForm::kBF16));
  size_t end = std::min(last, done_ + std::max<size_t>(1, kTurnBytes / tile_bytes));
  size_t first_slot = (done_ - begin) * plan::kFetchTile;
  const size_t filled = is_closed   ? piece().filled
                        : is_scales ? piece().filled_scales
                                    : piece().filled_open;
  if (filled > 0) {
    const size_t per_head = (last - begin) / piece().heads.count;
    const size_t heads = (done_ - begin) / per_head + 1;  // Up to this one.
    end = std::min(end, begin + heads * per_head);
    first_slot += heads * filled;
  }
  const size_t slots = (end - done_) * plan::kFetchTile;
  const auto put = [&](size_t plane, size_t slot_bytes) {
    return PutData(kHeader + plane + first_slot * slot_bytes, slots * slot_bytes);
  };
  // The plane that a turn puts last may end the piece.
  const auto put_last = [&](size_t plane, size_t slot_bytes) {
    return end < all ? put(plane, slot_bytes)
                     : PutLast(lane, kHeader + plane + first_slot * slot_bytes, slots * slot_bytes);
  };
  uint32_t puts = 1;
  if (is_closed) {
    LAMINA_RETURN_IF_ERROR(gather.Closed(reads, done_, end));
    LAMINA_RETURN_IF_ERROR(put(planes.int8_k, head_dim));
    LAMINA_RETURN_IF_ERROR(put(planes.int8_v, head_dim));
    LAMINA_RETURN_IF_ERROR(put_last(planes.v_scales, kScale));
    puts = 3;
  } else if (is_scales) {
    LAMINA_RETURN_IF_ERROR(gather.Scales(reads, done_ - begin, end - begin));
    LAMINA_RETURN_IF_ERROR(put_last(planes.k_scales, scale_bytes));
  } else {
    const size_t slot_bytes = head_dim * sizeof(BFloat16);
    LAMINA_RETURN_IF_ERROR(gather.Tails(reads, done_ - begin, end - begin));
    LAMINA_RETURN_IF_ERROR(put(planes.k, slot_bytes));
    LAMINA_RETURN_IF_ERROR(put_last(planes.v, slot_bytes));
    puts = 2;
  }
  EndTurn(lane, (end - done_) * tile_bytes, puts, end, all);
  return absl::OkStatus();
}

absl::Status PieceStream::PutActivations(Lane& lane, kernels::KvActivations& activations,
                                         absl::Span<const RunTokens> tokens) {
  const size_t token_bytes = epoch_.activation_width * sizeof(BFloat16);
  const size_t all = piece().recomputed;
  const size_t first = done_;
  const size_t end = std::min(all, first + std::max<size_t>(1, kTurnBytes / token_bytes));
  const size_t begin = sizeof(plan::WindowHeader) + first * token_bytes;
  LAMINA_RETURN_IF_ERROR(GatherActivations(activations, tokens, first, end,
                                           reinterpret_cast<BFloat16*>(Gathered() + begin)));
  const size_t bytes = (end - first) * token_bytes;
  if (end < all) {
    LAMINA_RETURN_IF_ERROR(PutData(begin, bytes));
  } else {
    LAMINA_RETURN_IF_ERROR(PutLast(lane, begin, bytes));
  }
  EndTurn(lane, bytes, 1, end, all);
  return absl::OkStatus();
}

const std::byte* PieceStream::SourceOf(size_t offset, const BFloat16* lying) {
  return lying == nullptr ? Gathered() + offset : reinterpret_cast<const std::byte*>(lying);
}

absl::Status PieceStream::PutData(size_t offset, size_t bytes, const BFloat16* lying) {
  const absl::Span<const std::byte> source(SourceOf(offset, lying), bytes);
  CheckData(offset, source);
  return Put(offset, source);
}

// The header is of the whole piece, whose checksum is known now; the signal comes with the data.
absl::Status PieceStream::PutLast(const Lane& lane, size_t offset, size_t bytes,
                                  const BFloat16* lying) {
  const absl::Span<const std::byte> source(SourceOf(offset, lying), bytes);
  CheckData(offset, source);
  plan::WindowHeader header{.lane = lane_,
                            .epoch = epoch_.config.epoch,
                            .step = lane.step,
                            .layer = layer_,
                            .rows = static_cast<uint32_t>(piece_),
                            .kv_rows = piece().activations() ? piece().recomputed : piece().slots,
                            .sender = epoch_.node,
                            .data_checksum = epoch_.checks_data ? checksum_.value() : 0};
  checksum_ = {};
  plan::Seal(header);
  std::memcpy(Gathered(), &header, sizeof(header));
  LAMINA_RETURN_IF_ERROR(Put(0, {Gathered(), sizeof(header)}));
  return Put(offset, source, /*with_signal=*/true);
}

void PieceStream::CheckData(size_t offset, absl::Span<const std::byte> source) {
  if (epoch_.checks_data) {
    checksum_.Add(offset, source);
  }
}

absl::Status PieceStream::Put(size_t offset, absl::Span<const std::byte> source, bool with_signal) {
  if (direct_ != nullptr && !with_signal) {
    return absl::OkStatus();
  }
  const absl::Span<const std::byte> put =
      direct_ != nullptr ? absl::Span<const std::byte>() : source;
  const transport::SignalUpdate signal = {.word = windows().word(epoch_.node, lane_),
                                          .value = sent().pieces() + 1};
  LAMINA_RETURN_IF_ERROR(
      transport::PutAll(epoch_.transport, epoch_.pieces_to(),
                        windows().Window(epoch_.node, lane_, sent(), Parts()) + offset, put,
                        with_signal ? &signal : nullptr,
                        {.deadline = RealClock().Now() + epoch_.peer_deadline,
                         .abort = &epoch_.abort,
                         .beat = &epoch_.counters.beat}));
  epoch_.pieces_under_way.Add(put.size());
  const BusKind data = piece().activations() ? BusKind::kActivations : BusKind::kKv;
  epoch_.counters.bus.Count(offset == 0 ? BusKind::kRows : data, put.size());
  return absl::OkStatus();
}

void PieceStream::EndTurn(Lane& lane, size_t bytes, uint32_t puts, size_t done, size_t all) {
  epoch_.transport.Progress();
  telemetry::LinkCounters& link = meter_.link(kComputeNode);
  telemetry::AddTo(epoch_.counters.bytes_sent, bytes);
  telemetry::AddTo(link.bytes, bytes);
  telemetry::AddTo(link.puts, puts);
  const uint64_t value = epoch_.layout.SignalValue(lane.step, layer_);
  telemetry::AddTo(link.nanos, static_cast<uint64_t>(meter_.EndInterval(
                                   telemetry::WorkKind::kReply, lane, value, kComputeNode, bytes)));
  done_ = done;
  if (done == all) {
    sent().Add(Parts());
    ++piece_;
    done_ = 0;
  }
}

void PieceStream::VisitRunParts(size_t first_tile, size_t end_tile,
                                absl::FunctionRef<void(const RunPart&)> visit) const {
  const size_t per_head = piece().slots - piece().filled;  // Slots that are sent.
  const size_t begin = first_tile * plan::kFetchTile;      // In these, over all heads.
  const size_t end = end_tile * plan::kFetchTile;
  size_t slot = begin / per_head * per_head;
  for (auto head = static_cast<uint32_t>(begin / per_head); slot < end; ++head) {
    for (uint32_t run = piece().first_run; run < piece().runs_end && slot < end; ++run) {
      // Takes the run's slots in the range, and of these those with a token.
      const size_t from = std::max(slot, begin);
      const size_t to = std::min(slot + runs_[run].slots(), end);
      if (from < to) {
        visit({.head = head,
               .run = run,
               .run_begin = slot,
               .begin = from,
               .tokens_end = std::clamp(slot + runs_[run].fetched(), from, to),
               .end = to});
      }
      slot += runs_[run].slots();
    }
  }
}

// Tiles [first_tile, end_tile) of those that the piece sends, counted over its heads. Slots without
// a token are zero: what an earlier piece left there is another sequence's.
absl::Status PieceStream::GatherTiles(kernels::KvReads& kv, absl::Span<const RunTokens> tokens,
                                      size_t first_tile, size_t end_tile, BFloat16* k,
                                      BFloat16* v) {
  const size_t head_dim = epoch_.layers[layer_].head_dim;
  absl::Status status;
  VisitRunParts(first_tile, end_tile, [&](const RunPart& part) {
    // Slot 0 would lie here, had no head slots that the compute node fills.
    const size_t skipped = (part.head + size_t{1}) * piece().filled;
    BFloat16* const head_k = k + skipped * head_dim;
    BFloat16* const head_v = v + skipped * head_dim;
    // K of a tile with some tokens is cleared whole before these come.
    Clear(head_k, std::max(part.tokens_end / plan::kFetchTile * plan::kFetchTile, part.begin),
          part.end, head_dim);
    Clear(head_v, part.tokens_end, part.end, head_dim);
    if (part.begin < part.tokens_end) {
      // Tokens go to slots of their numbers among those that come as K and V.
      status.Update(kv.Load(layer_, piece().heads.first + part.head, tokens[part.run].slots,
                            static_cast<uint32_t>(part.begin - part.run_begin),
                            static_cast<uint32_t>(part.tokens_end - part.begin),
                            head_k + part.run_begin * head_dim,
                            head_v + part.run_begin * head_dim));
    }
  });
  return status;
}

// Tokens [first, end) of the piece's, counted over its runs.
absl::Status PieceStream::GatherActivations(kernels::KvActivations& activations,
                                            absl::Span<const RunTokens> tokens, size_t first,
                                            size_t end, BFloat16* to) {
  const size_t width = epoch_.activation_width;
  size_t token = 0;
  for (uint32_t run = piece().first_run; run < piece().runs_end && token < end; ++run) {
    const size_t run_end = token + runs_[run].recomputed;
    const size_t from = std::max(token, first);
    const size_t upto = std::min(run_end, end);
    if (from < upto) {
      LAMINA_RETURN_IF_ERROR(activations.Load(layer_, tokens[run].slots,
                                              static_cast<uint32_t>(from - token),
                                              static_cast<uint32_t>(upto - from), to));
      to += (upto - from) * width;
    }
    token = run_end;
  }
  return absl::OkStatus();
}

}  // namespace lamina::memory_node
