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
  const bool measured = link.measured && work.attention_seconds + work.slice_seconds > 0;
  const double seconds = link.seconds_per_row * work.rows;
  const bool slow =
      measured && seconds >= kShareMin * (seconds + work.attention_seconds + work.slice_seconds);
  RowChunkCount count{.query_first = options.query_first == QueryFirst::kAlways ||
                                     (options.query_first == QueryFirst::kAuto && slow)};
  const char* const order = count.query_first ? ", queries first" : "";
  if (!options.automatic) {
    count.chunks = options.chunks;
    count.why = absl::StrFormat("%d, as configured%s", options.chunks, order);
    return count;
  }
  if (!measured || work.rows == 0) {
    count.why = absl::StrFormat("1 chunk: times not measured yet%s", order);
    return count;
  }
  const double message = std::min(link.seconds_per_message, kMessageSecondsMax);
  const uint32_t most = slow ? PiecesOf(kRowChunksMax, count.query_first, work.rows).chunks : 1;
  for (uint32_t chunks = 2; chunks <= most; ++chunks) {
    if (Seconds(chunks, seconds, work.attention_seconds, message) <
        Seconds(count.chunks, seconds, work.attention_seconds, message)) {
      count.chunks = chunks;
    }
  }
  count.why = absl::StrFormat(
      "%d chunk%s: %d rows, %.2f ms of link beside %.2f ms of attention and %.2f ms of slice a "
      "layer%s",
      count.chunks, count.chunks == 1 ? "" : "s", work.rows, seconds * 1e3,
      work.attention_seconds * 1e3, work.slice_seconds * 1e3, order);
  return count;
}

}  // namespace lamina::core
