// SPDX-License-Identifier: Apache-2.0
#include "kernels/read_bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "common/clock.h"

namespace lamina::kernels {
namespace {

constexpr size_t kLeastBytes = PlainReads::kBytes / 4;
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr int kPasses = 4;

uint64_t SumPiece(const uint64_t* words, size_t count) {
  uint64_t sums[8] = {};  // Independent chains: the loop must wait for memory, not for itself.
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (size_t j = 0; j < 8; ++j) {
      sums[j] += words[i + j];
    }
  }
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

}  // namespace

PlainReads::PlainReads(size_t bytes) : bytes_(bytes) {
  void* buffer = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED) {
    return;
  }
  madvise(buffer, bytes_, MADV_HUGEPAGE);
  std::memset(buffer, 1, bytes_);
  buffer_ = buffer;
}

PlainReads::~PlainReads() {
  if (buffer_ != nullptr) {
    munmap(buffer_, bytes_);
  }
}

void PlainReads::Read(ThreadPool& pool) const {
  if (buffer_ == nullptr) {
    return;
  }
  const auto* words = static_cast<const uint64_t*>(buffer_);
  constexpr size_t kWords = kPieceBytes / sizeof(uint64_t);
  std::atomic<uint64_t> sink{0};
  pool.Run(bytes_ / kPieceBytes, [&](size_t piece, size_t) {
    sink.fetch_add(SumPiece(words + piece * kWords, kWords), std::memory_order_relaxed);
  });
}

double MeasureReadBandwidth(ThreadPool& pool, uint64_t held) {
  const PlainReads reads(std::clamp<uint64_t>(held, kLeastBytes, PlainReads::kBytes) / kPieceBytes *
                         kPieceBytes);
  double best = 0;
  for (int pass = 0; pass < kPasses && reads.ok(); ++pass) {
    const Nanos start = RealClock().Now();
    reads.Read(pool);
    const Nanos taken = std::max<Nanos>(1, RealClock().Now() - start);
    best = std::max(best, static_cast<double>(reads.bytes()) / ToSeconds(taken));
  }
  return best;
}

}  // namespace lamina::kernels
