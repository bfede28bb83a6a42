// SPDX-License-Identifier: Apache-2.0
//
// SpillAhead: blocks of a spill file that are likely to be ordered next, and are read before they
// are: which of them have been read, and into which buffers
// (docs/adr/0261-blocks-are-read-ahead.md).
//
// They are read one after the other. What an order begins with is the order's, what went wrong with
// it too, so that each block is read once for it. All else is forgotten.
//
// Threading: one thread at a time, under its owner's lock.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace lamina::memory_node {

class SpillAhead {
 public:
  // So many buffers it holds, at most.
  static constexpr size_t kBlocks = 8;

  // A block that has been read, or could not be.
  struct Read {
    int buffer = 0;
    absl::Status status;
  };

  // These are likely to be ordered next, beginning with the first. The same as before: nothing
  // changes. Buffers that come free are appended to `free`, here and below.
  void Want(std::vector<uint32_t> blocks, std::vector<int>& free);
  void Forget(std::vector<int>& free);

  // Whether a block is to be read now.
  bool HasNext() const {
    return !reading_ && read_.size() < kBlocks && read_.size() < blocks_.size() &&
           (read_.empty() || read_.back().status.ok());
  }
  // Which one. It is being read until End(). Requires: HasNext().
  uint32_t Begin();
  // False: it is no longer wanted, unless Claim() has told somebody that it comes.
  bool End(const Read& read);
  bool is_reading() const { return reading_; }

  // What an order of these blocks has of them already.
  struct Claimed {
    std::vector<Read> read;   // Its first ones.
    bool next_comes = false;  // The one behind these is being read.
  };
  // Where the order begins as they do, all others are forgotten: it reads them itself, if none has
  // been read yet.
  Claimed Claim(absl::Span<const uint32_t> blocks, std::vector<int>& free);

  // The buffer of the last one that was read, which is forgotten; for whoever needs one now.
  bool holds_any() const { return !read_.empty(); }
  // Requires: holds_any().
  int GiveUpLast();

 private:
  std::vector<uint32_t> blocks_;
  std::vector<Read> read_;  // The first of blocks_.
  bool reading_ = false;    // The one behind these is being read,
  bool dropped_ = false;    // or was, and is not wanted any more.
};

}  // namespace lamina::memory_node
