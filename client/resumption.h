// SPDX-License-Identifier: Apache-2.0
//
// Resumption: what becomes of a generation, or a score, whose stream ends. Where the stream broke
// off, and the coordinator had said that it journals the request, a coordinator is waited for, to
// attach to the request behind the tokens that are there. Knows no RPC; the gateway and the client
// use it.
//
// Threading: one thread at a time.
// Limits:    the coordinator is waited for up to kWaitMax, with pauses of kPauseMin to kPauseMax
//            between two attempts; then it ends with the error with which the stream broke off.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/client.h"
#include "common/clock.h"
#include "common/fnv1a.h"

namespace lamina::client {

// How a stream of an answer has ended.
struct StreamEnd {
  absl::Status status;
  bool broke_off = false;    // The coordinator did not end it.
  std::string journaled_id;  // By which one may attach; empty: one may not.
};

// What there is of a choice.
struct ReceivedChoice {
  uint32_t tokens = 0;
  Fnv1a digest;            // FNV-1a of the tokens' ids.
  bool has_ended = false;  // The last chunk has come.
};

// Where an answer goes on.
struct AnswerPlace {
  std::string request_id;
  std::vector<ReceivedChoice> choices;  // By index, up to the last one of which a chunk has come.
};

class Resumption {
 public:
  static constexpr Nanos kWaitMax = Seconds(30);
  static constexpr Nanos kPauseMin = Millis(100);
  static constexpr Nanos kPauseMax = Seconds(1);

  // `clock` outlives it. `choices`: so many are told; 0 counts as 1, as a score does.
  Resumption(const Clock& clock, uint32_t choices);

  // A chunk has come. False: of a choice that has ended, which is there already.
  bool Take(const Chunk& chunk);
  // Something has come that is no chunk: a coordinator works on the request.
  void TakeProgress() { broken_.reset(); }
  // A stream has ended. Nothing: attach at place() after Pause(); else how the generation ends.
  std::optional<absl::Status> End(const StreamEnd& end);
  // The pause before the next attempt; each is twice the one before.
  Nanos Pause();

  // A stream broke off, and nothing has come since.
  bool waits() const { return broken_.has_value(); }
  const AnswerPlace& place() const { return place_; }
  uint64_t tokens() const;  // All choices together.

 private:
  bool HasAll() const;

  const Clock& clock_;
  const uint32_t choices_;
  AnswerPlace place_;
  // Since the stream broke off, until something comes: the error, and how long to wait.
  std::optional<absl::Status> broken_;
  Nanos wait_until_ = 0;
  Nanos pause_ = 0;
};

}  // namespace lamina::client
