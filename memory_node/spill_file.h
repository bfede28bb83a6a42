// SPDX-License-Identifier: Apache-2.0
//
// SpillFile: blocks of one size in a file, each with a checksum (spill_pass.h). Which blocks are
// whose, and their checksums, are in memory alone: the file is nobody's once the process has ended.
//
// Threading: Write(), Fetch() and Check() from any thread, each block from one at a time, unless
// nobody looks at what a Fetch() brings; Take(), GiveBack() and blocks_free() from one thread; the
// rest from that one too, while nobody writes or reads.
// Memory: 12 bytes for each block.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "memory_node/spill_disk.h"

namespace lamina::memory_node {

// What the file was seen to do, in bytes a second.
struct SpillSpeed {
  double write = 0;
  double read = 0;
};

class SpillFile {
 public:
  // Takes room for `bytes`; `name` is what errors call it.
  // Errors: kResourceExhausted  the file system has not so much room; else those of the disk.
  static absl::StatusOr<std::unique_ptr<SpillFile>> Create(std::unique_ptr<SpillDisk> disk,
                                                           uint64_t bytes, std::string name);

  uint64_t bytes() const { return bytes_; }

  // Writes and reads some of the file, past the system's memory; as many threads read at once as
  // `readers` says. Nothing may be stored.
  // Errors: those of the disk.   Cost: up to kMeasuredBytesMax both ways.
  static constexpr uint64_t kMeasuredBytesMax = uint64_t{64} << 20;
  absl::StatusOr<SpillSpeed> Measure(int readers);

  // Nothing is stored any more, and blocks have so many bytes from now on. Requires: more than 0.
  void Format(size_t block_bytes);
  size_t block_bytes() const { return block_bytes_; }
  uint32_t blocks_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t blocks() const { return static_cast<uint32_t>(checksums_.size()); }

  // Blocks that were nobody's. Errors: kResourceExhausted  there are fewer; nothing changed.
  absl::StatusOr<std::vector<uint32_t>> Take(uint32_t count);
  void GiveBack(const std::vector<uint32_t>& blocks);

  // `sum`: the checksum of `bytes`. Errors: kResourceExhausted  the disk is full; else those of
  // the disk.
  absl::Status Write(uint32_t block, absl::Span<const std::byte> bytes, uint64_t sum);
  // Reads it: waits for the disk. Errors: kDataLoss  the file ends; else those of the disk.
  absl::Status Fetch(uint32_t block, absl::Span<std::byte> bytes) const;
  // `sum`: the checksum of what was fetched. Errors: kDataLoss  these are other bytes than were
  // written.
  absl::Status Check(uint32_t block, uint64_t sum) const;

 private:
  SpillFile(std::unique_ptr<SpillDisk> disk, uint64_t bytes, std::string name)
      : disk_(std::move(disk)), bytes_(bytes), name_(std::move(name)) {}
  absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) const;
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> bytes) const;
  // Reads the file's first `pieces` pieces, each into the memory of the thread that takes it.
  // Shapes: memory  [readers, piece_bytes]
  absl::Status ReadPieces(uint64_t pieces, size_t piece_bytes, absl::Span<std::byte> memory) const;

  const std::unique_ptr<SpillDisk> disk_;
  const uint64_t bytes_;
  const std::string name_;
  size_t block_bytes_ = 0;
  std::vector<uint32_t> free_;       // The one that was given back last goes first.
  std::vector<uint64_t> checksums_;  // [blocks]
};

}  // namespace lamina::memory_node
