// SPDX-License-Identifier: Apache-2.0
//
// MatrixView: rows of a row-major matrix that somebody else owns. A row is one token.

#pragma once

#include <cstddef>

namespace lamina::kernels {

template <typename T>
struct MatrixView {
  T* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;  // Elements between the starts of two rows; >= cols.

  T* row(size_t i) const { return data + i * stride; }
  MatrixView Rows(size_t first, size_t count) const { return {row(first), count, cols, stride}; }
  MatrixView Cols(size_t first, size_t count) const { return {data + first, rows, count, stride}; }
  // NOLINTNEXTLINE(google-explicit-constructor): a view of mutable data is a view of constant data.
  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }
};

template <typename T>
MatrixView<T> Packed(T* data, size_t rows, size_t cols) {
  return {data, rows, cols, cols};
}

}  // namespace lamina::kernels
