// SPDX-License-Identifier: Apache-2.0
//
// Dense::FinishQkv() against the calls that it stands for, of the same Dense, and plain copies into
// slots: the same bits, and nothing but the rows' slots written.

#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/dense.h"
#include "tests/unit/kernels/dense_test_util.h"

namespace lamina::kernels {

enum class NormsOf : uint8_t { kNothing, kEachHead, kAllHeads };

struct FinishCase {
  std::string name;
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t rotary_dim = 0;
  RopeLayout layout = RopeLayout::kHalves;
  NormsOf norms = NormsOf::kNothing;
  // By row: positions and slots. Several sequences, chunks and rows that are not stored.
  std::vector<uint32_t> positions;
  std::vector<uint32_t> slots;
};

// How a test brings bytes to where the Dense reaches them, and back.
struct Mover {
  std::function<std::byte*(const std::vector<std::byte>&)> up;
  std::function<std::vector<std::byte>(const std::byte*, size_t bytes)> down;
};

inline std::vector<FinishCase> FinishCases() {
  constexpr uint32_t kNone = kNoSlot;
  const std::vector<uint32_t> chunk = {200, 201, 202, 203, 4, 131071};
  std::vector<FinishCase> cases;
  const auto add = [&](const char* name, const std::vector<uint32_t>& shape, RopeLayout layout,
                       NormsOf norms, const std::vector<uint32_t>& positions,
                       const std::vector<uint32_t>& slots) {
    cases.push_back({.name = name,
                     .query_heads = shape[0],
                     .kv_heads = shape[1],
                     .head_dim = shape[2],
                     .rotary_dim = shape[3],
                     .layout = layout,
                     .norms = norms,
                     .positions = positions,
                     .slots = slots});
  };
  const auto halves = RopeLayout::kHalves;
  const auto pairs = RopeLayout::kInterleaved;
  add("OneRow", {1, 1, 16, 16}, halves, NormsOf::kNothing, {0}, {5});
  add("NoRows", {2, 1, 16, 16}, halves, NormsOf::kEachHead, {}, {});
  add("NothingStored", {4, 2, 32, 32}, halves, NormsOf::kNothing, {3, 9}, {kNone, kNone});
  add("Chunk", {8, 2, 128, 128}, halves, NormsOf::kNothing, chunk, {7, 8, 9, 10, 30, 0});
  add("PaddingRows", {4, 4, 64, 64}, halves, NormsOf::kNothing, {70, 5, 0, 0},
      {31, 2, kNone, kNone});
  add("Partial", {6, 2, 80, 20}, halves, NormsOf::kNothing, chunk, {7, 8, kNone, 10, 30, 0});
  add("Interleaved", {5, 5, 48, 48}, pairs, NormsOf::kNothing, chunk, {12, 8, 9, 3, 4, 6});
  add("InterleavedPartial", {3, 1, 10, 6}, pairs, NormsOf::kNothing, chunk, {1, 2, 3, kNone, 5, 6});
  add("NoRotation", {3, 3, 18, 0}, halves, NormsOf::kNothing, {1, 2}, {4, 3});
  add("WideHeads", {2, 1, 256, 256}, halves, NormsOf::kEachHead, {1, 99, 7}, {0, 31, 15});
  add("Norms", {8, 2, 128, 128}, halves, NormsOf::kEachHead, chunk, {7, 8, 9, 10, kNone, 0});
  add("NormsPartial", {6, 3, 80, 20}, halves, NormsOf::kEachHead, chunk, {7, 8, kNone, 10, 30, 0});
  add("NormsInterleaved", {5, 1, 34, 34}, pairs, NormsOf::kEachHead, chunk, {1, 2, 3, 4, 5, 6});
  add("NormsOfAll", {6, 2, 64, 64}, halves, NormsOf::kAllHeads, chunk, {7, 8, kNone, 10, 30, 0});
  add("NormsOfAllPartial", {3, 3, 48, 16}, pairs, NormsOf::kAllHeads, {8, 2}, {21, 20});
  return cases;
}

class FinishedRows {
 public:
  static constexpr size_t kSlots = 32;
  static constexpr size_t kGap = 3;  // Elements behind each row.

  FinishedRows(Dense& dense, const FinishCase& c, const Mover& mover)
      : dense_(dense),
        c_(c),
        mover_(mover),
        cols_((c.query_heads + size_t{2} * c.kv_heads) * c.head_dim),
        stride_(cols_ + kGap) {
    const bool whole = c.norms == NormsOf::kAllHeads;
    const std::vector<float> q = RandomFloats((whole ? c.query_heads : 1) * c.head_dim, 2);
    const std::vector<float> k = RandomFloats((whole ? c.kv_heads : 1) * c.head_dim, 3);
    std::vector<float> frequencies(c.rotary_dim / 2);
    for (size_t i = 0; i < frequencies.size(); ++i) {
      frequencies[i] =
          std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(c.rotary_dim));
    }
    x_ = {Up(RandomFloats(c.positions.size() * stride_, 1, 3)), c.positions.size(), cols_, stride_};
    norms_ = {.query_heads = c.query_heads,
              .kv_heads = c.kv_heads,
              .head_dim = c.head_dim,
              .whole = whole,
              .epsilon = 1e-5f,
              .q_weight = {Up(q), q.size()},
              .k_weight = {Up(k), k.size()}};
    finish_ = {.norms = c.norms == NormsOf::kNothing ? nullptr : &norms_,
               .heads = c.query_heads + c.kv_heads,
               .head_dim = c.head_dim,
               .table = {c.layout, c.rotary_dim, 1.25f, {Up(frequencies), frequencies.size()}},
               .positions = {Up(c.positions), c.positions.size()}};
  }

  // The rows, and the planes of k and v, as they are after one call.
  std::vector<uint16_t> InOneCall(std::vector<uint16_t>& k, std::vector<uint16_t>& v) {
    const size_t plane = c_.kv_heads * kSlots * c_.head_dim;
    BFloat16* const k_plane = Poisoned<BFloat16>(plane);
    BFloat16* const v_plane = Poisoned<BFloat16>(plane);
    const KvRowStore store = {.kv_heads = c_.kv_heads,
                              .k = k_plane,
                              .v = v_plane,
                              .head_stride = kSlots * c_.head_dim,
                              .slots = {Up(c_.slots), c_.slots.size()}};
    finish_.store = &store;
    BFloat16* const out = Poisoned<BFloat16>(Elements());
    dense_.FinishQkv(x_, finish_, Normed(), {out, x_.rows, cols_, stride_});
    k = Down(k_plane, plane);
    v = Down(v_plane, plane);
    return Down(out, Elements());
  }

  // The rows by calls one after the other.
  std::vector<uint16_t> ByCalls() {
    MatrixView<const float> x = x_;
    if (finish_.norms != nullptr) {
      const MatrixView<float> normed = Normed();
      dense_.NormHeads(x, norms_, normed);
      x = normed;
    }
    BFloat16* const out = Poisoned<BFloat16>(Elements());
    dense_.RopeAndRound(x, finish_.heads, finish_.head_dim, finish_.table, finish_.positions,
                        {out, x.rows, cols_, stride_});
    return Down(out, Elements());
  }

  // A plane with the rows' heads from column `first` on in their slots, and nothing else.
  std::vector<uint16_t> Plane(const std::vector<uint16_t>& rows, size_t first) const {
    std::vector<uint16_t> plane(c_.kv_heads * kSlots * c_.head_dim, 0xffff);
    for (size_t row = 0; row < c_.slots.size(); ++row) {
      for (size_t i = 0; c_.slots[row] != kNoSlot && i < c_.kv_heads * c_.head_dim; ++i) {
        const size_t head = i / c_.head_dim;
        plane[(head * kSlots + c_.slots[row]) * c_.head_dim + i % c_.head_dim] =
            rows[row * stride_ + first + i];
      }
    }
    return plane;
  }
  size_t first_k() const { return size_t{c_.query_heads} * c_.head_dim; }
  size_t first_v() const { return first_k() + size_t{c_.kv_heads} * c_.head_dim; }

 private:
  size_t Elements() const { return x_.rows * stride_; }
  MatrixView<float> Normed() { return {Poisoned<float>(Elements()), x_.rows, cols_, stride_}; }

  template <typename T>
  T* Up(const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T) + 1);
    if (!values.empty()) {
      std::memcpy(bytes.data(), values.data(), values.size() * sizeof(T));
    }
    return reinterpret_cast<T*>(mover_.up(bytes));
  }
  template <typename T>
  T* Poisoned(size_t count) {
    return reinterpret_cast<T*>(
        mover_.up(std::vector<std::byte>(count * sizeof(T) + 1, std::byte{0xff})));
  }
  std::vector<uint16_t> Down(const BFloat16* from, size_t count) const {
    const std::vector<std::byte> bytes =
        mover_.down(reinterpret_cast<const std::byte*>(from), count * sizeof(uint16_t));
    std::vector<uint16_t> values(count);
    if (count > 0) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
    return values;
  }

  Dense& dense_;
  const FinishCase& c_;
  const Mover& mover_;
  const size_t cols_;
  const size_t stride_;
  MatrixView<const float> x_;
  HeadNorms norms_;
  QkvFinish finish_;
};

inline void CheckFinishQkv(Dense& dense, const FinishCase& c, const Mover& mover) {
  SCOPED_TRACE(c.name);
  FinishedRows rows(dense, c, mover);
  const std::vector<uint16_t> expected = rows.ByCalls();

  std::vector<uint16_t> k;
  std::vector<uint16_t> v;
  const std::vector<uint16_t> found = rows.InOneCall(k, v);

  EXPECT_EQ(found, expected);
  EXPECT_EQ(k, rows.Plane(expected, rows.first_k()));
  EXPECT_EQ(v, rows.Plane(expected, rows.first_v()));
}

}  // namespace lamina::kernels
