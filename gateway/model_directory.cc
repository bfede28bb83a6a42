// SPDX-License-Identifier: Apache-2.0
#include "gateway/model_directory.h"

#include <algorithm>

namespace lamina::gateway {
namespace {

// A coordinator may come back with another model.
constexpr auto kGoodFor = std::chrono::seconds(5);

}  // namespace

bool ServedModel::Has(absl::string_view name) const {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void ModelDirectory::Get(
    const std::function<void(const absl::StatusOr<ServedModel>& model)>& done) {
  if (std::chrono::steady_clock::now() < good_until_) {
    done(model_);
    return;
  }
  backend_.ListModels([this, done](const absl::StatusOr<std::vector<client::ModelInfo>>& models) {
    if (!models.ok()) {
      done(models.status());
      return;
    }
    if (models->empty()) {
      done(absl::UnavailableError("the coordinator serves no model"));
      return;
    }
    ChatShape shape(models->front(), shape_);
    model_ = {.info = models->front(), .names = names_, .shape = std::move(shape)};
    if (!model_.Has(model_.info.id)) {
      model_.names.push_back(model_.info.id);
    }
    good_until_ = std::chrono::steady_clock::now() + kGoodFor;
    done(model_);
  });
}

}  // namespace lamina::gateway
