// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/sub_batches.h"

#include "absl/strings/str_format.h"

namespace lamina::core {
namespace {

// Share of a layer's time: a link that takes less is not worth the messages.
constexpr double kShareMin = 0.05;
// A message holds up its sender for no longer, however long it is under way.
constexpr double kMessageSecondsMax = 50e-6;

// The most chunks by heads for so many rows: each has heads, and rows times heads for every thread,
// if all together have.
uint32_t HeadChunksMax(const cost::LinkCosts& link, uint32_t rows) {
  const uint64_t items = uint64_t{rows} * link.kv_heads;
  const uint64_t for_threads = std::max<uint64_t>(1, items / std::max(1u, link.threads));
  return static_cast<uint32_t>(std::min<uint64_t>(std::max(1u, link.kv_heads), for_threads));
}

}  // namespace

SubBatchCount ChooseSubBatches(const SubBatchOptions& options, const cost::LinkCosts& link,
                               const SubBatchWork& work) {
  const bool measured = link.measured && work.attention_seconds + work.slice_seconds > 0;
  const double seconds = link.seconds_per_row * work.rows;
  const bool slow =
      measured && seconds >= kShareMin * (seconds + work.attention_seconds + work.slice_seconds);
  SubBatchCount count{.cut = {.query_first = options.query_first == QueryFirst::kAlways ||
                                             (options.query_first == QueryFirst::kAuto && slow)}};
  plan::Chunking& cut = count.cut;
  const char* const order = cut.query_first ? ", queries first" : "";
  const uint32_t heads_most = HeadChunksMax(link, work.rows_of_node);
  if (!options.automatic) {
    cut.chunks = options.chunks;
    const uint32_t of_heads = std::min(options.chunks, heads_most);
    if (of_heads > std::min(options.chunks, std::max(1u, work.rows_of_node))) {
      cut.chunks = of_heads;
      cut.by_heads = true;
    }
    count.why = cut.by_heads ? absl::StrFormat("%d of KV heads, %d as configured%s", cut.chunks,
                                               options.chunks, order)
                             : absl::StrFormat("%d, as configured%s", cut.chunks, order);
    return count;
  }
  if (!measured || work.rows == 0) {
    count.why = absl::StrFormat("1 chunk: times not measured yet%s", order);
    return count;
  }
  const double message = std::min(link.seconds_per_message, kMessageSecondsMax);
  for (const bool by_heads : {false, true}) {
    plan::Chunking tried = {
        .chunks = plan::kSubBatchesMax, .by_heads = by_heads, .query_first = cut.query_first};
    const uint32_t most = slow ? plan::PiecesOf(tried, work.rows_of_node, heads_most).chunks : 1;
    for (tried.chunks = 2; tried.chunks <= most; ++tried.chunks) {
      if (cost::ExchangeSeconds(tried.chunks, seconds, work.attention_seconds, message) <
          cost::ExchangeSeconds(cut.chunks, seconds, work.attention_seconds, message)) {
        cut = tried;
      }
    }
  }
  count.why = absl::StrFormat(
      "%d chunk%s%s: %d row%s, %.2f ms of link against %.2f ms of attention and %.2f ms of slice a "
      "layer%s",
      cut.chunks, cut.chunks == 1 ? "" : "s", cut.by_heads ? " of KV heads" : "", work.rows,
      work.rows == 1 ? "" : "s", seconds * 1e3, work.attention_seconds * 1e3,
      work.slice_seconds * 1e3, order);
  return count;
}

}  // namespace lamina::core
