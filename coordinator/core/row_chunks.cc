// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/row_chunks.h"

#include "absl/strings/str_format.h"

namespace lamina::core {
namespace {

// Of a layer: a link that takes less is not worth the messages.
constexpr double kShareMin = 0.05;
// A message holds up its sender for no longer, however long it is under way.
constexpr double kMessageSecondsMax = 50e-6;

// Of one layer, from the first row leaving to the last output arriving.
double Seconds(uint32_t chunks, double link, double attention, double message) {
  const double longer = std::max(link, attention);
  const double shorter = std::min(link, attention);
  return longer + shorter / chunks + (chunks - 1) * message;
}

}  // namespace

RowChunkCount ChooseRowChunks(const RowChunkOptions& options, const LinkCosts& link,
                              const RowChunkWork& work) {
  if (!options.automatic) {
    return {options.chunks, absl::StrFormat("%d, as configured", options.chunks)};
  }
  if (!link.measured || work.attention_seconds + work.slice_seconds <= 0 || work.rows == 0) {
    return {1, "1 chunk: times not measured yet"};
  }
  const double seconds = link.seconds_per_row * work.rows;
  const double message = std::min(link.seconds_per_message, kMessageSecondsMax);
  const double layer = seconds + work.attention_seconds + work.slice_seconds;
  uint32_t best = 1;
  for (uint32_t chunks = 2; chunks <= RowChunksOf(kRowChunksMax, work.rows); ++chunks) {
    if (seconds >= kShareMin * layer &&
        Seconds(chunks, seconds, work.attention_seconds, message) <
            Seconds(best, seconds, work.attention_seconds, message)) {
      best = chunks;
    }
  }
  return {best, absl::StrFormat("%d chunk%s: %d rows, %.2f ms of link beside %.2f ms of attention "
                                "and %.2f ms of slice a layer",
                                best, best == 1 ? "" : "s", work.rows, seconds * 1e3,
                                work.attention_seconds * 1e3, work.slice_seconds * 1e3)};
}

}  // namespace lamina::core
