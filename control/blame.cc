// SPDX-License-Identifier: Apache-2.0
#include "control/blame.h"

#include <utility>

#include "absl/strings/cord.h"

namespace lamina::control {
namespace {

constexpr char kMark[] = "lamina/blamed-node";

}  // namespace

absl::Status Blame(absl::Status status, absl::string_view node) {
  if (!status.ok() && !node.empty() && !status.GetPayload(kMark).has_value()) {
    status.SetPayload(kMark, absl::Cord(node));
  }
  return status;
}

absl::Status Blame(absl::Status status, const std::vector<std::string>& names, size_t index) {
  return index < names.size() ? Blame(std::move(status), names[index]) : status;
}

std::string BlamedIn(const absl::Status& status) {
  const auto node = status.GetPayload(kMark);
  return node.has_value() ? std::string(*node) : "";
}

}  // namespace lamina::control
