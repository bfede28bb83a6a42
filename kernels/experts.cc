// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/check.h"

namespace lamina::kernels {
namespace {

// A NaN scores below all, so that ids stay within the experts.
float ScoreOf(float x) { return std::isnan(x) ? -std::numeric_limits<float>::infinity() : x; }

// The weights of `ids`, in double; the caller rounds.
void Weigh(RouteKind kind, absl::Span<const float> scores, float* ids, size_t chosen) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float score : scores) {
    largest = std::max(largest, ScoreOf(score));
  }
  double all = 0;
  for (size_t expert = 0; expert < scores.size() && kind == RouteKind::kSoftmax; ++expert) {
    all += std::exp(double{scores[expert]} - double{largest});
  }
  double sum = 0;
  for (size_t i = 0; i < chosen; ++i) {
    sum += std::exp(double{scores[static_cast<size_t>(ids[i])]} - double{largest});
  }
  for (size_t i = 0; i < chosen; ++i) {
    const double part = std::exp(double{scores[static_cast<size_t>(ids[i])]} - double{largest});
    ids[chosen + i] = static_cast<float>(part / (kind == RouteKind::kSoftmax ? all : sum));
  }
}

}  // namespace

void RouteRows(RouteKind kind, MatrixView<const float> scores, size_t chosen,
               MatrixView<float> out) {
  LAMINA_CHECK(chosen > 0 && chosen <= scores.cols && out.cols == 2 * chosen);
  LAMINA_CHECK(scores.rows == out.rows && scores.cols < (size_t{1} << 24));
  std::vector<uint32_t> order(scores.cols);
  for (size_t row = 0; row < scores.rows; ++row) {
    const float* const score = scores.row(row);
    for (uint32_t expert = 0; expert < order.size(); ++expert) {
      order[expert] = expert;
    }
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(chosen);
    std::partial_sort(order.begin(), end, order.end(), [score](uint32_t a, uint32_t b) {
      const float of_a = ScoreOf(score[a]);
      const float of_b = ScoreOf(score[b]);
      return of_a > of_b || (of_a == of_b && a < b);
    });
    std::sort(order.begin(), end);
    std::transform(order.begin(), end, out.row(row),
                   [](uint32_t id) { return static_cast<float>(id); });
    Weigh(kind, {score, scores.cols}, out.row(row), chosen);
  }
}

uint64_t ExpertLayers::BytesMax(const ExpertsShape& shape, size_t rows) {
  const uint64_t of_row = (shape.in + shape.hidden) * DTypeBytes(shape.dtype) +
                          (2 * shape.hidden + shape.out) * sizeof(float);
  return RowsTogetherMax(rows, shape.chosen) * of_row +
         rows * shape.chosen * (sizeof(uint32_t) + sizeof(float));
}

void ExpertLayers::ListRows(const ExpertsTask& task) {
  first_.assign(task.experts.size() + 1, 0);
  for (size_t row = 0; row < task.route.rows; ++row) {
    for (size_t i = 0; i < task.chosen; ++i) {
      const auto expert = static_cast<size_t>(task.route.row(row)[i]);
      LAMINA_CHECK(expert < task.experts.size());
      ++first_[expert + 1];
    }
  }
  for (size_t expert = 0; expert < task.experts.size(); ++expert) {
    first_[expert + 1] += first_[expert];
  }
  rows_.resize(first_.back());
  weights_.resize(first_.back());
  std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
  for (size_t row = 0; row < task.route.rows; ++row) {
    const float* const route = task.route.row(row);
    for (size_t i = 0; i < task.chosen; ++i) {
      const uint32_t place = next[static_cast<size_t>(route[i])]++;
      rows_[place] = static_cast<uint32_t>(row);
      weights_[place] = route[task.chosen + i];
    }
  }
}

void ExpertLayers::Run(const ExpertsTask& task, Dense& dense) {
  LAMINA_CHECK(task.route.cols == 2 * task.chosen && task.route.rows == task.in.rows);
  LAMINA_CHECK(task.out.rows == task.in.rows);
  ListRows(task);
  for (size_t row = 0; row < task.out.rows; ++row) {
    std::fill_n(task.out.row(row), task.out.cols, 0.0f);
  }
  for (size_t first = 0; first < task.experts.size();) {
    size_t last = first + 1;
    while (last < task.experts.size() && first_[last + 1] - first_[first] <= kRowsTogether) {
      ++last;
    }
    RunExperts(task, first, last, dense);
    first = last;
  }
}

void ExpertLayers::Gather(const ExpertsTask& task, size_t begin, size_t end) {
  const size_t element = DTypeBytes(task.in.dtype);
  const size_t row_bytes = task.in.cols * element;
  in_.resize(std::max(in_.size(), (end - begin) * row_bytes));
  for (size_t i = begin; i < end; ++i) {
    std::memcpy(
        in_.data() + (i - begin) * row_bytes,
        static_cast<const std::byte*>(task.in.data) + size_t{rows_[i]} * task.in.stride * element,
        row_bytes);
  }
}

void ExpertLayers::RunExperts(const ExpertsTask& task, size_t first, size_t last, Dense& dense) {
  const size_t begin = first_[first];
  const size_t rows = first_[last] - begin;
  if (rows == 0) {
    return;
  }
  const DType dtype = task.in.dtype;
  Gather(task, begin, begin + rows);
  gate_up_.resize(std::max(gate_up_.size(), rows * 2 * task.hidden));
  activated_.resize(std::max(activated_.size(), rows * task.hidden * DTypeBytes(dtype)));
  down_.resize(std::max(down_.size(), rows * task.out.cols));
  const ActivationView in = {in_.data(), rows, task.in.cols, task.in.cols, dtype};
  const ActivationView activated = {activated_.data(), rows, task.hidden, task.hidden, dtype};
  const MatrixView<float> gate_up = Packed(gate_up_.data(), rows, 2 * task.hidden);
  const MatrixView<float> down = Packed(down_.data(), rows, task.out.cols);
  gate_up_parts_.clear();
  down_parts_.clear();
  for (size_t expert = first; expert < last; ++expert) {
    const size_t row = first_[expert] - begin;
    const size_t count = first_[expert + 1] - first_[expert];
    if (count != 0) {
      const Expert& weights = task.experts[expert];
      gate_up_parts_.push_back(
          {weights.gate_up.get(), in.Rows(row, count), gate_up.Rows(row, count)});
      down_parts_.push_back(
          {weights.down.get(), activated.Rows(row, count), down.Rows(row, count)});
    }
  }
  dense.LinearEach(gate_up_parts_);
  dense.GatedActivation(task.activation, gate_up, activated);
  dense.LinearEach(down_parts_);
  AddUp(task, begin, begin + rows);
}

// A row's experts come in ascending order, over all calls.
void ExpertLayers::AddUp(const ExpertsTask& task, size_t begin, size_t end) const {
  for (size_t i = begin; i < end; ++i) {
    const float* const from = down_.data() + (i - begin) * task.out.cols;
    float* const out = task.out.row(rows_[i]);
    for (size_t col = 0; col < task.out.cols; ++col) {
      out[col] += weights_[i] * from[col];
    }
  }
}

}  // namespace lamina::kernels
