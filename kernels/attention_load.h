// SPDX-License-Identifier: Apache-2.0
//
// AttentionLoad: attention over K and V of a few sequences on a device, to measure how many bytes
// of them a second it reads, by the device's own clock.
//
// Threading: one thread, which it is made by.
// Memory:    K and V of the size that is asked for, and a few rows.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/attention_descriptor.h"
#include "common/extent.h"
#include "kernels/kv_device.h"

namespace lamina::kernels {

struct AttentionLoadOptions {
  std::vector<AttentionDescriptor> layers;
  // K and V that are attended over: more than caches keep.
  uint64_t kv_bytes = uint64_t{96} << 20;
  // Layers of one kind attend over the same K and V, so that there is more of it for each, and a
  // call reads enough to keep a GPU busy. Else each layer has its own.
  bool share_kinds = false;
  AttentionArithmetic arithmetic = AttentionArithmetic::kCanonical;
};

class AttentionLoad {
 public:
  // Memory that the device takes rows from, and leaves outputs in.
  using Allocate = std::function<absl::StatusOr<std::shared_ptr<std::byte>>(size_t)>;

  // With rows in the host's memory, unless `allocate` gives others. Errors: those of both.
  static absl::StatusOr<std::unique_ptr<AttentionLoad>> Create(const AttentionLoadOptions& options,
                                                               const KvDeviceMaker& make,
                                                               const Allocate& allocate = nullptr);
  AttentionLoad(const AttentionLoad&) = delete;
  AttentionLoad& operator=(const AttentionLoad&) = delete;

  // Attends the next layer; bytes of K and V a second. Errors: the device's.
  absl::StatusOr<double> AttendTimed();

  // The median of calls, after one that is not timed, until `done` says so. Errors: the device's.
  absl::StatusOr<double> Rate(absl::FunctionRef<bool()> done);

 private:
  static constexpr uint32_t kSequences = 8;

  explicit AttentionLoad(const AttentionLoadOptions& options);
  absl::Status MakeItems(const Allocate& allocate);
  absl::StatusOr<uint64_t> Attend();

  std::vector<AttentionDescriptor> layers_;  // Those that have K and V,
  std::vector<uint32_t> turns_;              // and which of them each of the model's layers is.
  uint32_t tokens_ = 1;                      // Context of each sequence.
  std::shared_ptr<std::byte> queries_;
  std::shared_ptr<std::byte> outputs_;
  std::array<Extent, kSequences> extents_;
  std::vector<AttentionItem> items_;
  std::unique_ptr<KvDevice> device_;
  size_t next_ = 0;
};

}  // namespace lamina::kernels
