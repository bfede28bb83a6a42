// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_sparse.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "common/check.h"

namespace lamina::policy {
namespace {

void AddToken(absl::Span<uint64_t> set, uint32_t token) {
  set[token / 64] |= uint64_t{1} << token % 64;
}

// Tokens [first, end).
void AddTokens(absl::Span<uint64_t> set, uint32_t first, uint32_t end) {
  for (uint32_t token = first; token < end; ++token) {
    AddToken(set, token);
  }
}

// Adds token j where (j + 1) r reaches a whole number that j r has not: of n tokens n r, rounded
// down.
void AddStrided(absl::Span<uint64_t> set, uint32_t tokens, double ratio) {
  for (uint32_t token = 0; token < tokens; ++token) {
    if (std::floor((token + 1) * ratio) > std::floor(token * ratio)) {
      AddToken(set, token);
    }
  }
}

// Adds the `count` tokens of [0, end) with the largest sums.
void AddLargest(absl::Span<uint64_t> set, uint32_t end, uint32_t count,
                absl::Span<const uint64_t> sums, std::vector<uint32_t>& order) {
  const auto sum = [&](uint32_t token) { return token < sums.size() ? sums[token] : 0; };
  order.resize(end);
  std::iota(order.begin(), order.end(), 0);
  if (count < end) {
    std::nth_element(
        order.begin(), order.begin() + count, order.end(),
        [&](uint32_t a, uint32_t b) { return sum(a) != sum(b) ? sum(a) > sum(b) : a < b; });
    order.resize(count);
  }
  for (const uint32_t token : order) {
    AddToken(set, token);
  }
}

}  // namespace

uint32_t KeptHalf(uint32_t tokens, double ratio) {
  return static_cast<uint32_t>(std::floor(tokens * ratio / 2 + 0.5));
}

uint32_t FirstSummedRow(uint32_t tokens, double ratio) { return tokens - KeptHalf(tokens, ratio); }

void WindowSums::Add(uint32_t position, absl::Span<const uint32_t> tokens,
                     absl::Span<const float> weights) {
  LAMINA_CHECK(tokens.size() == weights.size());
  if (position != end_) {
    DropBefore(end_);
  }
  end_ = position + 1;
  Row row;
  if (!tokens.empty()) {
    row.tokens.resize(TokenSetWords(tokens.back() + 1));
    sums_.resize(std::max<size_t>(sums_.size(), tokens.back() + 1));
  }
  row.weights.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float units = std::clamp(weights[i] * unit_ + 0.5f, 0.0f, 65535.0f);
    const auto weight = static_cast<uint16_t>(units);
    if (weight > 0) {
      AddToken(absl::MakeSpan(row.tokens), tokens[i]);
      row.weights.push_back(weight);
      sums_[tokens[i]] += weight;
    }
  }
  row.weights.shrink_to_fit();
  rows_.push_back(std::make_shared<const Row>(std::move(row)));
}

void WindowSums::TakeOver(const WindowSums& other) {
  rows_ = other.rows_;
  end_ = other.end_;
  sums_ = other.sums_;
}

size_t WindowSums::bytes() const {
  size_t bytes = sums_.capacity() * sizeof(uint64_t);
  for (const auto& row : rows_) {
    bytes += row->bytes() / static_cast<size_t>(row.use_count());
  }
  return bytes;
}

void WindowSums::Subtract(const Row& row) {
  auto weight = row.weights.begin();
  for (size_t word = 0; word < row.tokens.size(); ++word) {
    for (uint64_t left = row.tokens[word]; left != 0; left &= left - 1) {
      sums_[word * 64 + std::countr_zero(left)] -= *weight++;
    }
  }
}

void WindowSums::DropBefore(uint32_t position) {
  while (!rows_.empty() && end_ - rows_.size() < position) {
    Subtract(*rows_.front());
    rows_.pop_front();
  }
}

void WindowSums::DropFrom(uint32_t position) {
  while (!rows_.empty() && end_ > position) {
    Subtract(*rows_.back());
    rows_.pop_back();
    --end_;
  }
}

uint64_t WindowRowBytesMax(uint32_t tokens) {
  constexpr uint64_t kHolder = 112;  // What a row takes besides: vectors, and what shares it.
  return kHolder + TokenSetWords(tokens) * sizeof(uint64_t) + uint64_t{tokens} * sizeof(uint16_t);
}

// The vector of sums grows by doubling.
uint64_t WindowSumsOwnBytesMax(uint32_t tokens, double ratio) {
  constexpr uint64_t kPlace = 16;  // A row has so many bytes in the deque.
  return KeptHalf(tokens, ratio) * kPlace + 2 * uint64_t{tokens} * sizeof(uint64_t);
}

uint64_t WindowSumsBytesMax(uint32_t tokens, double ratio) {
  return KeptHalf(tokens, ratio) * WindowRowBytesMax(tokens) + WindowSumsOwnBytesMax(tokens, ratio);
}

void ChooseTokens(const SparsePattern& pattern, uint32_t tokens, absl::Span<const uint64_t> sums,
                  std::vector<uint32_t>& order, absl::Span<uint64_t> chosen) {
  LAMINA_CHECK(chosen.size() >= TokenSetWords(tokens));
  std::fill(chosen.begin(), chosen.end(), 0);
  const uint32_t half = KeptHalf(tokens, pattern.ratio);
  const uint32_t kept = std::min(tokens, 2 * half);
  switch (pattern.tokens) {
    case SparseTokens::kLocal:
      AddTokens(chosen, tokens - kept, tokens);
      return;
    case SparseTokens::kStrided:
      AddStrided(chosen, tokens, pattern.ratio);
      return;
    case SparseTokens::kWindowSums:
      AddTokens(chosen, tokens - half, tokens);
      AddLargest(chosen, tokens - half, std::min(half, tokens - half), sums, order);
      return;
  }
}

}  // namespace lamina::policy
