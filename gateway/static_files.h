// SPDX-License-Identifier: Apache-2.0
//
// The files of gateway/static/, compiled in: the description of the API, the web page.

#pragma once

#include "absl/strings/string_view.h"

namespace lamina::gateway {

// Empty when there is no such file. `name` is relative to gateway/static/: "openapi.json".
absl::string_view StaticFile(absl::string_view name);

}  // namespace lamina::gateway
