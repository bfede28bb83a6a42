// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lamina {

// The version of programs and of the control protocol: nodes of another version are refused.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace lamina
