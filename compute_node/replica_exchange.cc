// SPDX-License-Identifier: Apache-2.0
#include "compute_node/replica_exchange.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/blame.h"
#include "transport/put_all.h"

namespace lamina::compute_node {

ReplicaExchange::ReplicaExchange(const WorkerContext& context, SequenceTable& sequences,
                                 uint32_t vocabulary)
    : context_(context),
      sequences_(sequences),
      vocabulary_(vocabulary),
      lanes_(context.config.lanes) {
  if (context.config.compute_nodes.size() == 1) {
    return;
  }
  for (uint32_t lane = 0; lane < context.config.lanes; ++lane) {
    if (context.schedule.Runs(context.node, lane)) {
      lanes_[lane].token_messages.assign(
          context.config.plan_ahead,
          std::vector<std::byte>(sizeof(plan::WindowHeader) +
                                 context.layout.token_rows_max() * sizeof(plan::TokenEntry)));
    }
  }
}

absl::Status ReplicaExchange::RegisterSources() {
  for (const LaneState& state : lanes_) {
    if (state.token_messages.empty()) {
      continue;
    }
    LAMINA_RETURN_IF_ERROR(context_.transport.RegisterSource(
        transport::AsBytes(&state.context_header, 1), transport::MemoryKind::kHost));
    for (const std::vector<std::byte>& message : state.token_messages) {
      LAMINA_RETURN_IF_ERROR(
          context_.transport.RegisterSource(message, transport::MemoryKind::kHost));
    }
  }
  return absl::OkStatus();
}

// What moves on behind slice `slice`: the context of all rows, and the attention outputs that are
// here.
std::vector<absl::Span<std::byte>> ReplicaExchange::ContextOf(Lane& lane, uint32_t slice) const {
  const SliceExecutor& executor = context_.executor;
  const size_t rows = lane.positions.size();
  std::vector<absl::Span<std::byte>> values;
  for (size_t i = 0; i < executor.context_count(slice); ++i) {
    values.push_back(executor.ContextRows(slice, i, rows, lane.buffers));
  }
  const uint32_t first = lane.rows_from_elsewhere;
  if (rows > first) {
    const auto out = executor.AttentionRows(slice, rows, lane.buffers);
    values.emplace_back(reinterpret_cast<std::byte*>(out.row(first)),
                        (rows - first) * out.cols * sizeof(BFloat16));
  }
  return values;
}

absl::Status ReplicaExchange::SendContext(Lane& lane) {
  const auto rows = static_cast<uint32_t>(lane.positions.size());
  const PeerId target = ComputePeer(context_.NodeOf(lane, lane.slice + 1));
  plan::WindowHeader& header = lanes_[lane.index].context_header;
  header = context_.HeaderOf(lane, lane.slice, rows, context_.node);
  const transport::SignalUpdate signal{
      .word = context_.layout.context_word(context_.node, lane.index),
      .value = context_.UnitValue(lane, lane.slice)};
  const size_t first = context_.layout.ContextWindow(context_.node, lane.index);
  LAMINA_RETURN_IF_ERROR(
      context_.executor.ContextToHost(lane.slice, rows, lane.rows_from_elsewhere, lane.buffers));
  const std::vector<absl::Span<std::byte>> values = ContextOf(lane, lane.slice);
  LAMINA_RETURN_IF_ERROR(context_.peers.Put(target, first, transport::AsBytes(&header, 1),
                                            values.empty() ? &signal : nullptr));
  size_t offset = first + sizeof(header);
  for (size_t i = 0; i < values.size(); ++i) {
    LAMINA_RETURN_IF_ERROR(
        context_.peers.Put(target, offset, values[i], i + 1 == values.size() ? &signal : nullptr));
    offset += values[i].size();
  }
  const size_t bytes = offset - first;
  context_.peers.CountSent(target, {.rows = bytes},
                           context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kContext,
                                                            lane.slice, target, bytes));
  return absl::OkStatus();
}

AwaitedSignal ReplicaExchange::ContextSignal(const Lane& lane) const {
  const uint32_t sender = context_.NodeOf(lane, lane.slice - 1);
  return {.peer = ComputePeer(sender),
          .word = context_.layout.context_word(sender, lane.index),
          .value = context_.UnitValue(lane, lane.slice - 1)};
}

absl::StatusOr<bool> ReplicaExchange::TakeContext(Lane& lane) {
  const AwaitedSignal signal = ContextSignal(lane);
  if (context_.region.LoadSignal(signal.word) < signal.value) {
    return false;
  }
  LAMINA_RETURN_IF_ERROR(TakeContextWindow(lane, signal.peer));
  return true;
}

absl::Status ReplicaExchange::TakeContextWindow(Lane& lane, PeerId sender) {
  const uint32_t slice = lane.slice - 1;
  const size_t rows = lane.positions.size();
  const std::vector<absl::Span<std::byte>> values = ContextOf(lane, slice);
  size_t window_bytes = sizeof(plan::WindowHeader);
  for (const absl::Span<std::byte> bytes : values) {
    window_bytes += bytes.size();
  }
  LAMINA_ASSIGN_OR_RETURN(
      const std::byte* const window,
      context_.windows.Read(context_.layout.ContextWindow(sender, lane.index), window_bytes));
  plan::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  LAMINA_RETURN_IF_ERROR(context_.peers.CheckWindow(
      sender, header, context_.HeaderOf(lane, slice, static_cast<uint32_t>(rows), sender)));
  size_t offset = sizeof(header);
  for (const absl::Span<std::byte> bytes : values) {
    std::memcpy(bytes.data(), window + offset, bytes.size());
    offset += bytes.size();
  }
  context_.executor.ContextToDevice(slice, rows, lane.rows_from_elsewhere, lane.buffers);
  telemetry::AddTo(context_.counters.bytes_received, offset);
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kTake, slice, sender, offset);
  return absl::OkStatus();
}

absl::Status ReplicaExchange::SendTokens(Lane& lane, const plan::StepResult& result) {
  if (context_.config.compute_nodes.size() == 1) {
    return absl::OkStatus();
  }
  if (result.tokens.size() > context_.layout.token_rows_max()) {
    return absl::InternalError(absl::StrCat("step ", result.step, " of lane ", result.lane,
                                            " samples ", result.tokens.size(), " tokens; at most ",
                                            context_.layout.token_rows_max(), " fit"));
  }
  std::vector<std::vector<std::byte>>& messages = lanes_[lane.index].token_messages;
  std::vector<std::byte>& message = messages[lane.plan.step % messages.size()];
  const plan::WindowHeader header = context_.HeaderOf(
      lane, lane.slice, static_cast<uint32_t>(result.tokens.size()), context_.node);
  std::memcpy(message.data(), &header, sizeof(header));
  size_t bytes = sizeof(header);
  for (const plan::SampledToken& token : result.tokens) {
    const plan::TokenEntry entry{.sequence = token.sequence,
                                 .position = token.position,
                                 .token = token.token,
                                 .finish = static_cast<uint32_t>(token.finish)};
    std::memcpy(message.data() + bytes, &entry, sizeof(entry));
    bytes += sizeof(entry);
  }
  const transport::SignalUpdate signal{
      .word = context_.layout.token_word(context_.node, lane.index), .value = lane.plan.step};
  const size_t window = context_.layout.TokenWindow(context_.node, lane.index, lane.plan.step);
  for (uint32_t node = 0; node < context_.peers.compute_nodes(); ++node) {
    if (node == context_.node || !context_.schedule.TakesPart(node, lane.index)) {
      continue;
    }
    LAMINA_RETURN_IF_ERROR(context_.Tell(lane, ComputePeer(node), telemetry::WorkKind::kContext,
                                         window, {message.data(), bytes}, signal));
  }
  return absl::OkStatus();
}

AwaitedSignal ReplicaExchange::TokenSignal(const Lane& lane) const {
  const uint32_t sender = context_.TailNodeOf(lane);
  return {.peer = ComputePeer(sender),
          .word = context_.layout.token_word(sender, lane.index),
          .value = lane.plan.step};
}

absl::StatusOr<bool> ReplicaExchange::TakeTokens(Lane& lane) {
  const AwaitedSignal signal = TokenSignal(lane);
  if (context_.region.LoadSignal(signal.word) < signal.value) {
    return false;
  }
  LAMINA_RETURN_IF_ERROR(TakeTokenWindow(lane, signal.peer));
  return true;
}

absl::Status ReplicaExchange::TakeTokenWindow(Lane& lane, PeerId sender) {
  const uint32_t last = context_.executor.slice_count() - 1;
  LAMINA_ASSIGN_OR_RETURN(
      const std::byte* const window,
      context_.windows.Read(context_.layout.TokenWindow(sender, lane.index, lane.plan.step),
                            sizeof(plan::WindowHeader) +
                                context_.layout.token_rows_max() * sizeof(plan::TokenEntry)));
  plan::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  const uint32_t rows = std::min(header.rows, context_.layout.token_rows_max());
  LAMINA_RETURN_IF_ERROR(
      context_.peers.CheckWindow(sender, header, context_.HeaderOf(lane, last, rows, sender)));
  LAMINA_RETURN_IF_ERROR(control::Blame(ApplyTokens(lane, window + sizeof(header), header.rows),
                                        context_.peers.Name(sender)));
  const size_t received = sizeof(header) + header.rows * sizeof(plan::TokenEntry);
  telemetry::AddTo(context_.counters.bytes_received, received);
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kTake, last, sender, received);
  return absl::OkStatus();
}

absl::Status ReplicaExchange::ApplyTokens(const Lane& lane, const std::byte* entries,
                                          uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    plan::TokenEntry entry;
    std::memcpy(&entry, entries + i * sizeof(entry), sizeof(entry));
    Sequence* sequence = sequences_.Find(entry.sequence);
    if (sequence == nullptr || sequence->finished || sequence->tokens.size() != entry.position ||
        entry.token < 0 || static_cast<uint32_t>(entry.token) >= vocabulary_) {
      return absl::InternalError(absl::StrCat("token ", entry.token, " of sequence ",
                                              entry.sequence, " at ", entry.position, " in step ",
                                              lane.plan.step, " does not follow from the tables"));
    }
    sequence->tokens.push_back(entry.token);
    sequence->finished = entry.finish != static_cast<uint32_t>(plan::FinishReason::kNone);
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
