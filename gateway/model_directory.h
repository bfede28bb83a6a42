// SPDX-License-Identifier: Apache-2.0
//
// ModelDirectory: which models are served, and under which names. Asks the coordinator, and
// remembers the answer for a while.
//
// Threading: the gateway's.

#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/backend.h"
#include "gateway/chat_shape.h"

namespace lamina::gateway {

struct ServedModel {
  client::ModelInfo info;
  std::vector<std::string> names;  // What clients may call it; the first is its own here.
  ChatShape shape;

  bool Has(absl::string_view name) const;
};

class ModelDirectory {
 public:
  // `names`: see ServedModel; with none of them, the coordinator's name alone.
  ModelDirectory(Backend& backend, std::vector<std::string> names, ShapeOptions shape = {})
      : backend_(backend), names_(std::move(names)), shape_(std::move(shape)) {}

  // Calls `done` now, if the answer is known, or later.
  // Errors: what ListModels gives.
  void Get(const std::function<void(const absl::StatusOr<ServedModel>& model)>& done);

 private:
  Backend& backend_;
  const std::vector<std::string> names_;
  const ShapeOptions shape_;
  ServedModel model_;
  std::chrono::steady_clock::time_point good_until_;
};

}  // namespace lamina::gateway
