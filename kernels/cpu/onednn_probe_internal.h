// SPDX-License-Identifier: Apache-2.0
//
// The probe behind guarantee 6: does oneDNN, on this processor and with the instruction sets it was
// told to use, give a row the same bits whatever rows stand beside it?

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/dtype.h"

namespace lamina::kernels::cpu {

// Runs small random matmuls of several shapes with many row counts and compares each row with the
// same row computed alone. Takes some 20 ms.
//
// Returns the name of oneDNN's loop, "brg:avx512_core_bf16" say.
// Errors: kUnimplemented  the type is not supported, another loop than a brgemm one was chosen for
//                         some shape, or some row's bits differed; the message says which.
absl::StatusOr<std::string> ProbeOnednn(DType compute_type);

}  // namespace lamina::kernels::cpu
