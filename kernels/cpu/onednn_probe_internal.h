// SPDX-License-Identifier: Apache-2.0
//
// The probe behind guarantee 6: which calls of oneDNN give a row the same bits whatever rows stand
// with it, on this processor, with the instruction sets that it was told to use, for one shape of
// weights?

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu/onednn_matmul_internal.h"
#include "kernels/cpu/row_pieces.h"

namespace lamina::kernels::cpu {

struct ProbedShape {
  std::string loop;  // oneDNN's name of it: "brg:avx512_core_bf16".
  RowPieces pieces;
};

// The layout of weights that calls of many rows ask for; all calls get it.
dnnl::memory::desc WeightsLayout(MatmulShape shape, DType compute_type, const dnnl::engine& engine);

// Multiplies random data of the shape (its rows mean nothing), in calls of many numbers of rows,
// and compares every row with that of the calls of which most agree. Takes some milliseconds: a few
// hundred rows of the product, and 0.2 ms for each call's primitive.
//
// Errors: kUnimplemented  the type is not supported, oneDNN takes another loop than a brgemm one,
// or
//                         RowPieces::Create() refuses; the message says which.
absl::StatusOr<ProbedShape> ProbeShape(const MatmulShape& shape, DType compute_type);

// Whether this processor multiplies the type in instructions of its own, so that a refusal costs
// speed: bf16 with AVX-512 BF16 or AMX, f32 with AVX-512.
bool HasFastLoop(DType compute_type);

// Whether oneDNN, which uses no more than `used` on a processor with tiles of bf16, is told to
// leave these alone (DNNL_MAX_CPU_ISA). Where the tiles have no products of INT8 it uses none of
// its own accord, and AVX-512 BF16 in their place; only less than that is then a sign.
bool HoldsTilesBack(dnnl::cpu_isa used, bool tiles_have_int8);

// What that says of this process. Requires: ProcessorHasTiles().
bool TilesAreHeldBack();

}  // namespace lamina::kernels::cpu
