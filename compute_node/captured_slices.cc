// SPDX-License-Identifier: Apache-2.0
#include "compute_node/captured_slices.h"

#include <algorithm>

#include "common/status_macros.h"

namespace lamina::compute_node {

absl::Status CapturedSlices::Capture(const Work& work, kernels::ComputeDevice& device) {
  if (device.is_host() || work.rows_max == 0) {
    return absl::OkStatus();
  }
  for (const size_t rows : kRows) {
    rows_.push_back(std::min(rows, work.rows_limit));
    if (rows_.back() >= std::min(work.rows_max, work.rows_limit)) {
      break;
    }
  }
  ranges_ = work.ranges;
  captured_.resize(ranges_.size() * rows_.size());
  absl::Status status = CaptureRanges(work, device);
  if (!status.ok() || count() == 0) {
    *this = CapturedSlices();
  }
  return status;
}

absl::Status CapturedSlices::CaptureRanges(const Work& work, kernels::ComputeDevice& device) {
  size_t place = 0;
  for (const OpRange& range : ranges_) {
    const bool runs = work.has_weights(range);
    if (runs) {  // Once, so that all its kernels are loaded.
      work.run(range, 1);
    }
    for (const size_t rows : rows_) {
      if (runs) {
        LAMINA_ASSIGN_OR_RETURN(captured_[place], device.Capture([&] { work.run(range, rows); }));
      }
      ++place;
    }
  }
  return device.Synchronize();
}

kernels::CapturedGraph* CapturedSlices::Find(const OpRange& range, size_t rows) const {
  const auto count = std::lower_bound(rows_.begin(), rows_.end(), rows);
  if (count == rows_.end()) {
    return nullptr;
  }
  const auto found = std::find(ranges_.begin(), ranges_.end(), range);
  if (found == ranges_.end()) {
    return nullptr;
  }
  const auto place = static_cast<size_t>(found - ranges_.begin()) * rows_.size() +
                     static_cast<size_t>(count - rows_.begin());
  return captured_[place].get();
}

size_t CapturedSlices::RowsComputed(size_t count) const {
  const auto next = std::lower_bound(rows_.begin(), rows_.end(), count);
  return next == rows_.end() ? count : *next;
}

size_t CapturedSlices::count() const {
  return static_cast<size_t>(std::count_if(captured_.begin(), captured_.end(),
                                           [](const auto& work) { return work != nullptr; }));
}

}  // namespace lamina::compute_node
