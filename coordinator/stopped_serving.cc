// SPDX-License-Identifier: Apache-2.0
#include "coordinator/stopped_serving.h"

#include "absl/strings/cord.h"

namespace lamina::coordinator {
namespace {

constexpr char kPayload[] = "lamina/stopped_serving";

}  // namespace

absl::Status StoppedServing(absl::Status status) {
  status.SetPayload(kPayload, absl::Cord());
  return status;
}

bool HasStoppedServing(const absl::Status& status) {
  return status.GetPayload(kPayload).has_value();
}

}  // namespace lamina::coordinator
