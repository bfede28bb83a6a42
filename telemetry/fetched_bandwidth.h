// SPDX-License-Identifier: Apache-2.0
//
// FetchedBandwidth: between which bounds the bandwidth of a link lies, by the pieces of K and V
// that come over it from one memory node into the windows of each lane (plan/fetch_pieces.h).
//
// The sender goes on by itself as long as a lane has room that it may write. So between two looks
// the link was surely at work if at the second one some lane still had room for a piece that was
// its to send at the first one; surely at rest if none had at the first one; else it may have been
// either. With B the bytes that came, over many pieces of all lanes together,
//
//   B / (at work + either)  <=  bandwidth  <=  B / at work
//
// Where rows wait for what comes both are the same, and where the link waits for the rows they are
// far from each other: an upper bound of before that is not confirmed then grows, by a factor of
// two in a minute, since the link may have become faster unseen. Lanes share the link, and none is
// measured by itself. What it does for others meanwhile (rows, replies) is not in it, and what the
// sender does before it sends is. Small pieces, which take a latency each rather than a bandwidth,
// say nothing.
//
// Where rows hardly wait for the link nothing says how fast it could be. For how long that has been
// so is counted too, so that whoever can shift work to the link does so little by little, until
// rows wait for it (core::FetchBandwidth()).
//
// Threading: one thread at a time; what is known from any.   Allocation: in Begin().
// Cost: Look() O(lanes).

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/clock.h"

namespace lamina::telemetry {

class FetchedBandwidth {
 public:
  // Bounds are of so many pieces for each lane at least, since a piece or two of each are cut by
  // the ends; and of so long. Pieces have so many bytes at least on average.
  static constexpr size_t kPiecesLeast = 32;
  static constexpr size_t kPieceBytesLeast = size_t{256} << 10;
  static constexpr Nanos kTimeLeast = Millis(100);

  // An epoch of so many lanes begins, of which nothing is known.
  void Begin(size_t lanes);

  // At `now` so many pieces of each lane have come in the epoch. [lanes]
  void Look(Nanos now, absl::Span<const uint64_t> come);

  // How many pieces of a lane in the epoch come by themselves, and how many may: behind these the
  // sender waits for room, or has nothing to send. Those between go by how large they are.
  struct Pieces {
    uint64_t sure = 0;
    uint64_t possible = 0;
  };
  // What holds from the last look on.   Requires: sure <= possible.
  void Expect(size_t lane, const Pieces& pieces);

  // One of the pieces that have come had so many bytes. Call it behind Look().
  void Count(size_t bytes);

  // Rows have stood still for the link for so long since the last look.
  void CountWait(Nanos waited) { waited_ += waited; }

  // Whether as of the last look a piece may be on its way.
  bool MayCome() const;

  // Bytes a second. 0: nothing is known of this side.
  double least() const { return least_.load(std::memory_order_relaxed); }
  double most() const { return most_.load(std::memory_order_relaxed); }
  // For so long pieces have come and hardly been waited for, in seconds in which lanes had steps.
  // 0: the link is known, or rows have waited for it since.
  double unbounded_seconds() const { return unbounded_seconds_.load(std::memory_order_relaxed); }

 private:
  struct Lane {
    uint64_t come = 0;
    Pieces expected;
  };

  // Within these bounds, in bytes a second, by what has come since the last ones.
  void Bound(double least, double most, Nanos taken_in);
  void Show(double least, double most);
  // Whether rows have waited for the link, by these bounds and by how long they stood still.
  void CountUnbounded(double least, double most);

  std::vector<Lane> lanes_;
  Nanos looked_ = 0;  // 0: not yet.
  Nanos at_work_ = 0;
  Nanos either_ = 0;
  Nanos passed_ = 0;  // In all, without long rests,
  Nanos waited_ = 0;  // of which rows stood still for the link.
  uint64_t bytes_ = 0;
  size_t pieces_ = 0;
  bool has_changed_ = false;  // With the last bounds.
  std::atomic<double> least_{0};
  std::atomic<double> most_{0};
  std::atomic<double> unbounded_seconds_{0};
};

}  // namespace lamina::telemetry
