// SPDX-License-Identifier: Apache-2.0
//
// QueryRows: how queries that the data thread serves are reached in their windows: in the host's
// memory, or in the device's, where rows stay, headers come to the host, and outputs leave from the
// device. See: docs/adr/0086-query-windows-in-device-memory.md.
//
// Threading: the data thread. Allocation: none.

#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "memory_node/node_epoch.h"
#include "plan/window_layout.h"

namespace lamina::memory_node {

// Windows are named by their offset in the region. Errors: those of the region and of the device.
class QueryRows {
 public:
  virtual ~QueryRows() = default;

  // Whether a header had better come during the first rows' attention: a trip for it alone would
  // cost as much as that of the outputs.
  virtual bool header_comes_with_rows() const = 0;

  // The header that lies in a window now.
  virtual absl::StatusOr<plan::WindowHeader> ReadHeader(size_t window) = 0;

  // A piece is here: from byte `from` on the window's rows are there for the device. From 0 on, the
  // header too is on its way to the host.
  virtual absl::Status Land(size_t window, size_t from) = 0;

  // The device is done with rows that have landed, and settled_header() is there if it was asked
  // for. Call before anything is answered.
  virtual absl::Status Settle() = 0;
  virtual plan::WindowHeader settled_header() const = 0;

  // Memory of the device that outputs are put from; empty where they leave from the host's.
  virtual absl::Span<std::byte> replies() const = 0;
};

// References must outlive the result.
std::unique_ptr<QueryRows> RowsInHostMemory(const NodeEpoch& epoch);

// `replies` has a reply window for each part and outlives the transport. Errors: the device's.
absl::StatusOr<std::unique_ptr<QueryRows>> RowsInDeviceMemory(const NodeEpoch& epoch,
                                                              absl::Span<std::byte> replies);

}  // namespace lamina::memory_node
