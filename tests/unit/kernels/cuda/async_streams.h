// SPDX-License-Identifier: Apache-2.0
//
// Streams that work behind the caller's back while this lives: a device's always do, those of the
// emulation get threads. Each program that needs it defines it.

#pragma once

#include <memory>

namespace lamina::kernels::cuda {

std::shared_ptr<void> MakeStreamsAsync();

}  // namespace lamina::kernels::cuda
