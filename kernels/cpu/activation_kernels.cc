// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/cpu/row_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
#include "kernels/cpu/row_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::cpu {
namespace HWY_NAMESPACE {

// What the gate is multiplied by: for most activations `up` itself.
struct PlainUp {
  HWY_INLINE V Up(V up) const { return up; }
};

struct Relu : PlainUp {
  // Written so that NaN stays NaN.
  HWY_INLINE V operator()(V x) const {
    return hn::IfThenElse(hn::Lt(x, hn::Zero(Floats())), hn::Zero(Floats()), x);
  }
};

struct Silu : PlainUp {
  HWY_INLINE V operator()(V x) const {
    return hn::Div(x, hn::Add(Constant(1.0f), Exp(hn::Neg(x))));
  }
};

struct GeluErf : PlainUp {
  // x/2 erfc(-x / sqrt 2), by erfc of the magnitude, which loses no digits on either side.
  HWY_INLINE V operator()(V x) const {
    const V tail = ErfcOfPositive(hn::Mul(hn::Abs(x), Constant(0.70710678f)));
    const V upper = hn::NegMulAdd(Constant(0.5f), tail, Constant(1.0f));
    const V lower = hn::Mul(Constant(0.5f), tail);
    return hn::Mul(x, hn::IfThenElse(hn::Lt(x, hn::Zero(Floats())), lower, upper));
  }
};

struct GeluTanh : PlainUp {
  // (1 + tanh y) / 2 is 1 / (1 + exp(-2y)).
  HWY_INLINE V operator()(V x) const {
    const V cubic = hn::MulAdd(hn::Mul(hn::Mul(x, x), x), Constant(0.044715f), x);
    const V minus_2y = hn::Mul(cubic, Constant(-1.59576912f));  // -2 sqrt(2 / pi)
    return hn::Div(x, hn::Add(Constant(1.0f), Exp(minus_2y)));
  }
};

struct ClampedSwiglu {
  // Comparisons, so that NaN stays NaN.
  static HWY_INLINE V AtMost(V x, V most) { return hn::IfThenElse(hn::Gt(x, most), most, x); }
  HWY_INLINE V operator()(V x) const {
    const V gate = AtMost(x, Constant(7.0f));
    return hn::Div(gate, hn::Add(Constant(1.0f), Exp(hn::Mul(Constant(-1.702f), gate))));
  }
  HWY_INLINE V Up(V x) const {
    const V least = Constant(-7.0f);
    const V up = AtMost(x, Constant(7.0f));
    return hn::Add(hn::IfThenElse(hn::Lt(up, least), least, up), Constant(1.0f));
  }
};

template <class Function, class Out>
HWY_INLINE void Rows(const ActivationTask& task) {
  const Function function;
  for (size_t i = 0; i < task.out.rows; ++i) {
    const float* gate = task.gate.row(i);
    Out* out = static_cast<Out*>(task.out.data) + i * task.out.stride;
    if (task.up == nullptr) {
      MapRow(gate, gate, out, task.out.cols, 0.0f, [&](V x, V) { return function(x); });
    } else {
      MapRow(gate, task.up + i * task.gate.stride, out, task.out.cols, 0.0f,
             [&](V x, V up) { return hn::Mul(function(x), function.Up(up)); });
    }
  }
}

template <class Function>
HWY_INLINE void RowsOfType(const ActivationTask& task) {
  task.out.dtype == DType::kF32 ? Rows<Function, float>(task) : Rows<Function, BFloat16>(task);
}

void Activate(const ActivationTask& task) {
  switch (task.activation) {
    case Activation::kRelu:
      return RowsOfType<Relu>(task);
    case Activation::kSilu:
      return RowsOfType<Silu>(task);
    case Activation::kGeluErf:
      return RowsOfType<GeluErf>(task);
    case Activation::kGeluTanh:
      return RowsOfType<GeluTanh>(task);
    case Activation::kClampedSwiglu:
      return RowsOfType<ClampedSwiglu>(task);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lamina::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels::cpu {

HWY_EXPORT(Activate);

void ActivateRows(const ActivationTask& task) { HWY_DYNAMIC_DISPATCH(Activate)(task); }

}  // namespace lamina::kernels::cpu
#endif
