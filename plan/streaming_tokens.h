// SPDX-License-Identifier: Apache-2.0
//
// Path streaming: which tokens rows of a head that streams see, and which of them come to the
// compute node for a run of rows. Both ends compute the same, so nothing of it travels.
//
// A row at position p sees the tokens [0, sink) and (p - window, p]; where these meet, all up to p.
// For the rows of a run that begins at position p there come the tokens that the first of them sees
// before p, in whole tiles of kFetchTile tokens, so that tiles of K lie alike on both sides: what
// is left out is a gap between two tiles. Rows of heads that do not stream see all tokens.
//
// Pieces are those of plan/fetch_pieces.h, cut for each range of heads that are alike, in the order
// of heads.
//
// Threading: plain values. Determinism: pure functions.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/attention_descriptor.h"
#include "common/streaming_heads.h"
#include "plan/epoch_config.h"
#include "plan/fetch_pieces.h"

namespace lamina::plan {

// What a row sees: tokens [0, sink) and [first, position].
struct SeenTokens {
  uint32_t sink = 0;
  uint32_t first = 0;
};

// A row that sees everything has no sink, and sees [0, position].
SeenTokens SeenAt(const StreamingHeads& streaming, uint32_t position);

// Tokens [first, end) of those before a run do not come.
struct TokenGap {
  uint32_t first = 0;
  uint32_t end = 0;
  uint32_t tokens() const { return end - first; }
  friend bool operator==(const TokenGap&, const TokenGap&) = default;
};

// What is left out of the `before` tokens before a run, for a head that streams. {0, 0}: nothing.
TokenGap GapBefore(const StreamingHeads& streaming, uint32_t before);

// The run as its pieces have it: without the tokens of the gap.
inline FetchRun WithoutGap(FetchRun run, TokenGap gap) {
  run.before -= gap.tokens();
  return run;
}

// Heads that follow each other, all of which stream or none does.
struct AlikeHeads {
  HeadRange heads;
  bool streams = false;
  friend bool operator==(const AlikeHeads&, const AlikeHeads&) = default;
};

// The heads `part` of a layer in ranges, as long as they are alike; counted from part.first.
std::vector<AlikeHeads> AlikeHeadsOf(const StreamingHeads& streaming, uint32_t layer,
                                     HeadRange part);

// Errors: kInvalidArgument  heads without path streaming, or the path without heads; heads that the
//                           layers do not have, or not in order; a window of 0 tokens, or more than
//                           kStreamingTokensMax; INT8, activations, or a layer with a window of its
//                           own, together with it.
absl::Status CheckStreaming(const EpochConfig& config);

}  // namespace lamina::plan
