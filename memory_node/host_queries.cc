// SPDX-License-Identifier: Apache-2.0
#include "memory_node/host_queries.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/clock.h"
#include "common/status_macros.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "kernels/attention.h"
#include "memory_node/step_rows.h"
#include "plan/row_pieces.h"
#include "transport/put_all.h"

namespace lamina::memory_node {

HostQueries::HostQueries(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed,
                         UnitMeter& meter, QueryParts& parts, ThreadPool& pool)
    : epoch_(epoch),
      checks_(checks),
      feed_(feed),
      meter_(meter),
      parts_(parts),
      rows_(RowsInHostMemory(epoch)),
      attention_(epoch.layers, epoch.config.span_tokens, epoch.device, pool, epoch.counters) {
  attention_.Reserve(epoch.config.rows_max,
                     epoch.config.rows_max * std::max(1u, epoch.layout.shape().spans_max));
  if (epoch.int8_device != nullptr) {
    int8_attention_.emplace(epoch.layers, epoch.config.span_tokens, *epoch.int8_device, pool,
                            epoch.counters);
    int8_attention_->Reserve(epoch.config.rows_max, epoch.config.rows_max);
  }
  awaited_.reserve(epoch.layout.query_words());
}

void HostQueries::SetRows(std::unique_ptr<QueryRows> rows) {
  rows_ = std::move(rows);
  absl::Span<std::byte> replies = rows_->replies();
  for (std::vector<Part>& lane : parts_.lanes()) {
    for (Part& part : lane) {
      part.device_reply = replies.empty() ? nullptr : replies.data();
      replies.remove_prefix(replies.empty() ? 0 : epoch_.layout.reply_window_bytes());
    }
  }
}

absl::Status HostQueries::Open() {
  transport::Transport& transport = epoch_.transport;
  for (const std::vector<Part>& lane : parts_.lanes()) {
    for (const Part& part : lane) {
      LAMINA_RETURN_IF_ERROR(control::TransportFault(
          transport.RegisterSource(part.reply, transport::MemoryKind::kHost)));
    }
  }
  return rows_->replies().empty() ? absl::OkStatus()
                                  : control::TransportFault(transport.RegisterSource(
                                        rows_->replies(), transport::MemoryKind::kDevice));
}

absl::StatusOr<bool> HostQueries::TakeStep(Lane& lane) {
  for (Part& part : parts_.of(lane)) {
    part.layer = 0;
  }
  if (lane.chunking.query_first && !epoch_.by_span()) {
    LAMINA_ASSIGN_OR_RETURN(const size_t spans, CutAtFullBlocks(feed_.tables(), lane));
    for (Part& part : parts_.of(lane)) {
      AttentionOf(lane).ReserveCuts(lane, spans, part.closed_partials);
    }
  }
  return true;
}

void HostQueries::AppendAwaited(std::vector<transport::SignalCondition>& conditions) {
  const uint32_t words = epoch_.layout.query_words();
  awaited_.clear();
  for (uint32_t i = 0; i < words; ++i) {
    const uint32_t word = (first_word_ + i) % words;
    const Lane& lane = feed_.lanes()[word % epoch_.config.lanes];
    const Part* part = parts_.Find(word / epoch_.config.lanes, lane.index);
    const bool anothers = lane.server != nullptr && lane.server != this;
    if (!anothers && !feed_.Awaits(lane)) {
      awaited_.push_back(word);
      conditions.push_back({.word = word, .at_least = part == nullptr ? 1 : part->value + 1});
    }
  }
}

absl::Status HostQueries::Serve(size_t condition) {
  const uint32_t word = awaited_[condition];
  first_word_ = (word + 1) % epoch_.layout.query_words();
  const uint32_t sender = word / epoch_.config.lanes;
  Lane& lane = feed_.lanes()[word % epoch_.config.lanes];
  Part* const part = parts_.Find(sender, lane.index);
  const bool waited_for_plan = part != nullptr && part->waited_for_plan;
  const Nanos waited = meter_.EndInterval(
      waited_for_plan ? telemetry::WorkKind::kWaitPlan : telemetry::WorkKind::kWaitQuery, lane,
      part == nullptr ? 1 : part->value + 1, sender);
  if (!waited_for_plan) {
    telemetry::AddTo(meter_.link(sender).waited_nanos, static_cast<uint64_t>(waited));
  }
  return control::Blame(part == nullptr
                            ? checks_.NoPart(sender, lane)
                            : ServeUnit({.sender = sender, .lane = lane, .part = *part}),
                        epoch_.NameOf(sender));
}

absl::Status HostQueries::ServeUnit(const From& from) {
  Part& part = from.part;
  const uint32_t word = epoch_.layout.query_word(from.sender, from.lane.index);
  uint64_t value = epoch_.region.LoadSignal(word);
  const Nanos start = RealClock().Now();
  if (part.pieces_done == 0) {
    LAMINA_ASSIGN_OR_RETURN(const bool begun, BeginUnit(from, value));
    if (!begun) {
      return absl::OkStatus();
    }
  } else if (plan::UnitOf(value) != plan::UnitOf(part.value)) {
    return checks_.LeftUnit(from.sender, from.lane, value);
  }
  const uint64_t last = plan::UnitOf(value) * plan::kSubBatchesMax;
  const uint32_t pieces = part.query.pieces.count();
  while (part.pieces_done < plan::PiecesHere(value, pieces)) {
    epoch_.counters.beat.Raise();
    LAMINA_RETURN_IF_ERROR(ServePiece(from, last));
    if (part.pieces_done == pieces) {
      part.unit_nanos += RealClock().Now() - start;
      return EndUnit(from);
    }
    epoch_.transport.Progress();  // What has come of the others, and outputs that are still here.
    value = epoch_.region.LoadSignal(word);
  }
  part.unit_nanos += RealClock().Now() - start;
  return absl::OkStatus();
}

// Checks the header against the step that the plan announced. One that comes with the rows is
// checked while they attend, unless the plan is yet to come: before it is waited for, since it
// may never come.
absl::StatusOr<bool> HostQueries::BeginUnit(const From& from, uint64_t value) {
  const auto& [sender, lane, part] = from;
  const uint32_t layer = epoch_.layout.LayerOf(value);
  plan::WindowHeader header;
  part.header_due = rows_->header_comes_with_rows() && lane.step != 0;
  if (!part.header_due) {
    const size_t window = epoch_.layout.QueryWindow(sender, lane.index, value);
    const absl::StatusOr<plan::WindowHeader> read = rows_->ReadHeader(window);
    LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(read.status()));
    header = *read;
    LAMINA_RETURN_IF_ERROR(checks_.BySignal(header, sender, lane, value));
  }
  if (lane.step == 0) {
    LAMINA_ASSIGN_OR_RETURN(const bool planned, feed_.Await(lane, sender, value));
    part.waited_for_plan = !planned;
    if (!planned) {
      return false;
    }
    meter_.EndInterval(telemetry::WorkKind::kWaitPlan, lane, value, sender);
    if (lane.server != this) {
      return false;  // The plan has made it another source's.
    }
  }
  part.waited_for_plan = false;
  LAMINA_RETURN_IF_ERROR(checks_.Turn(sender, part.shard, lane, layer));
  Shape(from, layer);
  if (!part.header_due) {
    LAMINA_RETURN_IF_ERROR(checks_.ByPlan(header, sender, lane, part.layer));
  }
  return true;
}

void HostQueries::Shape(const From& from, uint32_t layer) {
  const Lane& lane = from.lane;
  const AttentionDescriptor shape = PartOf(epoch_.layers[layer], from.part.heads);
  const plan::RowPieces pieces =
      plan::PiecesOf(lane.chunking, static_cast<uint32_t>(lane.rows.size()), shape.kv_heads);
  from.part.query = {.part = shape,
                     .pieces = pieces,
                     .own_rows = lane.own_rows,
                     .prompt_tokens = lane.chunk_tokens,
                     .activation_width = lane.activation_width > 0 ? epoch_.activation_width : 0};
  from.part.outputs = {
      .part = shape,
      .pieces = pieces,
      .partial_width = epoch_.by_span() ? static_cast<uint32_t>(kernels::PartialWidth(shape)) : 0,
      .partials = lane.partials};
  from.part.unit_nanos = 0;
}

// The next piece of the unit whose last signal value is `last`: a chunk of rows, or the queries of
// the first one.
absl::Status HostQueries::ServePiece(const From& from, uint64_t last) {
  const auto& [sender, lane, part] = from;
  const plan::RowPieces& pieces = part.query.pieces;
  const bool queries = pieces.query_first && part.pieces_done == 0;
  const uint32_t index = part.pieces_done - (pieces.query_first && !queries ? 1 : 0);
  const uint64_t value = plan::PieceValue(last, part.pieces_done, pieces.count());
  const SubBatch chunk = ChunkOf(from, index, value);
  LAMINA_RETURN_IF_ERROR(
      epoch_.OwnFault(rows_->Land(epoch_.layout.QueryWindow(sender, lane.index, value),
                                  part.header_due ? 0 : chunk.queries.ByteOf(chunk.in.begin()))));
  if (!queries) {
    if (before_store_ != nullptr) {
      LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(before_store_(lane, chunk.layer)));
    }
    LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(AttentionOf(lane).Store(lane, chunk)));
    meter_.EndInterval(telemetry::WorkKind::kStore, lane, value, sender);
  }
  const absl::StatusOr<uint64_t> read =
      AttentionOf(lane).Attend(chunk, queries             ? Tokens::kClosed
                                      : chunk.query_first ? Tokens::kOpen
                                                          : Tokens::kAll);
  LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(read.status()));
  LAMINA_RETURN_IF_ERROR(Settle(from, value));
  meter_.EndInterval(telemetry::WorkKind::kAttend, lane, value, sender, *read);
  if (!queries) {
    LAMINA_RETURN_IF_ERROR(Reply(from, chunk));
  }
  part.value = value;
  ++part.pieces_done;
  return absl::OkStatus();
}

SubBatch HostQueries::ChunkOf(const From& from, uint32_t index, uint64_t value) const {
  const auto& [sender, lane, part] = from;
  const plan::RowPieces& pieces = part.query.pieces;
  const std::byte* const window =
      epoch_.region.bytes().data() + epoch_.layout.QueryWindow(sender, lane.index, value);
  const plan::QueryWindowReader queries(part.query, window);
  const plan::QueryChunk in = queries.Chunk(index);
  const bool query_first = pieces.query_first && index == 0;
  // Outputs that the processor merges are written by it.
  const bool on_device = part.device_reply != nullptr && !query_first && !epoch_.by_span();
  const plan::ReplyWindowWriter outputs(part.outputs,
                                        on_device ? part.device_reply : part.reply.data());
  return {.value = value,
          .layer = epoch_.layout.LayerOf(value),
          .rows = absl::MakeConstSpan(lane.rows).subspan(in.first_row(),
                                                         in.rows_end() - in.first_row()),
          .heads = {.first = part.heads.first + in.heads().first, .count = in.heads().count},
          .all_heads = part.heads,
          .first = index == 0,
          .last = part.pieces_done + 1 == pieces.count(),
          .query_first = query_first,
          .on_device = on_device,
          .queries = queries,
          .in = in,
          .outputs = outputs,
          .out = outputs.Chunk(index),
          .closed_partials = part.closed_partials.data()};
}

// Before a piece is answered: the device is done with its rows, and the header is as it should be.
absl::Status HostQueries::Settle(const From& from, uint64_t value) {
  const auto& [sender, lane, part] = from;
  LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(rows_->Settle()));
  if (!part.header_due) {
    return absl::OkStatus();
  }
  part.header_due = false;
  const plan::WindowHeader header = rows_->settled_header();
  LAMINA_RETURN_IF_ERROR(checks_.BySignal(header, sender, lane, value));
  return checks_.ByPlan(header, sender, lane, part.layer);
}

// To the replica that runs the next slice.
absl::Status HostQueries::Reply(const From& from, const SubBatch& chunk) {
  const auto& [sender, lane, part] = from;
  const auto partial = [&lane = from.lane](uint32_t row) {
    return row < lane.rows.size() ? lane.rows[row].first_partial : lane.partials;
  };
  const plan::ByteRange outputs =
      epoch_.by_span()
          ? chunk.out.Partials(partial(chunk.out.first_row()), partial(chunk.out.rows_end()))
          : chunk.out.Rows();
  const uint32_t runner = epoch_.RunnerOf(part.shard, lane, chunk.layer + 1);
  telemetry::LinkCounters& link = meter_.link(runner);
  if (absl::Status sent = PutOutputs(from, chunk, outputs, *epoch_.peers.compute[runner]);
      !sent.ok()) {
    telemetry::AddTo(link.failures, absl::IsCancelled(sent) ? 0 : 1);
    return control::Blame(std::move(sent), epoch_.NameOf(runner));
  }
  epoch_.transport
      .Progress();  // Much of it leaves before another lane's attention keeps the thread.
  const size_t bytes = outputs.size() + (chunk.first ? sizeof(plan::WindowHeader) : 0);
  telemetry::AddTo(epoch_.counters.bytes_sent, bytes);
  telemetry::AddTo(link.bytes, bytes);
  telemetry::AddTo(link.puts, 1);
  telemetry::AddTo(link.nanos, static_cast<uint64_t>(meter_.EndInterval(
                                   telemetry::WorkKind::kReply, lane, chunk.value, sender, bytes)));
  return absl::OkStatus();
}

// The header goes before the first chunk.
absl::Status HostQueries::PutOutputs(const From& from, const SubBatch& chunk,
                                     plan::ByteRange outputs, transport::RemoteRegion& to) {
  const auto& [sender, lane, part] = from;
  const plan::WindowLayout& layout = epoch_.layout;
  if (chunk.first) {
    const plan::WindowHeader header{.lane = lane.index,
                                    .epoch = epoch_.config.epoch,
                                    .step = lane.step,
                                    .layer = chunk.layer,
                                    .rows = static_cast<uint32_t>(lane.rows.size()),
                                    .sender = epoch_.node};
    std::memcpy(part.reply.data(), &header, sizeof(header));
  }
  const transport::SignalUpdate signal{.word = layout.reply_word(epoch_.node, lane.index),
                                       .value = chunk.value};
  const transport::WaitOptions wait{.deadline = RealClock().Now() + epoch_.peer_deadline,
                                    .abort = &epoch_.abort,
                                    .beat = &epoch_.counters.beat};
  size_t sent = 0;
  const size_t window = layout.ReplyWindow(epoch_.node, lane.index, chunk.value);
  const bool from_device = chunk.on_device && !chunk.rows.empty();
  if (from_device) {
    // The header by itself: the signal of what comes next stands for it too.
    const size_t header_bytes = chunk.first ? sizeof(plan::WindowHeader) : 0;
    LAMINA_RETURN_IF_ERROR(transport::PutAll(epoch_.transport, to, window,
                                             absl::MakeConstSpan(part.reply).first(header_bytes),
                                             nullptr, wait));
    sent += header_bytes;
  } else if (chunk.first) {
    outputs.begin = 0;
  }
  const std::byte* const source = from_device ? part.device_reply : part.reply.data();
  LAMINA_RETURN_IF_ERROR(transport::PutAll(epoch_.transport, to, window + outputs.begin,
                                           {source + outputs.begin, outputs.size()}, &signal,
                                           wait));
  epoch_.counters.bus.Count(BusKind::kRows, sent + outputs.size());
  return absl::OkStatus();
}

absl::Status HostQueries::EndUnit(const From& from) {
  const auto& [sender, lane, part] = from;
  const uint64_t value = part.value;
  part.pieces_done = 0;
  telemetry::AddTo(epoch_.counters.bytes_received, plan::QueryWindow(part.query).bytes());
  telemetry::AddTo(epoch_.counters.units, 1);
  meter_.NoteUnit(lane, part.layer, part.unit_nanos);
  ++part.layer;
  const std::vector<Part>& parts = parts_.of(lane);
  const bool ends = std::all_of(parts.begin(), parts.end(), [&](const Part& p) {
    return p.layer == epoch_.layout.layer_count();
  });
  // Else the tables are still those of the others' step. Plans of later ones may have been sent,
  // and have something read back meanwhile.
  if (!ends && !feed_.has_plans()) {
    return absl::OkStatus();
  }
  const absl::Status taken = ends ? feed_.EndStep(lane) : feed_.TakePlans();
  meter_.EndInterval(telemetry::WorkKind::kTables, lane, value, sender);
  return taken;
}

}  // namespace lamina::memory_node
