// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <array>

#include "common/check.h"
#include "kernels/cpu/onednn_matmul_internal.h"

namespace lamina::kernels::cpu {

using dnnl::memory;

SingleThreadedOpenMp::SingleThreadedOpenMp() : threads_before_(omp_get_max_threads()) {
  omp_set_num_threads(1);
}

SingleThreadedOpenMp::~SingleThreadedOpenMp() { omp_set_num_threads(threads_before_); }

memory::data_type OnednnType(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

dnnl::matmul::primitive_desc DescribeMatmul(const MatmulShape& shape, DType compute_type,
                                            const dnnl::engine& engine) {
  const memory::dims dims = {static_cast<memory::dim>(shape.inputs),
                             static_cast<memory::dim>(shape.features)};
  const memory::desc any(dims, OnednnType(compute_type), memory::format_tag::any);
  return DescribeMatmul(shape, compute_type, any, engine);
}

dnnl::matmul::primitive_desc DescribeMatmul(const MatmulShape& shape, DType compute_type,
                                            const memory::desc& weights,
                                            const dnnl::engine& engine) {
  const auto dim = [](size_t n) { return static_cast<memory::dim>(n); };
  const memory::data_type type = OnednnType(compute_type);
  const memory::desc in({dim(shape.rows), dim(shape.inputs)}, type, memory::format_tag::ab);
  const memory::desc out({dim(shape.rows), dim(shape.features)}, memory::data_type::f32,
                         memory::format_tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (!shape.bias) {
    return {dnnl::matmul::desc(in, weights, out), attributes, engine};
  }
  const memory::desc bias({1, dim(shape.features)}, memory::data_type::f32, memory::format_tag::ab);
  return {dnnl::matmul::desc(in, weights, bias, out), attributes, engine};
}

OnednnMatmul::OnednnMatmul(const MatmulShape& shape, DType compute_type,
                           const memory::desc& weights, const dnnl::engine& engine, size_t workers)
    : has_bias_(shape.bias), in_row_bytes_(shape.inputs * DTypeBytes(compute_type)) {
  const SingleThreadedOpenMp single;
  const dnnl::matmul::primitive_desc description =
      DescribeMatmul(shape, compute_type, weights, engine);
  primitive_ = dnnl::matmul(description);
  scratch_bytes_ = workers * description.scratchpad_desc().get_size();
  for (size_t worker = 0; worker < workers; ++worker) {
    buffers_.push_back({memory(description.src_desc(), engine, DNNL_MEMORY_NONE),
                        memory(description.dst_desc(), engine, DNNL_MEMORY_NONE),
                        memory(description.scratchpad_desc(), engine)});
  }
}

void OnednnMatmul::Run(size_t worker, const dnnl::stream& stream, const memory& weights,
                       const memory& bias, const void* in, float* out) const {
  const SingleThreadedOpenMp single;
  const Buffers& buffers = buffers_[worker];
  // The C calls: the C++ ones build a map for every call, and report errors by exception.
  LAMINA_CHECK(dnnl_memory_set_data_handle(buffers.in.get(), const_cast<void*>(in)) ==
               dnnl_success);
  LAMINA_CHECK(dnnl_memory_set_data_handle(buffers.out.get(), out) == dnnl_success);
  const std::array<dnnl_exec_arg_t, 5> arguments = {{
      {DNNL_ARG_SRC, buffers.in.get()},
      {DNNL_ARG_WEIGHTS, weights.get()},
      {DNNL_ARG_DST, buffers.out.get()},
      {DNNL_ARG_SCRATCHPAD, buffers.scratchpad.get()},
      {DNNL_ARG_BIAS, has_bias_ ? bias.get() : nullptr},
  }};
  const int count = has_bias_ ? 5 : 4;
  LAMINA_CHECK(dnnl_primitive_execute(primitive_.get(), stream.get(), count, arguments.data()) ==
               dnnl_success);
}

}  // namespace lamina::kernels::cpu
