// SPDX-License-Identifier: Apache-2.0
//
// One attention of a lane: chunks of rows come in, K and V go into their slots, outputs leave.

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "memory_node/attention_worker.h"
#include "plan/row_pieces.h"
#include "transport/put_all.h"

namespace lamina::memory_node {

// Serves all pieces of the lane's unit that are here, of one shard's part of it.
absl::Status AttentionWorker::ServeUnit(uint32_t replica, uint32_t lane_index) {
  Part* const found = PartFor(replica, lane_index);
  if (found == nullptr) {
    counters_.refusals.Count(telemetry::Refusal::kSchedule);
    return absl::InternalError(absl::StrCat("a window of lane ", lane_index, " comes from compute ",
                                            "node ", replica,
                                            ", which has no part in it, or no heads here"));
  }
  Part& part = *found;
  const uint32_t word = layout_.query_word(replica, lane_index);
  uint64_t value = region_.LoadSignal(word);
  const Nanos start = RealClock().Now();
  if (part.pieces_done == 0) {
    LAMINA_RETURN_IF_ERROR(BeginUnit(replica, lane_index, part, value));
    if (lanes_[lane_index].on_device) {
      return absl::OkStatus();  // The plan has made it the device's.
    }
  }
  const uint64_t last = plan::UnitOf(value) * plan::kRowChunksMax;
  if (part.pieces_done > 0 && plan::UnitOf(value) != plan::UnitOf(part.value)) {
    counters_.refusals.Count(telemetry::Refusal::kSchedule);
    return absl::InternalError(absl::StrCat(
        "compute node ", replica, " went on to step ", layout_.StepOf(value), " layer ",
        layout_.LayerOf(value), " of lane ", lane_index, " without the end of the unit before"));
  }
  while (part.pieces_done < plan::PiecesHere(value, part.pieces.count())) {
    counters_.beat.Raise();
    LAMINA_RETURN_IF_ERROR(ServePiece(replica, lane_index, part, last));
    if (part.pieces_done == part.pieces.count()) {
      part.unit_nanos += RealClock().Now() - start;
      return EndUnit(replica, lane_index, part);
    }
    transport_.Progress();  // What has come of the others, and outputs that are still here.
    value = region_.LoadSignal(word);
  }
  part.unit_nanos += RealClock().Now() - start;
  return absl::OkStatus();
}

// Checks the header against the step that the plan announced. One in the device's memory is checked
// beside the first rows' attention, unless the plan is yet to come: a trip for it alone would cost
// as much as that of the outputs.
absl::Status AttentionWorker::BeginUnit(uint32_t replica, uint32_t lane_index, Part& part,
                                        uint64_t value) {
  Lane& lane = lanes_[lane_index];
  const uint32_t layer = layout_.LayerOf(value);
  plan::WindowHeader header;
  part.header_due = rows_on_device_ && lane.step != 0;
  if (!part.header_due) {
    LAMINA_ASSIGN_OR_RETURN(header, ReadHeader(replica, lane_index, value));
    // Before a plan is waited for that may never come.
    LAMINA_RETURN_IF_ERROR(CheckBySignal(header, replica, lane_index, value));
  }
  if (lane.step == 0) {
    LAMINA_RETURN_IF_ERROR(AwaitPlan(lane));
    Lap(telemetry::WorkPart::kWaitPlan, lane_index, value, replica);
    if (lane.on_device) {
      return absl::OkStatus();
    }
  }
  if (const uint32_t turn =
          schedules_[part.shard].NodeOf(lane_index, lane.step, layer, lane.pinned);
      turn != replica) {
    counters_.refusals.Count(telemetry::Refusal::kSchedule);
    return absl::InternalError(absl::StrCat("a window of lane ", lane_index, " step ", lane.step,
                                            " layer ", layer, " comes from compute node ", replica,
                                            " where the schedule says ", turn));
  }
  part.pieces = plan::PiecesOf(lane.chunking, static_cast<uint32_t>(lane.rows.size()),
                               PartOf(layers_[layer], part.heads).kv_heads);
  part.query_bytes = sizeof(header);
  part.reply_bytes = sizeof(header);
  part.unit_nanos = 0;
  return part.header_due ? absl::OkStatus() : CheckByPlan(header, replica, lane_index, value);
}

absl::Status AttentionWorker::CheckBySignal(const plan::WindowHeader& header, uint32_t replica,
                                            uint32_t lane_index, uint64_t value) {
  return CheckWindow(header, {.lane = lane_index,
                              .epoch = options_.config.epoch,
                              .step = layout_.StepOf(value),
                              .layer = layout_.LayerOf(value),
                              .rows = header.rows,
                              .kv_rows = header.kv_rows,
                              .sender = replica});
}

absl::Status AttentionWorker::CheckByPlan(const plan::WindowHeader& header, uint32_t replica,
                                          uint32_t lane_index, uint64_t value) {
  const Lane& lane = lanes_[lane_index];
  return CheckWindow(header, {.lane = lane_index,
                              .epoch = options_.config.epoch,
                              .step = lane.step,
                              .layer = layout_.LayerOf(value),
                              .rows = static_cast<uint32_t>(lane.rows.size()),
                              .kv_rows = lane.chunk_tokens,
                              .sender = replica});
}

// The next piece of the unit whose last signal value is `last`: a chunk of rows, or the queries of
// the first one.
absl::Status AttentionWorker::ServePiece(uint32_t replica, uint32_t lane_index, Part& part,
                                         uint64_t last) {
  const Lane& lane = lanes_[lane_index];
  const plan::RowPieces& pieces = part.pieces;
  const bool queries = pieces.query_first && part.pieces_done == 0;
  const uint32_t index = part.pieces_done - (pieces.query_first && !queries ? 1 : 0);
  const uint32_t first = pieces.FirstRow(index);
  HeadRange heads = pieces.Heads(index);
  heads.first += part.heads.first;
  const uint64_t value = plan::PieceValue(last, part.pieces_done, pieces.count());
  if (rows_on_device_) {
    LAMINA_RETURN_IF_ERROR(LandWindow(replica, lane_index, part, value));
  }
  const RowChunk chunk{
      .value = value,
      .layer = layout_.LayerOf(value),
      .rows = absl::MakeConstSpan(lane.rows).subspan(first, pieces.RowsEnd(index) - first),
      .heads = heads,
      .first = index == 0,
      .last = part.pieces_done + 1 == pieces.count(),
      .query_first = pieces.query_first && index == 0,
      .window = region_.bytes().data() + layout_.QueryWindow(replica, lane_index, value) +
                part.query_bytes};
  if (!queries) {
    LAMINA_ASSIGN_OR_RETURN(const size_t stored, attention_.Store(lane, part, chunk));
    part.query_bytes += stored;
    Lap(telemetry::WorkPart::kStore, lane_index, value, replica);
  }
  LAMINA_ASSIGN_OR_RETURN(const uint64_t read,
                          attention_.Attend(part, chunk,
                                            queries             ? Tokens::kClosed
                                            : chunk.query_first ? Tokens::kOpen
                                                                : Tokens::kAll));
  if (rows_on_device_) {
    LAMINA_RETURN_IF_ERROR(SettleWindow(replica, lane_index, part, value));
  }
  Lap(telemetry::WorkPart::kAttend, lane_index, value, replica, read);
  if (!queries) {
    LAMINA_RETURN_IF_ERROR(Reply(lane_index, part, chunk));
  }
  part.value = value;
  ++part.pieces_done;
  return absl::OkStatus();
}

absl::Status AttentionWorker::EndUnit(uint32_t replica, uint32_t lane_index, Part& part) {
  Lane& lane = lanes_[lane_index];
  part.pieces_done = 0;
  telemetry::AddTo(counters_.bytes_received, part.query_bytes);
  telemetry::AddTo(counters_.units, 1);
  NoteUnit(lane, part);
  if (layout_.LayerOf(part.value) + 1 < layout_.layer_count()) {
    return absl::OkStatus();
  }
  part.done = true;
  if (!std::all_of(lane.parts.begin(), lane.parts.end(), [](const Part& p) { return p.done; })) {
    return absl::OkStatus();  // The tables are still those of the others' step.
  }
  lane.step = 0;
  const absl::Status advanced = Advance(lane);
  Lap(telemetry::WorkPart::kTables, lane_index, part.value, replica);
  return advanced;
}

// To the replica that runs the next slice; the header goes before the first chunk.
absl::Status AttentionWorker::Reply(uint32_t lane_index, Part& part, const RowChunk& chunk) {
  const Lane& lane = lanes_[lane_index];
  const uint32_t layer = layout_.LayerOf(chunk.value);
  const AttentionDescriptor shape = attention_.ShapeOf(chunk);
  const size_t partial_bytes = shape.query_heads * kernels::PartialWidth(shape) * sizeof(float);
  size_t begin = part.reply_bytes;
  for (const Row& row : chunk.rows) {
    part.reply_bytes += options_.config.partition == Partition::kTokenRange
                            ? row.partials * partial_bytes
                            : shape.q_width() * sizeof(BFloat16);
  }
  if (chunk.first) {
    const plan::WindowHeader header{.lane = lane_index,
                                    .epoch = options_.config.epoch,
                                    .step = layout_.StepOf(chunk.value),
                                    .layer = layer,
                                    .rows = static_cast<uint32_t>(lane.rows.size()),
                                    .sender = options_.node};
    std::memcpy(part.reply.data(), &header, sizeof(header));
  }
  const bool from_device = !chunk.rows.empty() && attention_.RepliesFromDevice(part, chunk);
  const size_t header_bytes = chunk.first ? begin : 0;
  const size_t bytes = part.reply_bytes - begin + header_bytes;
  const transport::SignalUpdate signal{.word = layout_.reply_word(options_.node, lane_index),
                                       .value = chunk.value};
  const transport::WaitOptions wait{.deadline = RealClock().Now() + options_.peer_deadline,
                                    .abort = &abort_,
                                    .beat = &counters_.beat};
  const uint32_t replica =
      schedules_[part.shard].NodeOf(lane_index, lane.step, layer + 1, lane.pinned);
  const size_t window = layout_.ReplyWindow(options_.node, lane_index, chunk.value);
  absl::Status sent;
  if (from_device) {
    // The header by itself: the signal of what comes next stands for it too.
    sent = transport::PutAll(transport_, *replies_[replica], window,
                             absl::MakeConstSpan(part.reply).first(header_bytes), nullptr, wait);
  } else {
    begin -= header_bytes;
  }
  if (sent.ok()) {
    const std::byte* const source = from_device ? part.device_reply : part.reply.data();
    sent = transport::PutAll(transport_, *replies_[replica], window + begin,
                             {source + begin, part.reply_bytes - begin}, &signal, wait);
  }
  telemetry::LinkCounters& link = *links_[replica];
  if (!sent.ok()) {
    telemetry::AddTo(link.failures, absl::IsCancelled(sent) ? 0 : 1);
    return sent;
  }
  transport_.Progress();  // Much of it leaves before another lane's attention keeps the thread.
  telemetry::AddTo(counters_.bytes_sent, bytes);
  telemetry::AddTo(link.bytes, bytes);
  telemetry::AddTo(link.puts, 1);
  telemetry::AddTo(link.nanos, static_cast<uint64_t>(Lap(telemetry::WorkPart::kReply, lane_index,
                                                         chunk.value, replica, bytes)));
  return absl::OkStatus();
}

}  // namespace lamina::memory_node
