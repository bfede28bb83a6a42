// SPDX-License-Identifier: Apache-2.0
#include "compute_node/own_slices.h"

#include <algorithm>
#include <numeric>

#include "absl/types/span.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace lamina::compute_node {
namespace {

// Slice 0 is left out where there is another one.
SliceRange RunIn(const SliceExecutor& executor, SliceRange range) {
  range.end = std::min(range.end, executor.slice_count() - 1);
  LAMINA_CHECK(range.first < range.end);
  if (range.first == 0 && range.end > 1) {
    range.first = 1;
  }
  return range;
}

}  // namespace

OwnSlices::OwnSlices(SliceExecutor& executor, const SliceRange& range)
    : executor_(executor), range_(RunIn(executor, range)), next_(range_.first) {}

absl::Status OwnSlices::Prepare(size_t rows_max) {
  LAMINA_CHECK(rows_max <= LmHead::kRows);
  LAMINA_RETURN_IF_ERROR(executor_.Prepare(rows_max));
  LAMINA_ASSIGN_OR_RETURN(buffers_, executor_.MakeBuffers(rows_max));
  LAMINA_ASSIGN_OR_RETURN(tail_, executor_.head().MakeBuffers());
  part_.resize(rows_max * executor_.program().PartRowBytesMax());
  parts_.assign(range_.shards, reinterpret_cast<const float*>(part_.data()));
  row_ids_.resize(rows_max);
  std::iota(row_ids_.begin(), row_ids_.end(), 0);
  zeros_.assign(rows_max, 0);
  if (const absl::Status captured = executor_.Capture(rows_max, buffers_); !captured.ok()) {
    LogWarning("slices are measured op by op, since they cannot be captured: ", captured.message());
  }
  return absl::OkStatus();
}

absl::Status OwnSlices::SetRows(size_t rows) {
  rows_ = rows;
  const auto zeros = absl::MakeConstSpan(zeros_).first(rows);
  return executor_.SetRows({.token_ids = zeros, .positions = zeros}, buffers_);
}

absl::Status OwnSlices::RunNext() {
  const uint32_t slice = next_;
  next_ = slice + 1 < range_.end ? slice + 1 : range_.first;
  LAMINA_RETURN_IF_ERROR(RunBody(slice));
  executor_.RunAfterSend(slice, buffers_);
  return absl::OkStatus();
}

absl::Status OwnSlices::RunTail() {
  const LmHead& head = executor_.head();
  if (executor_.reduces()) {  // Else the head begins behind the last attention.
    LAMINA_RETURN_IF_ERROR(RunBody(executor_.slice_count() - 1));
  }
  if (range_.head) {
    head.Begin(buffers_, absl::MakeConstSpan(row_ids_).first(rows_), tail_);
    for (size_t column = 0; column < head.width();) {
      column = head.Run(rows_, column, tail_);
    }
  }
  return absl::OkStatus();
}

// Ops up to where q, k and v are complete, of the last slice its body, with the sums between them.
absl::Status OwnSlices::RunBody(uint32_t slice) {
  const size_t end = executor_.OpsEnd(slice);
  for (size_t from = 0; from < end;) {
    const size_t reduce = executor_.NextReduce(slice, from);
    if (reduce < end) {
      executor_.sums().Place(slice, reduce, part_.data(), buffers_);
    }
    executor_.Run(slice, from, reduce, buffers_);
    if (reduce < end) {
      LAMINA_RETURN_IF_ERROR(RunSum(slice, reduce));
    }
    from = reduce + 1;
  }
  return absl::OkStatus();
}

absl::Status OwnSlices::RunSum(uint32_t slice, size_t reduce) {
  LAMINA_RETURN_IF_ERROR(executor_.PartToHost(slice, reduce, rows_, buffers_));
  executor_.sums().Sum(slice, reduce, parts_, rows_, buffers_);
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
