// SPDX-License-Identifier: Apache-2.0
//
// OnednnMatmul: one oneDNN matmul of a fixed shape, run by one thread at a time of several.
//
// oneDNN would like to own the threads: its Debian build is on OpenMP, whose workers spin after
// every call. So every primitive here is made for, and runs on, the thread that calls it, and the
// ThreadPool of the caller is the only parallelism. That also takes the thread count out of
// oneDNN's choice of blocking, and with it out of the bits.
//
// Exceptions of oneDNN leave this header; its users catch dnnl::error.

#pragma once

#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "common/dtype.h"

namespace lamina::kernels::cpu {

// Makes OpenMP a team of one on this thread for as long as it lives.
class SingleThreadedOpenMp {
 public:
  SingleThreadedOpenMp();
  ~SingleThreadedOpenMp();
  SingleThreadedOpenMp(const SingleThreadedOpenMp&) = delete;
  SingleThreadedOpenMp& operator=(const SingleThreadedOpenMp&) = delete;

 private:
  int threads_before_;
};

// Rows lie one after the other, in and out: given a stride, oneDNN takes a loop that is not
// row-invariant.
struct MatmulShape {
  size_t rows = 0;
  size_t inputs = 0;
  size_t features = 0;
  bool bias = false;
  friend bool operator<(const MatmulShape& a, const MatmulShape& b) {
    return std::tie(a.rows, a.inputs, a.features, a.bias) <
           std::tie(b.rows, b.inputs, b.features, b.bias);
  }
};

dnnl::memory::data_type OnednnType(DType dtype);

// What oneDNN would run for the shape; weights in the format it asks for, or in `weights`.
dnnl::matmul::primitive_desc DescribeMatmul(const MatmulShape& shape, DType compute_type,
                                            const dnnl::engine& engine);
dnnl::matmul::primitive_desc DescribeMatmul(const MatmulShape& shape, DType compute_type,
                                            const dnnl::memory::desc& weights,
                                            const dnnl::engine& engine);

class OnednnMatmul {
 public:
  OnednnMatmul(const MatmulShape& shape, DType compute_type, const dnnl::memory::desc& weights,
               const dnnl::engine& engine, size_t workers);

  size_t in_row_bytes() const { return in_row_bytes_; }
  uint64_t scratch_bytes() const { return scratch_bytes_; }  // What oneDNN has, of all workers.

  // Threading: any thread, `worker` naming it uniquely. Does not allocate.
  // Shapes: in [rows, inputs] compute type, out [rows, features] f32.
  void Run(size_t worker, const dnnl::stream& stream, const dnnl::memory& weights,
           const dnnl::memory& bias, const void* in, float* out) const;

 private:
  struct Buffers {
    dnnl::memory in;
    dnnl::memory out;
    dnnl::memory scratchpad;
  };

  dnnl::matmul primitive_;
  bool has_bias_;
  size_t in_row_bytes_;
  uint64_t scratch_bytes_ = 0;
  std::vector<Buffers> buffers_;  // [workers]
};

}  // namespace lamina::kernels::cpu
