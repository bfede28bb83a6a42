// SPDX-License-Identifier: Apache-2.0
//
// The name of a model that the cluster file gives none (gateway.model_names).

#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace lamina {

// What clients may call the model at `path`: the last part of the path, without the ending ".gguf",
// or "-00001-of-00003.gguf" of the first part of a split file.
// A snapshot in Hugging Face's cache, .../models--ORG--NAME/snapshots/HASH, is called NAME.
// Empty: of a path without parts, like "/", the path.
std::string ModelNameOf(absl::string_view path);

}  // namespace lamina
