// SPDX-License-Identifier: Apache-2.0
#include "plan/streaming_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lamina::plan {

SeenTokens SeenAt(const StreamingHeads& streaming, uint32_t position) {
  const uint32_t end = position + 1;
  if (end <= streaming.window || end - streaming.window <= streaming.sink) {
    return {};
  }
  return {.sink = streaming.sink, .first = end - streaming.window};
}

TokenGap GapBefore(const StreamingHeads& streaming, uint32_t before) {
  const SeenTokens seen = SeenAt(streaming, before);
  const TokenGap gap{.first = FetchRun::WholeTiles(seen.sink),
                     .end = seen.first / kFetchTile * kFetchTile};
  return gap.first < gap.end ? gap : TokenGap{};
}

std::vector<AlikeHeads> AlikeHeadsOf(const StreamingHeads& streaming, uint32_t layer,
                                     HeadRange part) {
  std::vector<AlikeHeads> alike;
  for (uint32_t head = 0; head < part.count; ++head) {
    const bool streams = streaming.Streams(layer, part.first + head);
    if (alike.empty() || alike.back().streams != streams) {
      alike.push_back({.heads = {.first = head}, .streams = streams});
    }
    ++alike.back().heads.count;
  }
  return alike;
}

absl::Status CheckStreaming(const EpochConfig& config) {
  const StreamingHeads& streaming = config.streaming;
  const auto wrong = [&config](const auto&... words) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch, " ", words...));
  };
  if (!config.attention_paths.Has(AttentionPath::kStreaming)) {
    return streaming == StreamingHeads()
               ? absl::OkStatus()
               : wrong("has heads that stream and no path on which they do");
  }
  if (streaming.empty() || streaming.layers.size() != config.layers.size()) {
    return wrong("names ", streaming.count(), " heads that stream in ", streaming.layers.size(),
                 " layers, of ", config.layers.size(), "; path streaming needs one head at least");
  }
  if (streaming.window == 0 || std::max(streaming.window, streaming.sink) > kStreamingTokensMax) {
    return wrong("has heads that stream with a sink of ", streaming.sink, " and a window of ",
                 streaming.window, " tokens, which are not in [0, ", kStreamingTokensMax,
                 "] and [1, ", kStreamingTokensMax, "]");
  }
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const std::vector<uint32_t>& heads = streaming.layers[layer];
    const AttentionDescriptor& shape = config.layers[layer];
    if (std::adjacent_find(heads.begin(), heads.end(), std::greater_equal<>()) != heads.end() ||
        (!heads.empty() && heads.back() >= shape.kv_heads)) {
      return wrong("names KV heads of layer ", layer, " that stream which are not some of its ",
                   shape.kv_heads, " in order");
    }
    if (shape.window != 0) {
      return wrong("has heads that stream and a layer ", layer, " that attends to a window of ",
                   shape.window, " tokens; this version serves models without windows");
    }
  }
  return config.int8_tails > 0 || config.activation_width > 0
             ? wrong(
                   "has heads that stream and INT8 or activations, which this version does not "
                   "serve together")
             : absl::OkStatus();
}

}  // namespace lamina::plan
