// SPDX-License-Identifier: Apache-2.0
//
// What compute nodes tell each other: the context of a lane that moves on, and the tokens of a
// step.

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "compute_node/step_worker.h"
#include "control/epoch_shape.h"
#include "transport/put_all.h"

namespace lamina::compute_node {

// What moves on behind slice `slice`: the context of all rows, and the attention outputs of chunks.
std::vector<absl::Span<std::byte>> StepWorker::ContextOf(Lane& lane, uint32_t slice) const {
  const size_t rows = lane.positions.size();
  std::vector<absl::Span<std::byte>> values;
  for (size_t i = 0; i < executor_.context_count(slice); ++i) {
    values.push_back(executor_.ContextRows(slice, i, rows, lane.buffers));
  }
  if (rows > lane.decode_rows) {
    const auto out = executor_.AttentionRows(slice, rows, lane.buffers);
    values.emplace_back(reinterpret_cast<std::byte*>(out.row(lane.decode_rows)),
                        (rows - lane.decode_rows) * out.cols * sizeof(BFloat16));
  }
  return values;
}

// The attention outputs of this slice go to the same replica; whatever comes last makes it ready.
absl::Status StepWorker::SendContext(Lane& lane, std::string& blamed) {
  const uint32_t index = IndexOf(lane);
  const uint32_t target = NodeOf(lane, lane.slice + 1);
  lane.context_header = {.lane = index,
                         .epoch = options_.config.epoch,
                         .step = lane.plan.step,
                         .layer = lane.slice,
                         .rows = static_cast<uint32_t>(lane.positions.size()),
                         .sender = options_.node};
  const transport::SignalUpdate signal{.word = layout_.context_word(options_.node, index),
                                       .value = UnitValue(lane, lane.slice)};
  blamed = options_.config.compute_nodes[target];
  size_t offset = layout_.ContextWindow(options_.node, index);
  const size_t first = offset;
  LAMINA_RETURN_IF_ERROR(
      executor_.ContextToHost(lane.slice, lane.positions.size(), lane.decode_rows, lane.buffers));
  const std::vector<absl::Span<std::byte>> values = ContextOf(lane, lane.slice);
  const auto header = transport::AsBytes(&lane.context_header, 1);
  control::LinkCounters& link = *compute_links_[target];
  LAMINA_RETURN_IF_ERROR(
      Put(*replicas_[target], link, offset, header, values.empty() ? &signal : nullptr));
  offset += header.size();
  for (size_t i = 0; i < values.size(); ++i) {
    LAMINA_RETURN_IF_ERROR(Put(*replicas_[target], link, offset, values[i],
                               i + 1 == values.size() ? &signal : nullptr));
    offset += values[i].size();
  }
  blamed.clear();
  CountSent(link, offset - first,
            LapOf(lane, control::WorkPart::kContext, lane.slice, static_cast<uint8_t>(target),
                  offset - first));
  return absl::OkStatus();
}

// Whether the context of the slice before is here.
absl::StatusOr<bool> StepWorker::TakeContext(Lane& lane) {
  if (!lane.context_pending) {
    return true;
  }
  const uint32_t index = IndexOf(lane);
  const uint32_t slice = lane.slice - 1;
  const uint32_t sender = NodeOf(lane, slice);
  if (region_.LoadSignal(layout_.context_word(sender, index)) < UnitValue(lane, slice)) {
    return false;
  }
  const std::byte* window = region_.bytes().data() + layout_.ContextWindow(sender, index);
  const size_t rows = lane.positions.size();
  core::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  LAMINA_RETURN_IF_ERROR(CheckWindow(header,
                                     {.lane = index,
                                      .epoch = options_.config.epoch,
                                      .step = lane.plan.step,
                                      .layer = slice,
                                      .rows = static_cast<uint32_t>(rows),
                                      .sender = sender},
                                     options_.config.compute_nodes[sender]));
  size_t offset = sizeof(header);
  for (const absl::Span<std::byte> bytes : ContextOf(lane, slice)) {
    std::memcpy(bytes.data(), window + offset, bytes.size());
    offset += bytes.size();
  }
  executor_.ContextToDevice(slice, rows, lane.decode_rows, lane.buffers);
  lane.context_pending = false;
  control::AddTo(counters_.bytes_received, offset);
  LapOf(lane, control::WorkPart::kTake, slice, static_cast<uint8_t>(sender), offset);
  return true;
}

// To every other replica: they may run the next step's slices, and sample these sequences too.
absl::Status StepWorker::SendTokens(Lane& lane, const core::StepResult& result,
                                    std::string& blamed) {
  if (options_.config.compute_nodes.size() == 1) {
    return absl::OkStatus();
  }
  const uint32_t index = IndexOf(lane);
  const auto hears = [&](uint32_t node) {
    return node != options_.node && schedule_.TakesPart(node, index);
  };
  if (result.tokens.size() > layout_.token_rows_max()) {
    return absl::InternalError(absl::StrCat("step ", result.step, " of lane ", result.lane,
                                            " samples ", result.tokens.size(), " tokens; at most ",
                                            layout_.token_rows_max(), " fit"));
  }
  std::vector<std::byte>& message =
      lane.token_messages[lane.plan.step % lane.token_messages.size()];
  const core::WindowHeader header{.lane = index,
                                  .epoch = options_.config.epoch,
                                  .step = lane.plan.step,
                                  .layer = lane.slice,
                                  .rows = static_cast<uint32_t>(result.tokens.size()),
                                  .sender = options_.node};
  std::memcpy(message.data(), &header, sizeof(header));
  size_t bytes = sizeof(header);
  for (const core::SampledToken& token : result.tokens) {
    const core::TokenEntry entry{.sequence = token.sequence,
                                 .position = token.position,
                                 .token = token.token,
                                 .finish = static_cast<uint32_t>(token.finish)};
    std::memcpy(message.data() + bytes, &entry, sizeof(entry));
    bytes += sizeof(entry);
  }
  const transport::SignalUpdate signal{.word = layout_.token_word(options_.node, index),
                                       .value = lane.plan.step};
  const size_t window = layout_.TokenWindow(options_.node, index, lane.plan.step);
  for (uint32_t replica = 0; replica < replicas_.size(); ++replica) {
    if (hears(replica)) {
      blamed = options_.config.compute_nodes[replica];
      control::LinkCounters& link = *compute_links_[replica];
      LAMINA_RETURN_IF_ERROR(
          Put(*replicas_[replica], link, window, {message.data(), bytes}, &signal));
      CountSent(link, bytes,
                LapOf(lane, control::WorkPart::kContext, lane.slice, static_cast<uint8_t>(replica),
                      bytes));
    }
  }
  blamed.clear();
  return absl::OkStatus();
}

// Ends the step here, if its tokens have come.
absl::StatusOr<bool> StepWorker::TakeTokens(Lane& lane) {
  const uint32_t index = IndexOf(lane);
  const uint32_t sender = TailNodeOf(lane);
  if (region_.LoadSignal(layout_.token_word(sender, index)) < lane.plan.step) {
    return false;
  }
  const std::byte* window =
      region_.bytes().data() + layout_.TokenWindow(sender, index, lane.plan.step);
  core::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  LAMINA_RETURN_IF_ERROR(CheckWindow(header,
                                     {.lane = index,
                                      .epoch = options_.config.epoch,
                                      .step = lane.plan.step,
                                      .layer = executor_.slice_count() - 1,
                                      .rows = std::min(header.rows, layout_.token_rows_max()),
                                      .sender = sender},
                                     options_.config.compute_nodes[sender]));
  LAMINA_RETURN_IF_ERROR(ApplyTokens(lane, window + sizeof(header), header.rows));
  const size_t received = sizeof(header) + header.rows * sizeof(core::TokenEntry);
  control::AddTo(counters_.bytes_received, received);
  LapOf(lane, control::WorkPart::kTake, executor_.slice_count() - 1, static_cast<uint8_t>(sender),
        received);
  reporter_.ReportResult(
      {.epoch = lane.plan.epoch, .lane = lane.plan.lane, .step = lane.plan.step});
  ForgetPrefilled(lane);
  EndStep(lane);
  return true;
}

absl::Status StepWorker::ApplyTokens(const Lane& lane, const std::byte* entries, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    core::TokenEntry entry;
    std::memcpy(&entry, entries + i * sizeof(entry), sizeof(entry));
    Sequence* sequence = sequences_.Find(entry.sequence);
    if (sequence == nullptr || sequence->finished || sequence->tokens.size() != entry.position ||
        entry.token < 0 || static_cast<uint32_t>(entry.token) >= options_.vocabulary) {
      return absl::InternalError(absl::StrCat("token ", entry.token, " of sequence ",
                                              entry.sequence, " at ", entry.position, " in step ",
                                              lane.plan.step, " does not follow from the tables"));
    }
    sequence->tokens.push_back(entry.token);
    sequence->finished = entry.finish != static_cast<uint32_t>(core::FinishReason::kNone);
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
