// SPDX-License-Identifier: Apache-2.0
//
// Mixtures of experts on the processor: which experts a row goes to, and their layers over the rows
// that come to each.
//
// A row's bits depend on that row and the weights alone: its experts and their weights come from
// its own scores; an expert's layers are Dense's, which are row-invariant; the products of a row
// are summed in ascending order of expert. No row is dropped, whatever goes to one expert.
//
// Threading: one caller at a time per ExpertLayers; Dense's threads run the layers.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "kernels/dense.h"
#include "kernels/matrix_view.h"

namespace lamina::kernels {

enum class RouteKind : uint8_t {
  kSoftmax,            // Softmax over all experts; the chosen ones keep their shares,
  kSoftmaxNormalised,  // divided by their sum.
  kChosenSoftmax,      // Softmax over the chosen ones alone.
};

// The `chosen` experts with the highest scores; of equal ones those with the lower ids, and a NaN
// is below all. Shapes: scores  [rows, experts]
//         out     [rows, 2 * chosen]: ids, ascending, then their weights in the same order
// Requires: 0 < chosen <= experts < 2^24.
void RouteRows(RouteKind kind, MatrixView<const float> scores, size_t chosen,
               MatrixView<float> out);

// The layers of one expert.
// Shapes: gate_up  [2 * hidden, in], all of gate before all of up
//         down     [out, hidden]
struct Expert {
  std::unique_ptr<PackedLinear> gate_up;
  std::unique_ptr<PackedLinear> down;
};

struct ExpertsTask {
  absl::Span<const Expert> experts;
  size_t chosen = 0;  // Experts of a row.
  size_t hidden = 0;
  Activation activation = Activation::kSilu;
  ActivationView in;              // [rows, in], compute type
  MatrixView<const float> route;  // [rows, 2 * chosen], of RouteRows()
  MatrixView<float> out;          // [rows, out]
};

// What experts of a layer have in common.
struct ExpertsShape {
  size_t in = 0;
  size_t hidden = 0;
  size_t out = 0;
  size_t chosen = 0;  // Experts of a row.
  DType dtype = DType::kBF16;
};

class ExpertLayers {
 public:
  // The most rows that the products of one expert, or of several that are taken together, have
  // where there are `rows` rows; and the bytes that Run() allocates for these at most.
  static size_t RowsTogetherMax(size_t rows, size_t chosen) {
    return std::max(rows, std::min(kRowsTogether, rows * chosen));
  }
  static uint64_t BytesMax(const ExpertsShape& shape, size_t rows);

  // out[r] = sum over the row's experts e, ascending, of weight_e * down_e(act(gate_up_e(in[r]))).
  // Experts are taken together, so that threads do not wait for each other behind every small
  // product, as long as they have kRowsTogether rows at most.
  // Cost: the weights of every expert that some row goes to are read once for up to 64 of its rows.
  // Allocation: scratch for kRowsTogether rows, or the most that one expert has had.
  void Run(const ExpertsTask& task, Dense& dense);

 private:
  static constexpr size_t kRowsTogether = 512;

  // Runs experts [first, last).
  void RunExperts(const ExpertsTask& task, size_t first, size_t last, Dense& dense);
  void Gather(const ExpertsTask& task, size_t begin, size_t end);
  void AddUp(const ExpertsTask& task, size_t begin, size_t end) const;
  void ListRows(const ExpertsTask& task);

  // Rows by expert: those of expert e are rows_[first_[e]], ..., with their weights.
  std::vector<uint32_t> first_;  // [experts + 1]
  std::vector<uint32_t> rows_;
  std::vector<float> weights_;
  // Values of the rows of experts that are taken together, by expert.
  std::vector<std::byte> in_;         // [rows, in]
  std::vector<float> gate_up_;        // [rows, 2 * hidden]
  std::vector<std::byte> activated_;  // [rows, hidden]
  std::vector<float> down_;           // [rows, out]
  std::vector<LinearPart> gate_up_parts_;
  std::vector<LinearPart> down_parts_;
};

}  // namespace lamina::kernels
