// SPDX-License-Identifier: Apache-2.0
//
// What goes to memory nodes and comes back: query windows out, reply windows in.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "compute_node/step_worker.h"
#include "control/epoch_shape.h"
#include "coordinator/core/row_chunks.h"
#include "transport/put_all.h"

namespace lamina::compute_node {
namespace {

// While lanes are away and others idle, plans of the idle ones are looked for this often.
constexpr Nanos kPlanPoll = Micros(200);

uint8_t MemoryPeer(uint32_t node) {
  return static_cast<uint8_t>(control::TraceEvent::kMemoryPeer + node);
}

const std::string& NameOfPeer(const control::EpochConfig& config, uint8_t peer) {
  return peer < control::TraceEvent::kMemoryPeer
             ? config.compute_nodes[peer]
             : config.memory_nodes[peer - control::TraceEvent::kMemoryPeer];
}

}  // namespace

// The first piece to every memory node, then the second, so that all begin early.
absl::Status StepWorker::Send(Lane& lane, std::string& blamed) {
  uint32_t most = 0;
  for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
    if (lane.nodes[node].involved()) {
      BeginSend(lane, node);
      most = std::max(most, lane.nodes[node].pieces.count());
    }
  }
  for (uint32_t piece = 0; piece < most; ++piece) {
    for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
      const NodePart& part = lane.nodes[node];
      if (!part.involved() || piece >= part.pieces.count()) {
        continue;
      }
      if (const absl::Status sent = SendPiece(lane, node, piece); !sent.ok()) {
        blamed = options_.config.memory_nodes[node];
        return sent;
      }
    }
  }
  return absl::OkStatus();
}

// The parts of the stagings where a memory node's rows lie; no two nodes' overlap.
absl::Span<BFloat16> StepWorker::RowStaging(Lane& lane, uint32_t node) {
  const AttentionDescriptor part = PartOf(lane.slice, node);
  const absl::Span<BFloat16> all = absl::MakeSpan(lane.row_staging);
  if (by_span()) {
    return all.subspan(all.size() / lane.nodes.size() * node, all.size() / lane.nodes.size());
  }
  const size_t elements = size_t{lane.nodes[node].rows.count} * part.qkv_width();
  if (by_head()) {
    const size_t head_width = part.qkv_width() / part.kv_heads;
    return all.subspan(
        size_t{HeadsOf(lane.slice, node).first} * head_width * options_.config.rows_max, elements);
  }
  return all.subspan(size_t{lane.nodes[node].rows.first} * part.qkv_width(), elements);
}

absl::Span<BFloat16> StepWorker::KvStaging(Lane& lane, uint32_t node) {
  const AttentionDescriptor part = PartOf(lane.slice, node);
  const size_t token_width = 2 * size_t{part.kv_width()};
  const size_t offset = size_t{HeadsOf(lane.slice, node).first} * 2 * part.head_dim *
                            options_.config.chunk_tokens_max +
                        lane.nodes[node].kv_rows.first * token_width;
  return absl::MakeSpan(lane.kv_staging)
      .subspan(offset, lane.nodes[node].kv_rows.count * token_width);
}

// Gathers q, k and v of the node's rows and heads, as its query window has them: one group of heads
// after the other, if chunks are these.
void StepWorker::StageRows(Lane& lane, uint32_t node) {
  const core::RowPieces& pieces = lane.nodes[node].pieces;
  BFloat16* const begin = RowStaging(lane, node).data();
  BFloat16* to = begin;
  for (uint32_t group = 0; group < pieces.head_groups(); ++group) {
    HeadRange heads = pieces.Heads(group);
    heads.first += HeadsOf(lane.slice, node).first;
    const uint32_t ahead = pieces.query_first && group == 0 ? pieces.RowsEnd(0) : 0;
    to = StageHeads(lane, node, heads, ahead, to);
  }
  lane.nodes[node].staged = {begin, static_cast<size_t>(to - begin)};
}

// Of these heads [q | k | v] of each row, q alone where its token lies elsewhere; of the first
// `ahead` rows, whose queries go first, q of all and then their [k | v]. Returns where they end.
BFloat16* StepWorker::StageHeads(Lane& lane, uint32_t node, HeadRange heads, uint32_t ahead,
                                 BFloat16* to) {
  const NodePart& to_node = lane.nodes[node];
  const AttentionDescriptor& shape = options_.config.layers[lane.slice];
  const AttentionDescriptor part = lamina::PartOf(shape, heads);
  const size_t first_kv = size_t{heads.first} * shape.head_dim;
  const auto qkv = executor_.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  BFloat16* kv = to + size_t{ahead} * part.q_width();  // Of the rows whose queries go first.
  for (uint32_t i = 0; i < to_node.rows.count; ++i) {
    const BFloat16* row = qkv.row(by_span() ? to_node.span_rows[i] : to_node.rows.first + i);
    to = i == ahead ? kv : to;
    to = std::copy_n(row + first_kv * shape.group(), part.q_width(), to);
    BFloat16*& next = i < ahead ? kv : to;
    if (!by_span() || i < to_node.own_rows) {
      const BFloat16* k = row + shape.q_width() + first_kv;
      next = std::copy_n(k, part.kv_width(), next);
      next = std::copy_n(k + shape.kv_width(), part.kv_width(), next);
    }
  }
  return ahead == to_node.rows.count ? kv : to;
}

// Gathers k and v of the chunks' rows, the same.
void StepWorker::StageChunks(Lane& lane, uint32_t node) {
  const AttentionDescriptor& shape = options_.config.layers[lane.slice];
  const AttentionDescriptor part = PartOf(lane.slice, node);
  const size_t first_kv = size_t{HeadsOf(lane.slice, node).first} * shape.head_dim;
  const auto qkv = executor_.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  BFloat16* to = KvStaging(lane, node).data();
  for (const Chunk& chunk : lane.chunks) {
    const Sequence& sequence = *sequences_.Find(chunk.plan.sequence);
    for (uint32_t i = 0; i < chunk.plan.tokens; ++i) {
      if (!HoldsToken(node, sequence, chunk.plan.first_token + i)) {
        continue;
      }
      const BFloat16* k = qkv.row(chunk.first_row + i) + shape.q_width() + first_kv;
      to = std::copy_n(k, part.kv_width(), to);
      to = std::copy_n(k + shape.kv_width(), part.kv_width(), to);
    }
  }
}

// Of the rows of the lane's slice that go to the node.
core::WindowHeader StepWorker::QueryHeader(const Lane& lane, uint32_t node) const {
  return {.lane = IndexOf(lane),
          .epoch = options_.config.epoch,
          .step = lane.plan.step,
          .layer = lane.slice,
          .rows = lane.nodes[node].rows.count,
          .kv_rows = lane.nodes[node].kv_rows.count,
          .sender = options_.node};
}

// What the outputs of the layer that come from it must have.
core::WindowHeader StepWorker::ReplyHeader(const Lane& lane, uint32_t layer, uint32_t node) const {
  return {.lane = IndexOf(lane),
          .epoch = options_.config.epoch,
          .step = lane.plan.step,
          .layer = layer,
          .rows = lane.nodes[node].rows.count,
          .sender = node};
}

void StepWorker::BeginSend(Lane& lane, uint32_t node) {
  NodePart& part = lane.nodes[node];
  part.pieces = PiecesTo(lane, lane.slice, node);
  lane.headers[node] = QueryHeader(lane, node);
  if (by_head() || by_span() || part.pieces.query_first || part.pieces.head_groups() > 1) {
    StageRows(lane, node);
  } else {
    const auto qkv = executor_.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
    part.staged = {qkv.row(part.rows.first), part.rows.count * qkv.cols};
  }
}

// How the rows of the layer that go to the node, and their outputs, are cut.
core::RowPieces StepWorker::PiecesTo(const Lane& lane, uint32_t layer, uint32_t node) const {
  return core::PiecesOf(lane.plan.chunking, lane.nodes[node].rows.count,
                        PartOf(layer, node).kv_heads);
}

// Of the first so many rows that go to the node, with so many KV heads.
size_t StepWorker::StagedElements(const Lane& lane, uint32_t node, uint32_t rows,
                                  uint32_t kv_heads) const {
  const AttentionDescriptor shape =
      lamina::PartOf(options_.config.layers[lane.slice], {.count = kv_heads});
  const uint32_t own = by_span() ? std::min(rows, lane.nodes[node].own_rows) : rows;
  return size_t{own} * shape.qkv_width() + size_t{rows - own} * shape.q_width();
}

// Where piece `piece` of what goes to the node ends, in elements of its staged rows.
size_t StepWorker::PieceEnd(const Lane& lane, uint32_t node, uint32_t piece) const {
  const core::RowPieces& pieces = lane.nodes[node].pieces;
  const bool queries = pieces.query_first && piece == 0;
  const uint32_t chunk = piece - (pieces.query_first && !queries ? 1 : 0);
  const HeadRange heads = pieces.Heads(chunk);
  const uint32_t rows = pieces.RowsEnd(chunk);
  return queries ? size_t{rows} * lamina::PartOf(PartOf(lane.slice, node), heads).q_width()
                 : StagedElements(lane, node, rows, heads.first + heads.count);
}

// The header goes before the first piece, k and v of prompt chunks behind the last one.
absl::Status StepWorker::SendPiece(Lane& lane, uint32_t node, uint32_t piece) {
  const NodePart& part = lane.nodes[node];
  const uint32_t pieces = part.pieces.count();
  const uint64_t unit = UnitValue(lane, lane.slice);
  const size_t window = layout_.QueryWindow(options_.node, IndexOf(lane), unit);
  const transport::SignalUpdate signal{.word = layout_.query_word(options_.node, IndexOf(lane)),
                                       .value = core::PieceValue(unit, piece, pieces)};
  control::LinkCounters& link = *memory_links_[node];
  const bool kv_follows = piece + 1 == pieces && part.kv_rows.count > 0;
  const core::WindowHeader& header = lane.headers[node];
  size_t bytes = 0;
  if (piece == 0) {
    LAMINA_RETURN_IF_ERROR(
        Put(*queries_[node], link, window, transport::AsBytes(&header, 1), nullptr));
    bytes += sizeof(header);
  }
  const size_t begin = piece == 0 ? 0 : PieceEnd(lane, node, piece - 1);
  const size_t end = PieceEnd(lane, node, piece);
  const auto rows = transport::AsBytes(part.staged.data() + begin, end - begin);
  const size_t offset = window + sizeof(header) + begin * sizeof(BFloat16);
  LAMINA_RETURN_IF_ERROR(Put(*queries_[node], link, offset, rows, kv_follows ? nullptr : &signal));
  bytes += rows.size();
  if (kv_follows) {
    StageChunks(lane, node);
    const absl::Span<const BFloat16> staged = KvStaging(lane, node);
    const auto kv = transport::AsBytes(staged.data(), staged.size());
    LAMINA_RETURN_IF_ERROR(Put(*queries_[node], link, offset + rows.size(), kv, &signal));
    bytes += kv.size();
  }
  CountSent(link, bytes,
            LapOf(lane, control::WorkPart::kSend, lane.slice, MemoryPeer(node), bytes));
  return absl::OkStatus();
}

absl::Status StepWorker::Put(transport::RemoteRegion& peer, control::LinkCounters& link,
                             size_t offset, absl::Span<const std::byte> source,
                             const transport::SignalUpdate* signal) {
  absl::Status put =
      transport::PutAll(transport_, peer, offset, source, signal,
                        {.deadline = RealClock().Now() + options_.peer_deadline, .abort = &abort_});
  if (!put.ok() && !absl::IsCancelled(put)) {
    control::AddTo(link.failures, 1);
  }
  return put;
}

// Takes everything that has arrived; lanes that wait for nothing more become ready, or idle.
absl::Status StepWorker::TakeArrivals(std::string& blamed) {
  for (Lane& lane : lanes_) {
    if (lane.phase == Phase::kElsewhere) {
      const absl::StatusOr<bool> taken = TakeTokens(lane);
      if (!taken.ok()) {
        blamed = options_.config.compute_nodes[TailNodeOf(lane)];
        return taken.status();
      }
    }
    if (lane.phase == Phase::kAhead) {
      LAMINA_ASSIGN_OR_RETURN(const bool got_on, HasGotOn(lane, blamed));
      if (got_on) {
        SetReady(lane);
      }
    }
    if (lane.phase != Phase::kAway) {
      continue;
    }
    if (lane.reducing) {
      LAMINA_ASSIGN_OR_RETURN(const bool summed, TakeParts(lane, blamed));
      if (summed) {
        lane.reducing = false;
        ++lane.op;
        SetReady(lane);
      }
      continue;
    }
    LAMINA_ASSIGN_OR_RETURN(const bool replied, TakeReplies(lane, blamed));
    const absl::StatusOr<bool> context = TakeContext(lane);
    if (!context.ok()) {
      blamed = options_.config.compute_nodes[NodeOf(lane, lane.slice - 1)];
      return context.status();
    }
    if (replied && *context) {
      executor_.AttentionToDevice(lane.slice - 1, 0, lane.decode_rows, lane.buffers);
      SetReady(lane);
    }
  }
  return absl::OkStatus();
}

// Whether no reply of the lane is pending any more.
absl::StatusOr<bool> StepWorker::TakeReplies(Lane& lane, std::string& blamed) {
  bool pending = false;
  for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
    if (!lane.nodes[node].pending) {
      continue;
    }
    if (region_.LoadSignal(layout_.reply_word(node, IndexOf(lane))) <
        UnitValue(lane, lane.slice - 1)) {
      pending = true;
      continue;
    }
    const absl::Status taken = TakeReply(lane, node);
    if (!taken.ok()) {
      blamed = options_.config.memory_nodes[node];
      return taken;
    }
    lane.nodes[node].pending = false;
  }
  if (!pending && lane.partials_due) {
    lane.partials_due = false;
    MergePartials(lane);
  }
  return !pending;
}

absl::Status StepWorker::CheckWindow(const core::WindowHeader& header,
                                     const core::WindowHeader& expected,
                                     const std::string& sender) {
  absl::Status checked = core::CheckHeader(header, expected);
  if (!checked.ok()) {
    counters_.refusals.Count(control::RefusalOf(header, expected));
    LogWarning("refused a window of ", sender, " ", checked.message());
  }
  return checked;
}

absl::Status StepWorker::TakeReply(Lane& lane, uint32_t node) {
  const uint32_t layer = lane.slice - 1;
  const RowRange& rows = lane.nodes[node].rows;
  const std::byte* window =
      region_.bytes().data() + layout_.ReplyWindow(node, IndexOf(lane), UnitValue(lane, layer));
  core::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  LAMINA_RETURN_IF_ERROR(
      CheckWindow(header, ReplyHeader(lane, layer, node), options_.config.memory_nodes[node]));
  const auto out = executor_.AttentionRows(layer, lane.positions.size(), lane.buffers);
  if (by_span()) {  // Merged when all nodes have answered.
    const size_t partials = lane.nodes[node].partials * PartialBytes(layer);
    control::AddTo(counters_.bytes_received, sizeof(header) + partials);
    LapOf(lane, control::WorkPart::kTake, layer, MemoryPeer(node), partials);
    return absl::OkStatus();
  }
  const AttentionDescriptor part = PartOf(layer, node);
  const size_t bytes = size_t{rows.count} * part.q_width() * sizeof(BFloat16);
  const core::RowPieces pieces = PiecesTo(lane, layer, node);
  if (part.q_width() == out.cols && pieces.head_groups() == 1) {
    std::memcpy(out.row(rows.first), window + sizeof(header), bytes);
  } else {
    const auto* from = reinterpret_cast<const BFloat16*>(window + sizeof(header));
    for (uint32_t group = 0; group < pieces.head_groups(); ++group) {
      const HeadRange heads = pieces.Heads(group);
      const size_t width = lamina::PartOf(part, heads).q_width();
      const size_t first =
          size_t{HeadsOf(layer, node).first + heads.first} * part.group() * part.head_dim;
      for (uint32_t i = 0; i < rows.count; ++i, from += width) {
        std::copy_n(from, width, out.row(rows.first + i) + first);
      }
    }
  }
  control::AddTo(counters_.bytes_received, sizeof(header) + bytes);
  LapOf(lane, control::WorkPart::kTake, layer, MemoryPeer(node), bytes);
  return absl::OkStatus();
}

// The thread has stood still for `peer`, or for one of several of which nothing came.
void StepWorker::CountWait(uint8_t peer) {
  const bool memory = peer >= control::TraceEvent::kMemoryPeer;
  const Nanos waited =
      Lap({.part = memory ? control::WorkPart::kWaitAttention : control::WorkPart::kWaitReplica,
           .peer = peer});
  control::LinkCounters& link =
      memory ? *memory_links_[peer - control::TraceEvent::kMemoryPeer] : *compute_links_[peer];
  control::AddTo(link.waited_nanos, static_cast<uint64_t>(waited));
}

absl::Status StepWorker::NothingFrom(const std::string& peer) const {
  return absl::DeadlineExceededError(
      absl::StrCat("nothing from ", peer, " for ", ToSeconds(options_.peer_deadline), " s"));
}

// A replica is late because a memory node is: so memory nodes are given up on first.
absl::Status StepWorker::WaitForArrivals(std::string& blamed) {
  conditions_.clear();
  awaited_.clear();
  Nanos deadline = INT64_MAX;
  bool any_idle = false;
  const auto expect = [&](uint8_t peer, uint32_t word, uint64_t value, Nanos until) {
    conditions_.push_back({.word = word, .at_least = value});
    awaited_.push_back(peer);
    if (until < deadline) {
      deadline = until;
      blamed = NameOfPeer(options_.config, peer);
    }
  };
  for (Lane& lane : lanes_) {
    const uint32_t index = IndexOf(lane);
    any_idle =
        any_idle || (lane.phase == Phase::kIdle && schedule_.TakesPart(options_.node, index));
    if (lane.phase == Phase::kElsewhere) {
      const uint32_t tail = TailNodeOf(lane);
      expect(static_cast<uint8_t>(tail), layout_.token_word(tail, index), lane.plan.step,
             lane.away_since + 2 * options_.peer_deadline);
    }
    if (lane.phase != Phase::kAway) {
      continue;
    }
    if (lane.reducing) {
      const uint32_t shard = NextMissingPart(lane);
      expect(static_cast<uint8_t>(shard_nodes_[shard]), layout_.part_word(shard, index),
             lane.reductions, lane.away_since + 2 * options_.peer_deadline);
      continue;
    }
    const uint64_t value = UnitValue(lane, lane.slice - 1);
    if (lane.context_pending) {
      const uint32_t before = NodeOf(lane, lane.slice - 1);
      expect(static_cast<uint8_t>(before), layout_.context_word(before, index), value,
             lane.away_since + 2 * options_.peer_deadline);
    }
    const Nanos until = lane.away_since + (lane.context_pending ? 2 : 1) * options_.peer_deadline;
    for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
      if (lane.nodes[node].pending) {
        expect(MemoryPeer(node), layout_.reply_word(node, index), value, until);
      }
    }
  }
  const Nanos poll = any_idle ? RealClock().Now() + kPlanPoll : INT64_MAX;
  const absl::StatusOr<size_t> ready = transport_.Wait(
      region_, conditions_, {.deadline = std::min(deadline, poll), .abort = &abort_});
  if (!awaited_.empty()) {
    CountWait(awaited_[ready.ok() ? *ready : 0]);
  }
  if (absl::IsDeadlineExceeded(ready.status()) && RealClock().Now() < deadline) {
    blamed.clear();
    return absl::OkStatus();
  }
  if (absl::IsDeadlineExceeded(ready.status())) {
    return NothingFrom(blamed);
  }
  if (ready.ok()) {
    blamed.clear();
  }
  return ready.status();
}

}  // namespace lamina::compute_node
