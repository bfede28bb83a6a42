// SPDX-License-Identifier: Apache-2.0
//
// The files that `lamina plan` reads: a catalogue, calibrations, and a model.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cost/calibration.h"
#include "cost/catalogue.h"

namespace lamina::cli {

// The catalogue at `path`; if it is empty, the one that lies next to the programs
// (share/catalogues/default.yaml). A base is that one ("default") or a file, by its path from the
// folder of the file that names it.
// Errors: kNotFound for a file that is not there; those of cost::ParseCatalogue(); for a base
// kInvalidArgument, also where a file is its own base in the end.
absl::StatusOr<cost::Catalogue> LoadCatalogue(const std::string& path);

// "DEVICE=FILE": a calibration for a device of the catalogue.
// Errors: kInvalidArgument where there is no such device or the text is another; kNotFound.
struct DeviceCalibration {
  std::string device;
  cost::Calibration calibration;
};
absl::StatusOr<DeviceCalibration> LoadCalibration(const cost::Catalogue& catalogue,
                                                  const std::string& assignment);

// A model of the catalogue by name, or from a GGUF file, a Hugging Face folder, or a config.json
// without weights (the file, or its folder).
// Errors: kNotFound where it is none of these, with the nearest name of the catalogue; the system's
// where it cannot be told.
absl::StatusOr<cost::ModelShape> LoadShape(const cost::Catalogue& catalogue,
                                           const std::string& model);

}  // namespace lamina::cli
