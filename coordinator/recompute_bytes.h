// SPDX-License-Identifier: Apache-2.0
//
// What a token has in a layer as K and V, or as what these are made of again.
//
// Threading: pure functions.

#pragma once

#include "coordinator/core/fetch_planning.h"
#include "coordinator/engine_options.h"

namespace lamina::coordinator {

// Bytes of a token in a layer, and what windows have room for.
core::RecomputeBytes RecomputeBytesOf(const FetchOptions& fetch, const EngineOptions& options);

}  // namespace lamina::coordinator
