// SPDX-License-Identifier: Apache-2.0
#include "bench/onednn_peer.h"

#include <omp.h>

#include <dnnl.hpp>

#include "common/thread_pool.h"

namespace lamina::bench {
namespace {

using dnnl::memory;

class Peer final : public OnednnPeer {
 public:
  Peer(const PeerShape& shape, DType dtype, const void* weights, size_t threads)
      : threads_(static_cast<int>(threads)), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    omp_set_num_threads(threads_);
    const auto dim = [](size_t n) { return static_cast<memory::dim>(n); };
    const auto type = dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc in({dim(shape.rows), dim(shape.inputs)}, type, memory::format_tag::ab);
    const memory::desc any({dim(shape.inputs), dim(shape.features)}, type, memory::format_tag::any);
    const memory::desc out({dim(shape.rows), dim(shape.features)}, memory::data_type::f32,
                           memory::format_tag::ab);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(in, any, out), engine_);
    matmul_ = dnnl::matmul(description);
    memory plain({{dim(shape.inputs), dim(shape.features)}, type, memory::format_tag::ba}, engine_,
                 const_cast<void*>(weights));
    weights_ = memory(description.weights_desc(), engine_);
    dnnl::reorder(plain, weights_).execute(stream_, plain, weights_);
    in_ = memory(in, engine_, DNNL_MEMORY_NONE);
    out_ = memory(out, engine_, DNNL_MEMORY_NONE);
    arguments_ = {{DNNL_ARG_SRC, in_}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, out_}};
  }

  void Run(const void* in, float* out) override {
    omp_set_num_threads(threads_);
    in_.set_data_handle(const_cast<void*>(in));
    out_.set_data_handle(out);
    matmul_.execute(stream_, arguments_);
  }

 private:
  int threads_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  memory weights_;
  memory in_;
  memory out_;
  std::unordered_map<int, memory> arguments_;
};

}  // namespace

void OnednnPeer::PinThreads(const std::vector<int>& cores) {
  if (cores.empty()) {
    return;
  }
  omp_set_num_threads(static_cast<int>(cores.size()));
#pragma omp parallel
  PinThisThread({cores[static_cast<size_t>(omp_get_thread_num())]});
}

std::unique_ptr<OnednnPeer> OnednnPeer::Create(const PeerShape& shape, DType dtype,
                                               const void* weights, size_t threads) {
  try {
    return std::make_unique<Peer>(shape, dtype, weights, threads);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

}  // namespace lamina::bench
