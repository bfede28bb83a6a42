// SPDX-License-Identifier: Apache-2.0
#include "client/cli/plan_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "common/string_distance.h"
#include "common/units.h"
#include "model/model.h"

namespace lamina::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileBytesMax = 4 << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path, absl::string_view what) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  if (!file || fs::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat("cannot open the ", what, " '", path, "'"));
  }
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": larger than ", FormatBytes(kFileBytesMax), ", not a ", what));
  }
  return text;
}

std::string BuiltInCatalogue() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return (program.parent_path().parent_path() / "share/catalogues/default.yaml").string();
}

// `over`: the files that lie over this one, the user's first.
absl::StatusOr<cost::Catalogue> LoadCatalogueUnder(const std::string& file,
                                                   std::vector<fs::path> over) {
  LAMINA_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, "catalogue"));
  std::error_code error;
  const fs::path path = fs::canonical(file, error);
  if (std::find(over.begin(), over.end(), path) != over.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", file, "' lies over this file itself; a base leads to no file twice"));
  }
  over.push_back(path);
  return cost::ParseCatalogue(text, file, [&](const std::string& base) {
    const fs::path next = fs::path(file).parent_path() / base;
    return LoadCatalogueUnder(base == "default" ? BuiltInCatalogue() : next.string(), over);
  });
}

absl::StatusOr<cost::ModelShape> ShapeOfConfigFile(const fs::path& config) {
  LAMINA_ASSIGN_OR_RETURN(const std::string text, ReadFile(config.string(), "model's config.json"));
  absl::StatusOr<cost::ModelShape> shape =
      cost::ShapeFromConfigJson(text, fs::absolute(config).parent_path().filename().string());
  if (!shape.ok()) {
    return absl::Status(shape.status().code(),
                        absl::StrCat(config.string(), ": ", shape.status().message()));
  }
  return shape;
}

bool HasWeights(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") {
      return true;
    }
  }
  return false;
}

// Whether there is such a file, for --model. Errors: it cannot be told.
absl::StatusOr<bool> Exists(const fs::path& path, const std::string& model) {
  std::error_code error;
  const bool exists = fs::exists(path, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("--model: '", model, "'"));
  }
  return exists;
}

}  // namespace

absl::StatusOr<cost::Catalogue> LoadCatalogue(const std::string& path) {
  return LoadCatalogueUnder(path.empty() ? BuiltInCatalogue() : path, {});
}

absl::StatusOr<DeviceCalibration> LoadCalibration(const cost::Catalogue& catalogue,
                                                  const std::string& assignment) {
  const std::pair<std::string, std::string> pair =
      absl::StrSplit(assignment, absl::MaxSplits('=', 1));
  if (catalogue.FindDevice(pair.first) == nullptr || pair.second.empty()) {
    std::vector<std::string> names;
    for (const cost::Device& device : catalogue.devices) {
      names.push_back(device.name);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "--calibration: '", assignment,
        "' is not DEVICE=FILE with a device of the catalogue: ", absl::StrJoin(names, ", ")));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string text, ReadFile(pair.second, "calibration"));
  LAMINA_ASSIGN_OR_RETURN(cost::Calibration calibration, cost::ParseCalibration(text, pair.second));
  return DeviceCalibration{pair.first, std::move(calibration)};
}

absl::StatusOr<cost::ModelShape> LoadShape(const cost::Catalogue& catalogue,
                                           const std::string& model) {
  if (const cost::ModelShape* shape = catalogue.FindModel(model); shape != nullptr) {
    return *shape;
  }
  const fs::path path(model);
  LAMINA_ASSIGN_OR_RETURN(const bool exists, Exists(path, model));
  if (exists && path.filename() == "config.json") {
    return ShapeOfConfigFile(path);
  }
  LAMINA_ASSIGN_OR_RETURN(const bool has_config, Exists(path / "config.json", model));
  if (has_config && !HasWeights(path)) {
    return ShapeOfConfigFile(path / "config.json");
  }
  if (exists) {
    LAMINA_ASSIGN_OR_RETURN(const model::Model opened, model::OpenModel(model));
    return cost::ShapeOf(opened.config);
  }
  std::vector<std::string> names;
  for (const cost::ModelShape& shape : catalogue.models) {
    names.push_back(shape.name);
  }
  const std::string nearest = NearestName(model, names);
  return absl::NotFoundError(
      absl::StrCat("--model: '", model, "' is neither a file nor a model of the catalogue",
                   nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"),
                   " It has ", absl::StrJoin(names, ", ")));
}

}  // namespace lamina::cli
