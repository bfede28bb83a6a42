// SPDX-License-Identifier: Apache-2.0
//
// The handles of libibverbs, one move-only owner each. Destroying one may call the kernel.

#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::transport {

struct VerbsDeleter {
  void operator()(ibv_context* context) const;
  void operator()(ibv_pd* domain) const;
  void operator()(ibv_cq* queue) const;
  void operator()(ibv_qp* pair) const;
  void operator()(ibv_mr* memory) const;
};

using VerbsContext = std::unique_ptr<ibv_context, VerbsDeleter>;
using VerbsDomain = std::unique_ptr<ibv_pd, VerbsDeleter>;
using VerbsCompletions = std::unique_ptr<ibv_cq, VerbsDeleter>;
using VerbsPair = std::unique_ptr<ibv_qp, VerbsDeleter>;
using VerbsMemory = std::unique_ptr<ibv_mr, VerbsDeleter>;

// Errors: kFailedPrecondition  no device of that name.
//         kPermissionDenied    its file may not be opened.
absl::StatusOr<VerbsContext> OpenVerbsDevice(const std::string& name);

// The status of a call that left `error` in errno; `what` was being done.
absl::Status VerbsError(absl::string_view what, int error);

// Errors: kResourceExhausted  the memlock limit, or the device, refuses; names `bytes` and the
// limit.
absl::StatusOr<VerbsMemory> RegisterVerbsMemory(ibv_pd* domain, void* address, size_t bytes,
                                                int access, absl::string_view name);

}  // namespace lamina::transport
