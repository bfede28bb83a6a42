// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "kernels/arena_memory.h"

namespace lamina::memory_node {
namespace {

constexpr size_t kMeasuredPiece = size_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<SpillFile>> SpillFile::Create(std::unique_ptr<SpillDisk> disk,
                                                             uint64_t bytes, std::string name) {
  int error = EINTR;
  while (error == EINTR) {
    error = disk->Allocate(bytes);
  }
  if (error != 0) {
    return absl::ErrnoToStatus(
        error, absl::StrCat("spill ", name, ": no room for ", FormatBytes(bytes),
                            "; lower memory.N.spill.capacity, or choose another folder"));
  }
  return std::unique_ptr<SpillFile>(new SpillFile(std::move(disk), bytes, std::move(name)));
}

absl::StatusOr<SpillSpeed> SpillFile::Measure(int readers) {
  LAMINA_CHECK(readers > 0);
  // Bytes that no file system stores as a hole, where a disk can read and write them.
  const auto of_readers = static_cast<size_t>(readers);
  LAMINA_ASSIGN_OR_RETURN(const kernels::ArenaMemory memory,
                          kernels::ArenaMemory::Create(of_readers * kMeasuredPiece));
  const absl::Span<std::byte> piece(memory.data(), std::min<uint64_t>(kMeasuredPiece, bytes_));
  for (size_t i = 0; i < piece.size(); ++i) {
    piece[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  }
  const uint64_t pieces = std::max<uint64_t>(1, std::min(bytes_, kMeasuredBytesMax) / piece.size());
  const double measured = static_cast<double>(pieces * piece.size());
  const auto seconds_since = [](Nanos start) {
    return std::max(ToSeconds(RealClock().Now() - start), 1e-9);
  };
  SpillSpeed speed;
  Nanos start = RealClock().Now();
  for (uint64_t i = 0; i < pieces; ++i) {
    LAMINA_RETURN_IF_ERROR(WriteAt(i * piece.size(), piece));
  }
  if (disk_->Settle() != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("spill ", name_, ": cannot write"));
  }
  speed.write = measured / seconds_since(start);
  start = RealClock().Now();
  LAMINA_RETURN_IF_ERROR(
      ReadPieces(pieces, piece.size(), {memory.data(), of_readers * piece.size()}));
  speed.read = measured / seconds_since(start);
  return speed;
}

absl::Status SpillFile::ReadPieces(uint64_t pieces, size_t piece_bytes,
                                   absl::Span<std::byte> memory) const {
  std::atomic<uint64_t> next = 0;
  std::mutex mutex;
  absl::Status status;
  const auto read = [&](absl::Span<std::byte> piece) {
    for (uint64_t i = next++; i < pieces; i = next++) {
      absl::Status done = ReadAt(i * piece_bytes, piece);
      if (!done.ok()) {
        next = pieces;
        const std::lock_guard lock(mutex);
        status.Update(std::move(done));
      }
    }
  };
  std::vector<std::jthread> others;
  for (size_t at = piece_bytes; at < memory.size(); at += piece_bytes) {
    others.emplace_back(read, memory.subspan(at, piece_bytes));
  }
  read(memory.subspan(0, piece_bytes));
  others.clear();  // Joins them.
  return status;
}

void SpillFile::Format(size_t block_bytes) {
  LAMINA_CHECK(block_bytes > 0);
  block_bytes_ = block_bytes;
  const uint64_t blocks = std::min<uint64_t>(bytes_ / block_bytes, UINT32_MAX);
  checksums_.assign(blocks, 0);
  free_.resize(blocks);
  std::iota(free_.rbegin(), free_.rend(), 0);
}

absl::StatusOr<std::vector<uint32_t>> SpillFile::Take(uint32_t count) {
  if (count > free_.size()) {
    return absl::ResourceExhaustedError(absl::StrCat("spill ", name_, ": ", count,
                                                     " blocks are wanted, ", free_.size(), " of ",
                                                     blocks(), " are free"));
  }
  std::vector<uint32_t> taken(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - count);
  return taken;
}

void SpillFile::GiveBack(const std::vector<uint32_t>& blocks) {
  free_.insert(free_.end(), blocks.rbegin(), blocks.rend());
  LAMINA_CHECK(free_.size() <= checksums_.size());
}

absl::Status SpillFile::Write(uint32_t block, absl::Span<const std::byte> bytes, uint64_t sum) {
  LAMINA_CHECK(block < checksums_.size() && bytes.size() == block_bytes_);
  checksums_[block] = sum;
  return WriteAt(uint64_t{block} * block_bytes_, bytes);
}

absl::Status SpillFile::Fetch(uint32_t block, absl::Span<std::byte> bytes) const {
  LAMINA_CHECK(block < checksums_.size() && bytes.size() == block_bytes_);
  return ReadAt(uint64_t{block} * block_bytes_, bytes);
}

absl::Status SpillFile::Check(uint32_t block, uint64_t sum) const {
  LAMINA_CHECK(block < checksums_.size());
  if (sum != checksums_[block]) {
    return absl::DataLossError(
        absl::StrCat("spill ", name_, ": block ", block, " is not what was written there"));
  }
  return absl::OkStatus();
}

absl::Status SpillFile::WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const int64_t count = disk_->Write(bytes.data() + done, bytes.size() - done, offset + done);
    if (count == 0 || (count < 0 && errno != EINTR)) {
      return absl::ErrnoToStatus(count == 0 ? ENOSPC : errno,
                                 absl::StrCat("spill ", name_, ": cannot write"));
    }
    done += static_cast<size_t>(std::max<int64_t>(count, 0));
  }
  return absl::OkStatus();
}

absl::Status SpillFile::ReadAt(uint64_t offset, absl::Span<std::byte> bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const int64_t count = disk_->Read(bytes.data() + done, bytes.size() - done, offset + done);
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat("spill ", name_, ": the file ends before byte ", offset + bytes.size()));
    }
    if (count < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat("spill ", name_, ": cannot read"));
    }
    done += static_cast<size_t>(std::max<int64_t>(count, 0));
  }
  return absl::OkStatus();
}

}  // namespace lamina::memory_node
